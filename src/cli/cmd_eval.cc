// deepinfer eval: held-out tasks of the tiny model, scored two ways, and the acceptance of drafts on held-out stories.
//
//   teacher-forced   every answer token and the end token is the first choice, given the right ones before it
//   generated        the greedy answer equals the expected one

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/engine_options.h"

namespace deepinfer {
namespace {

struct EvalOptions {
  EngineFlags engine;
  std::string tasks = "tiny", directory;
  int per_task = 128;
  int num_stories = 40;
  bool prints_json = false;
};

struct Item {
  std::string task;
  std::vector<int32_t> prompt, answer;
};

struct Score {
  int items = 0, forced = 0, generated = 0;
};

// The member `key` of an object, a list of token ids.
Result<std::vector<int32_t>> id_list(const json::value& object, std::string_view key, const std::string& path) {
  const json::value* list = object.is_object() ? object.as_object().if_contains(key) : nullptr;
  if (list == nullptr || !list->is_array()) return fail(Code::kCorrupt, "{}: an object lacks the list {}", path, key);
  std::vector<int32_t> ids;
  for (const json::value& x : list->as_array()) {
    if (!x.is_int64() || x.as_int64() < 0 || x.as_int64() > INT32_MAX) {
      return fail(Code::kCorrupt, "{}: {} holds {}; token ids were expected", path, key, json::dump(x));
    }
    ids.push_back(static_cast<int32_t>(x.as_int64()));
  }
  return ids;
}

// Objects of a JSON-lines file.
Result<std::vector<json::value>> read_lines(const std::string& path) {
  DI_TRY(std::string text, read_file(path));
  std::vector<json::value> values;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) {
      auto v = json::parse(std::string_view(text).substr(begin, end - begin));
      if (!v) return fail(Code::kCorrupt, "{} line {}: {}", path, values.size() + 1, v.error().message);
      values.push_back(std::move(*v));
    }
    begin = end + 1;
  }
  return values;
}

Result<std::vector<Item>> read_items(const EvalOptions& options) {
  const std::string path = options.directory + "/items.jsonl";
  DI_TRY(auto lines, read_lines(path));
  std::map<std::string, int> taken;
  std::vector<Item> items;
  for (const json::value& v : lines) {
    const json::value* task = v.is_object() ? v.as_object().if_contains("task") : nullptr;
    if (task == nullptr || !task->is_string()) return fail(Code::kCorrupt, "{}: an object lacks the text task", path);
    Item item{.task = std::string(task->as_string()), .prompt = {}, .answer = {}};
    DI_TRY(item.prompt, id_list(v, "prompt_ids", path));
    DI_TRY(item.answer, id_list(v, "answer_ids", path));
    if (taken[item.task]++ < options.per_task) items.push_back(std::move(item));
  }
  return items;
}

Request greedy(std::vector<int32_t> prompt, int max_tokens) {
  Request r{.prompt = std::move(prompt)};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  return r;
}

// Whether the right answer is the first choice at every step: the raw maximum equals the forced token.
bool is_first_choice(const CompletionOutput& c, const Item& item) {
  if (c.token_ids.size() != item.answer.size() || c.top_logprobs.size() != item.answer.size()) return false;
  for (size_t i = 0; i < item.answer.size(); ++i) {
    if (c.top_logprobs[i].empty() || c.top_logprobs[i].front().token != item.answer[i]) return false;
  }
  return true;
}

Result<std::map<std::string, Score>> score_tasks(engine::EngineImpl& engine, const std::vector<Item>& items) {
  std::vector<Request> forced, free;
  for (const Item& item : items) {
    Request r = greedy(item.prompt, static_cast<int>(item.answer.size()));
    r.sampling.golden_token_ids = item.answer;
    r.sampling.top_logprobs = 1;
    forced.push_back(std::move(r));
    free.push_back(greedy(item.prompt, static_cast<int>(item.answer.size()) + 8));
  }
  auto forced_outputs = engine.generate(std::move(forced), {});
  auto free_outputs = engine.generate(std::move(free), {});
  std::map<std::string, Score> scores;
  for (size_t i = 0; i < items.size(); ++i) {
    for (const auto* c : {&forced_outputs[i].outputs[0], &free_outputs[i].outputs[0]}) {
      if (!c->error.empty()) return fail(Code::kInternal, "item {} ({}): {}", i, items[i].task, c->error);
    }
    Score& s = scores[items[i].task];
    s.items += 1;
    s.forced += is_first_choice(forced_outputs[i].outputs[0], items[i]);
    s.generated += free_outputs[i].outputs[0].token_ids == items[i].answer;
  }
  return scores;
}

// Tokens a decode step emits on the first 40 tokens of held-out stories, 100 greedy tokens each.
Result<double> mean_accepted(engine::EngineImpl& engine, const EvalOptions& options) {
  constexpr size_t kPromptTokens = 40;
  constexpr int kOutputTokens = 100;
  const std::string path = options.directory + "/stories.jsonl";
  DI_TRY(auto lines, read_lines(path));
  std::vector<Request> requests;
  for (const json::value& v : lines) {
    if (static_cast<int>(requests.size()) == options.num_stories) break;
    DI_TRY(std::vector<int32_t> ids, id_list(v, "ids", path));
    ids.resize(std::min(ids.size(), kPromptTokens));
    requests.push_back(greedy(std::move(ids), kOutputTokens));
  }
  int64_t accepted = 0, rounds = 0;
  for (const RequestOutput& o : engine.generate(std::move(requests), {})) {
    accepted += o.outputs[0].usage.accepted_tokens;
    rounds += o.outputs[0].usage.steps - 1;  // the first step samples from the prompt and verifies nothing
  }
  return rounds > 0 ? static_cast<double>(accepted) / static_cast<double>(rounds) : 0.0;
}

Result<void> eval(EvalOptions& options) {
  if (options.tasks != "tiny")
    return fail(Code::kInvalid, "--tasks {}: the only set of tasks is 'tiny'", options.tasks);
  if (options.prints_json) options.engine.is_quiet = true;
  if (options.directory.empty()) options.directory = embedded_model() + "/../../eval/tiny";
  options.engine.verifies_all = true;  // a figure of the drafts, not of what this machine makes of them
  DI_TRY(auto items, read_items(options));
  DI_TRY(auto engine, options.engine.make());
  DI_TRY(auto scores, score_tasks(*engine, items));
  DI_TRY(double accepted, mean_accepted(*engine, options));
  if (options.prints_json) {
    json::object o, forced, generated;
    for (const auto& [task, s] : scores) {
      forced[task] = static_cast<double>(s.forced) / s.items;
      generated[task] = static_cast<double>(s.generated) / s.items;
    }
    for (const auto& [task, s] : scores) o[task] = forced[task];
    o["generated"] = generated;
    o["accepted_a_round"] = accepted;
    std::printf("%s\n", json::dump(o).c_str());
    return {};
  }
  std::printf("%-12s %6s %15s %10s\n", "task", "items", "teacher-forced", "generated");
  for (const auto& [task, s] : scores) {
    std::printf("%-12s %6d %15.3f %10.3f\n", task.c_str(), s.items, static_cast<double>(s.forced) / s.items,
                static_cast<double>(s.generated) / s.items);
  }
  std::printf("drafts accepted a round, greedy stories: %.2f\n", accepted);
  return {};
}

}  // namespace

void add_eval(Command& app, int& exit_code) {
  auto options = std::make_shared<EvalOptions>();  // owned by the callback, which outlives this function
  Command command = app.subcommand("eval", "score the tiny model's held-out tasks");
  options->engine.add_to(command);
  command.option("--tasks", options->tasks, "set of tasks").show_default();
  command.option("--data", options->directory, "directory with items.jsonl and stories.jsonl; default: eval/tiny");
  command.option("--per-task", options->per_task, "items a task at most").show_default();
  command.option("--stories", options->num_stories, "stories for the acceptance figure").show_default();
  command.flag("--json", options->prints_json,
               "print {task: teacher-forced accuracy, generated: {...}, accepted_a_round}");
  command.callback([options, &exit_code] {
    if (auto done = eval(*options); !done) exit_code = report(done.error());
  });
}

}  // namespace deepinfer
