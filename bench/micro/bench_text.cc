// Tokenizer, compressed vocabulary, detokeniser, output parser. Needs build/released_tokenizer
// (scripts/fetch_tokenizer.py).
//
// English and code are texts of this repository repeated with their words shuffled, Chinese is drawn from common
// characters: nothing is downloaded, and a run on another machine encodes the same bytes.

#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "base/file.h"
#include "text/compressed_vocabulary.h"
#include "text/detokenizer.h"
#include "text/json_tree.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace deepinfer::text {
namespace {

constexpr std::size_t kTextBytes = 4 << 20;

const std::string kTokenizer = DI_SOURCE_DIR "/build/released_tokenizer/tokenizer.json";

const Tokenizer& tokenizer() {
  static const Tokenizer t = [] {
    auto loaded = Tokenizer::load(kTokenizer);
    if (!loaded) {
      fmt::print(stderr, "{}; make the file with: python3 scripts/fetch_tokenizer.py\n", loaded.error().message);
      std::exit(2);
    }
    return std::move(*loaded);
  }();
  return t;
}

std::string english() {
  auto tiny = Tokenizer::load(DI_SOURCE_DIR "/models/tiny");
  std::istringstream lines(read_file(DI_SOURCE_DIR "/eval/tiny/stories.jsonl").value_or(""));
  std::string text;
  for (std::string line; tiny && std::getline(lines, line);) {
    auto tree = JsonTree::parse(line);
    std::vector<int32_t> ids;
    for (JsonValue v : tree->root().find("ids")) ids.push_back(std::atoi(std::string(v.text()).c_str()));
    text += tiny->decode(ids, true);
  }
  return text;
}

std::string code() {
  std::istringstream in(read_file(DI_SOURCE_DIR "/src/text/output_parser.cc").value_or(""));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line + '\n');
  std::mt19937 random(1);
  std::string text;
  while (!lines.empty() && text.size() < kTextBytes) text += lines[random() % lines.size()];
  return text;
}

std::string chinese() {
  const std::vector<std::string> words = {"我们", "的",   "是",   "在",   "中国", "一个", "问题", "可以", "没有",
                                          "时间", "工作", "发展", "不",   "了",   "和",   "人民", "研究", "方法",
                                          "模型", "语言", "数据", "非常", "重要", "因为", "所以", "这个", "进行",
                                          "通过", "系统", "社会", "，",   "。",   "\n"};
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kTextBytes) text += words[random() % words.size()];
  return text;
}

// One piece of a megabyte: nothing for the word table, everything for the merges.
std::string hostile() {
  std::mt19937 random(1);
  std::string text(1 << 20, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

std::string control() {
  std::string text;
  while (text.size() < kTextBytes) text += "<think>";
  return text;
}

void encode(benchmark::State& state, std::string (*make)()) {
  std::string text = make();
  std::vector<int32_t> ids;
  const Tokenizer& t = tokenizer();  // loaded before the clock runs
  for (auto _ : state) {
    ids.clear();
    t.encode(text, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
}
BENCHMARK_CAPTURE(encode, english, english)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, code, code)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, chinese, chinese)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, hostile_letters, hostile)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, control_tokens, control)->Unit(benchmark::kMillisecond);

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(kTokenizer));
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

void compressed_vocabulary(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(compress_vocabulary(tokenizer()));
}
BENCHMARK(compressed_vocabulary)->Unit(benchmark::kMillisecond);

void detokenize(benchmark::State& state) {
  std::vector<int32_t> ids;
  tokenizer().encode(english(), ids);
  std::string text;
  for (auto _ : state) {
    text.clear();
    Detokenizer detokenizer(tokenizer());
    for (int32_t id : ids) detokenizer.push(id, text);
    benchmark::DoNotOptimize(text.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}
BENCHMARK(detokenize)->Unit(benchmark::kMillisecond);

void parse_output_by_token(benchmark::State& state) {
  std::string text = english();
  for (auto _ : state) {
    OutputParser parser({.start = OutputFormat::Start::kReasoning, .parses_tool_calls = true, .stops = {"STOP"}});
    std::vector<OutputDelta> deltas;
    for (std::size_t at = 0; at < text.size(); at += 4) {
      deltas.clear();
      parser.push(std::string_view(text).substr(at, 4), deltas);
    }
    benchmark::DoNotOptimize(deltas.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(text.size() / 4));
}
BENCHMARK(parse_output_by_token)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepinfer::text

BENCHMARK_MAIN();
