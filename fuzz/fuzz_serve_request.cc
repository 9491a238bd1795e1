// Any bytes as the body of each endpoint: an error that says something and names a status, or a plan within the limits.
// The first byte chooses the endpoint.

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "serve/anthropic/messages.h"
#include "serve/generate.h"
#include "serve/openai/chat.h"
#include "serve/openai/completions.h"
#include "serve/openai/responses.h"
#include "serve/testing/null_engine.h"
#include "serve/tokenize.h"

using namespace deepinfer;
using namespace deepinfer::serve;

namespace {

const Model& model() {
  static const text::Tokenizer tokenizer = *text::Tokenizer::load("models/tiny");
  static NullEngine engine(tokenizer, {});
  static const Model m{.engine = &engine,
                       .tokenizer = &tokenizer,
                       .name = "tiny",
                       .max_model_len = engine.max_model_len(),
                       .vocab_size = tokenizer.num_ids(),
                       .end_think_id = tokenizer.added_id("</think>"),
                       .chat = {}};
  return m;
}

void check_error(const ApiError& e) {
  DI_CHECK(!e.message.empty() && e.status >= 400 && e.status < 500, "{}", e.message);
  for (ApiStyle style : {ApiStyle::kOpenAi, ApiStyle::kAnthropic})
    DI_CHECK(text::is_json(error_json(style, e, "r")), "{}", e.message);
}

void check_plan(const ApiResult<GenerationPlan>& plan) {
  if (!plan) return check_error(plan.error());
  DI_CHECK(plan->responder != nullptr && !plan->id.empty() && !plan->requests.empty());
  for (const Request& r : plan->requests) {
    auto prompt = static_cast<int64_t>(r.prompt.size());
    DI_CHECK(prompt > 0 && r.sampling.max_tokens > 0 && prompt + r.sampling.max_tokens <= model().max_model_len);
  }
}

void check_text(const ApiResult<std::string>& text) {
  if (!text) return check_error(text.error());
  DI_CHECK(text::is_json(*text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  static openai::ResponseStore store(std::chrono::seconds(3600), 1 << 20);
  static WrittenAnswers written(std::chrono::seconds(3600), 1 << 20);
  const Reading from{.model = model(), .tenant = "", .written = &written, .responses = &store};
  switch (data[0] % 8) {
    case 0:
      check_plan(openai::plan_chat(from, body));
      break;
    case 1:
      check_plan(openai::plan_completion(from, body));
      break;
    case 2:
      check_plan(openai::plan_response(from, body));
      break;
    case 3:
      check_plan(anthropic::plan_message(from, body));
      break;
    case 4:
      check_text(anthropic::count_tokens(from, body));
      break;
    case 5:
      check_text(tokenize(from, body));
      break;
    case 6:
      check_text(detokenize(from, body));
      break;
    case 7:
      check_plan(plan_generate(from, body));
      break;
  }
  return 0;
}
