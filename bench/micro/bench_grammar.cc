// Structured outputs with the released vocabulary (scripts/fetch_tokenizer.py): a token's mask and acceptance, beside
// the grammar library alone on the same tokens, and the masks of a whole step.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <benchmark/benchmark.h>

#include "base/check.h"
#include "base/thread_pool.h"
#include "engine/grammar_setup.h"
#include "engine/sequence_grammar.h"
#include "grammar/compiler.h"
#include "grammar/xgrammar/compiled.h"  // what is compared with
#include "text/tokenizer.h"

namespace deepinfer::engine {
namespace {

constexpr int kDrafts = 5;

struct Document {
  const char* schema;
  const char* text;
};
constexpr Document kDocuments[] = {
    {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"email":{"type":"string"}},)"
     R"("required":["name","age","email"],"additionalProperties":false})",
     R"({"name": "Lily of the valley", "age": 31, "email": "lily.valley@example.org"})"},
    {R"({"type":"object","properties":{"title":{"type":"string"},"tags":{"type":"array","items":{"enum":["red","green",)"
     R"("blue"]}},"rating":{"type":"number"}},"required":["title","tags","rating"],"additionalProperties":false})",
     R"({"title": "A fox who found a ball in the wood", "tags": ["red", "blue", "green"], "rating": 4.75})"},
    {R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"done":{"type":"boolean"},)"
     R"("note":{"type":"string"}},"required":["id","done","note"],"additionalProperties":false}})",
     R"([{"id": 1, "done": true, "note": "wash the car"}, {"id": 27, "done": false, "note": "write to Tom"}])"},
};

struct Prepared {
  std::shared_ptr<const grammar::Grammar> grammar;
  std::vector<int32_t> tokens;
};

std::shared_ptr<const grammar::Grammar> compile(grammar::Compiler& compiler, const char* schema) {
  std::shared_ptr<const grammar::Grammar> compiled;
  std::mutex mutex;
  std::condition_variable ready;
  auto tag = grammar::make_structural_tag({.schema_type = "json", .schema = schema});
  DI_CHECK(tag.has_value(), "a schema of the benchmark");
  compiler.compile(*tag, grammar::Compiler::Clock::time_point::max(), [&](auto result) {
    DI_CHECK(result.has_value(), "{}", result.error().message);
    std::lock_guard lock(mutex);
    compiled = *result;
    ready.notify_one();
  });
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return compiled != nullptr; });
  return compiled;
}

const std::vector<Prepared>& prepared() {
  static const std::vector<Prepared> all = [] {
    auto tokenizer = text::Tokenizer::load(DI_SOURCE_DIR "/build/released_tokenizer");
    DI_CHECK(tokenizer.has_value(), "run scripts/fetch_tokenizer.py: {}", tokenizer.error().message);
    grammar::Compiler compiler([&] { return grammar_vocabulary(*tokenizer, tokenizer->num_ids(), 1); }, {});
    std::vector<Prepared> list;
    for (const Document& d : kDocuments) {
      list.push_back({compile(compiler, d.schema), {}});
      tokenizer->encode_plain(d.text, list.back().tokens);
    }
    return list;
  }();
  return all;
}

void report_tokens(benchmark::State& state, double tokens) {
  state.counters["per_token"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void walk_ours(benchmark::State& state) {
  double tokens = 0;
  const std::vector<Prepared>& documents = prepared();
  for (auto _ : state) {
    for (const Prepared& p : documents) {
      grammar::Matcher matcher(p.grammar, {});
      std::vector<uint32_t> mask(static_cast<size_t>(matcher.num_mask_words()));
      for (int32_t token : p.tokens) {
        DI_CHECK(matcher.fill(mask.data()).has_value() && matcher.accept(token).value(), "token {}", token);
      }
      tokens += static_cast<double>(p.tokens.size());
    }
  }
  report_tokens(state, tokens);
}
BENCHMARK(walk_ours)->Unit(benchmark::kMicrosecond);

void walk_library(benchmark::State& state) {
  double tokens = 0;
  const std::vector<Prepared>& documents = prepared();
  for (auto _ : state) {
    for (const Prepared& p : documents) {
      xgrammar::GrammarMatcher matcher(p.grammar->compiled().grammar);
      std::vector<int32_t> mask(static_cast<size_t>(p.grammar->num_mask_words()));
      int64_t shape = static_cast<int64_t>(mask.size());
      DLTensor view{mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &shape, nullptr, 0};
      for (int32_t token : p.tokens) {
        matcher.FillNextTokenBitmask(&view);
        DI_CHECK(matcher.AcceptToken(token), "token {}", token);
      }
      tokens += static_cast<double>(p.tokens.size());
    }
  }
  report_tokens(state, tokens);
}
BENCHMARK(walk_library)->Unit(benchmark::kMicrosecond);

// The masks of a step: every sequence that of its next token and those after each draft, then three tokens committed.
void masks_of_a_step(benchmark::State& state) {
  constexpr size_t kAccepted = 2;
  const auto num_sequences = static_cast<size_t>(state.range(0));
  ThreadPool pool(static_cast<int>(state.range(1)));
  struct Sequence {
    const Prepared* document;
    std::optional<SequenceGrammar> grammar;
    size_t place = 0;
  };
  std::vector<Sequence> sequences;
  auto restart = [](Sequence& s) {
    GrammarSpec spec{.grammar = s.document->grammar, .trigger = {}, .prefix = ""};
    s.grammar.emplace(spec);
    s.place = 0;
  };
  for (size_t i = 0; i < num_sequences; ++i) {
    sequences.push_back({&prepared()[i % prepared().size()], std::nullopt});
    restart(sequences.back());
    const size_t ahead = i % (sequences.back().document->tokens.size() - kDrafts - kAccepted - 1);
    DI_CHECK(sequences.back().grammar->commit(std::span(sequences.back().document->tokens).first(ahead)).has_value());
    sequences.back().place = ahead;
  }
  auto step = [&](Sequence& s) {
    const auto& tokens = s.document->tokens;
    if (s.place + kDrafts + kAccepted >= tokens.size()) restart(s);
    for (int row = 0; row <= kDrafts; ++row) {
      DI_CHECK(s.grammar->mask(row).has_value());
      if (row < kDrafts) DI_CHECK(s.grammar->accept_draft(tokens[s.place + static_cast<size_t>(row)]).value());
    }
    DI_CHECK(s.grammar->commit(std::span(tokens).subspan(s.place, kAccepted + 1)).has_value());
    s.place += kAccepted + 1;
  };
  for (auto _ : state) {
    std::atomic<size_t> next{0};
    pool.share([&](int) {
      for (size_t i; (i = next.fetch_add(1)) < sequences.size();) step(sequences[i]);
    });
  }
}
BENCHMARK(masks_of_a_step)
    ->ArgNames({"sequences", "threads"})
    ->Args({256, 1})
    ->Args({256, 2})
    ->Args({1, 1})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace deepinfer::engine

BENCHMARK_MAIN();
