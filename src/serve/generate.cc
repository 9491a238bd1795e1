#include "serve/generate.h"

#include "serve/generation_fields.h"
#include "serve/ids.h"
#include "serve/openai/chunk_stream.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

constexpr int64_t kUsualTokens = 16;  // as /v1/completions
constexpr std::size_t kMaxPromptTokens = std::size_t{1} << 21;

struct GenerateFields : GenerationFields {
  std::vector<int32_t> token_ids;
  std::optional<int> logprobs;
};

const FieldTable<GenerateFields>& generate_fields() {
  using F = GenerateFields;
  static const FieldTable<F> table =
      joined<F>({serving_fields<F>(),
                 sampling_fields<F>(),
                 choice_fields<F>(),
                 {
                     custom<F>("token_ids",
                               [](JsonValue v, F& out) -> ApiResult<> {
                                 DI_TRY(out.token_ids, read_token_ids("token_ids", v, kMaxPromptTokens));
                                 return {};
                               }),
                     integer_of<F>("max_tokens", &F::max_tokens, 1, 1 << 30),
                     integer_of<F>("logprobs", &F::logprobs, 0, 20),
                     refused<F>("prompt", "give token_ids, or use /v1/completions"),
                 }});
  return table;
}

struct WriterOptions {
  std::string id, model;
  bool wants_logprobs = false, includes_usage = false, returns_timings = false;
};

void write_ids(JsonWriter& w, std::span<const int32_t> ids, bool wants_logprobs,
               std::span<const TokenLogprob> logprobs) {
  w.key("token_ids");
  openai::write_token_ids(w, ids);
  w.key("logprobs");
  if (!wants_logprobs) {
    w.null();
    return;
  }
  w.begin_array();
  for (const TokenLogprob& l : logprobs) {
    w.begin_object().field("logprob", l.logprob).key("top").begin_array();
    for (const TopLogprob& t : l.top) w.begin_object().field("token", t.token).field("logprob", t.logprob).end_object();
    w.end_array().end_object();
  }
  w.end_array();
}

class GenerateStream final : public openai::ChunkStream {
 public:
  explicit GenerateStream(const WriterOptions& o)
      : ChunkStream(head_of(o), o.includes_usage, o.returns_timings), wants_logprobs_(o.wants_logprobs) {}

  void piece(const Piece& p) override {
    if (!p.token_ids.empty()) chunk(p.choice, p.token_ids, p.logprobs, "");
  }
  void choice_end(const ChoiceEnd& end) override { chunk(end.choice, {}, {}, end.finish_reason); }

 private:
  static std::string head_of(const WriterOptions& o) {
    JsonWriter w;
    w.begin_object().field("id", o.id).field("object", "generation.chunk").field("model", o.model);
    return w.take();
  }
  void chunk(int choice, std::span<const int32_t> ids, std::span<const TokenLogprob> logprobs,
             std::string_view finish_reason) {
    JsonWriter w;
    w.begin_array().begin_object().field("index", choice);
    write_ids(w, ids, wants_logprobs_, logprobs);
    w.key("finish_reason");
    finish_reason.empty() ? w.null() : w.value(finish_reason);
    send(w.end_object().end_array().text());
  }

  bool wants_logprobs_;
};

class GenerateWhole final : public CollectingResponder {
 public:
  explicit GenerateWhole(const WriterOptions& options) : options_(options) {}

 private:
  std::string body(const CallUsage& usage) override {
    JsonWriter w;
    w.begin_object().field("id", options_.id).field("object", "generation").field("model", options_.model);
    w.key("choices").begin_array();
    for (const auto& [index, c] : choices_) {
      w.begin_object().field("index", index);
      write_ids(w, c.token_ids, options_.wants_logprobs, c.logprobs);
      w.field("finish_reason", c.finish_reason).end_object();
    }
    w.end_array();
    openai::write_usage(w, usage);
    if (options_.returns_timings) openai::write_timings(w, usage);
    return w.end_object().take();
  }

  WriterOptions options_;
};

}  // namespace

ApiResult<GenerationPlan> plan_generate(const Reading& from, std::string body) {
  DI_TRY(text::JsonTree tree, parse_body(std::move(body)));
  GenerateFields fields;
  GenerationPlan plan;
  DI_TRY_VOID(read_fields(tree.root(), generate_fields(), fields, plan.unknown_fields));
  DI_TRY_VOID(check_model(from.model, fields.model));
  if (fields.token_ids.empty()) return bad_field("token_ids", "token_ids is missing; at least one token id is needed");
  if (!fields.stop.empty()) return bad_field("stop", "stop needs text; use stop_token_ids");
  SamplingParams& sampling = fields.sampling;
  sampling.logprobs = fields.logprobs.has_value();
  sampling.top_logprobs = fields.logprobs.value_or(0);
  DI_TRY_VOID(fit_to_context(from.model, static_cast<int64_t>(fields.token_ids.size()), fields.max_tokens, kUsualTokens,
                             "max_tokens", sampling));
  DI_TRY_VOID(check_sampling(from.model, sampling));
  plan.id = new_id("gen-");
  plan.wants_token_ids = true;
  plan.requests.push_back({.prompt = std::move(fields.token_ids), .sampling = std::move(sampling), .tenant = {}});
  WriterOptions options{.id = plan.id,
                        .model = from.model.name,
                        .wants_logprobs = fields.logprobs.has_value(),
                        .includes_usage = fields.includes_usage,
                        .returns_timings = fields.returns_timings};
  if (fields.is_stream) {
    plan.responder = std::make_unique<GenerateStream>(options);
  } else {
    plan.responder = std::make_unique<GenerateWhole>(options);
  }
  return plan;
}

void add_generate(Service& service) {
  service.router.add({.method = "POST", .pattern = "/v1/generate", .handler = [&service](CallPtr call) {
                        service.generate(std::move(call), plan_generate);
                      }});
}

}  // namespace deepinfer::serve
