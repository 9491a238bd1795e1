#include "serve/load/load_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/file.h"
#include "text/json_tree.h"

namespace deepinfer::serve {
namespace {

constexpr double kMostTokens = 1 << 24;

// Seeds of different kinds never meet.
enum class SeedOf : uint64_t { kPrefix = 1, kRequest, kBlock };

uint64_t mix(uint64_t seed, SeedOf kind, uint64_t number) {
  std::seed_seq words{seed, seed >> 32, static_cast<uint64_t>(kind), number, number >> 32};
  uint32_t out[2];
  words.generate(out, out + 2);
  return uint64_t{out[0]} << 32 | out[1];
}

bool parse_double(std::string_view text, double& out) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> out;
  while (true) {
    std::size_t at = text.find(by);
    out.push_back(text.substr(0, at));
    if (at == text.npos) return out;
    text.remove_prefix(at + 1);
  }
}

// Popularity 1 / rank^skew.
std::discrete_distribution<int> popularity(int count, double skew) {
  std::vector<double> weights;
  for (int i = 1; i <= count; ++i) weights.push_back(std::pow(i, -skew));
  return {weights.begin(), weights.end()};
}

Result<std::vector<PlannedRequest>> plan_drawn(const LoadOptions& o) {
  DI_TRY(Lengths input, Lengths::parse("--input-len", o.input_len, 1));
  DI_TRY(Lengths output, Lengths::parse("--output-len", o.output_len, 1));
  DI_TRY(Lengths prefix, Lengths::parse("--prefix-len", o.prefix_len, 0));
  std::mt19937_64 random(o.seed);
  std::vector<PromptPart> prefixes;
  for (int p = 0; p < o.num_prefixes; ++p)
    prefixes.push_back({mix(o.seed, SeedOf::kPrefix, static_cast<uint64_t>(p)), prefix.draw(random)});
  auto choose = popularity(o.num_prefixes, o.prefix_skew);
  std::gamma_distribution<double> gap(o.burstiness, o.request_rate > 0 ? 1 / (o.request_rate * o.burstiness) : 0);
  std::vector<PlannedRequest> plan;
  double at = 0;
  for (int i = 0; i < o.num_prompts; ++i) {
    PlannedRequest r{.at_s = at, .parts = {}, .output_tokens = output.draw(random)};
    const PromptPart& shared = prefixes[static_cast<std::size_t>(choose(random))];
    if (shared.tokens > 0) r.parts.push_back(shared);
    r.parts.push_back({mix(o.seed, SeedOf::kRequest, static_cast<uint64_t>(i)), input.draw(random)});
    plan.push_back(std::move(r));
    if (o.request_rate > 0) at += gap(random);
  }
  return plan;
}

Result<PlannedRequest> read_trace_line(const LoadOptions& o, std::string line, uint64_t number) {
  auto tree = text::JsonTree::parse(std::move(line));
  auto wrong = [&](std::string_view what) {
    return fail(Code::kInvalid, "{} line {}: {}", o.trace_file, number, what);
  };
  if (!tree) return wrong(tree.error().message);
  text::JsonValue root = tree->root();
  double ms = 0, input = 0, output = 0;
  for (auto [name, value] : {std::pair("timestamp", &ms), {"input_length", &input}, {"output_length", &output}}) {
    if (!parse_double(root.find(name).text(), *value) || *value < 0 || (value != &ms && *value > kMostTokens))
      return wrong(fmt::format("{} must be a number from 0 to {}", name, kMostTokens));
  }
  PlannedRequest r{
      .at_s = ms / 1000 / o.trace_speed, .parts = {}, .output_tokens = std::max<int64_t>(1, std::llround(output))};
  int64_t left = std::max<int64_t>(1, std::llround(input));
  for (text::JsonValue id : root.find("hash_ids")) {
    double hash = 0;
    if (!parse_double(id.text(), hash) || hash < 0) return wrong("hash_ids must be numbers >= 0");
    int64_t tokens = std::min<int64_t>(left, o.trace_block);
    if (tokens > 0) r.parts.push_back({mix(o.seed, SeedOf::kBlock, static_cast<uint64_t>(hash)), tokens});
    left -= tokens;
  }
  if (left > 0) r.parts.push_back({mix(o.seed, SeedOf::kRequest, number), left});
  return r;
}

Result<std::vector<PlannedRequest>> plan_trace(const LoadOptions& o) {
  DI_TRY(std::string text, read_file(o.trace_file));
  std::vector<PlannedRequest> plan;
  uint64_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    DI_TRY(PlannedRequest r, read_trace_line(o, std::string(line), number));
    plan.push_back(std::move(r));
    if (static_cast<int>(plan.size()) == o.num_prompts) break;
  }
  if (plan.empty()) return fail(Code::kInvalid, "{} holds no request", o.trace_file);
  std::ranges::stable_sort(plan, {}, &PlannedRequest::at_s);
  double begin = plan.front().at_s;
  for (PlannedRequest& r : plan) r.at_s -= begin;
  return plan;
}

}  // namespace

Result<Lengths> Lengths::parse(std::string_view option, std::string_view text, int64_t least) {
  Lengths lengths;
  lengths.least_ = least;
  std::vector<std::string_view> words = split(text, ':');
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"uniform", Kind::kUniform}, {"normal", Kind::kNormal}, {"lognormal", Kind::kLogNormal}};
  for (auto [name, kind] : kKinds) {
    if (words[0] == name) lengths.kind_ = kind;
  }
  bool is_fixed = lengths.kind_ == Kind::kFixed;
  bool is_read = is_fixed
                     ? words.size() == 1 && parse_double(words[0], lengths.a_)
                     : words.size() == 3 && parse_double(words[1], lengths.a_) && parse_double(words[2], lengths.b_);
  bool is_ordered = lengths.kind_ != Kind::kUniform || lengths.a_ <= lengths.b_;
  if (!is_read || !is_ordered || lengths.a_ < static_cast<double>(least) || lengths.a_ > kMostTokens ||
      lengths.b_ < 0 || lengths.b_ > kMostTokens) {
    return fail(
        Code::kInvalid,
        "{} is '{}'; allowed: N, uniform:LEAST:MOST, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA, from {} to {}",
        option, text, least, kMostTokens);
  }
  return lengths;
}

int64_t Lengths::draw(std::mt19937_64& random) const {
  double x = a_;
  if (kind_ == Kind::kUniform) x = std::uniform_int_distribution<int64_t>(std::llround(a_), std::llround(b_))(random);
  if (kind_ == Kind::kNormal && b_ > 0) x = std::normal_distribution<double>(a_, b_)(random);
  if (kind_ == Kind::kLogNormal && b_ > 0) x = std::lognormal_distribution<double>(std::log(a_), b_)(random);
  return std::max(least_, static_cast<int64_t>(std::llround(std::clamp(x, 0.0, kMostTokens))));
}

int64_t PlannedRequest::prompt_tokens() const {
  int64_t sum = 0;
  for (const PromptPart& p : parts) sum += p.tokens;
  return sum;
}

Result<std::vector<PlannedRequest>> plan_load(const LoadOptions& options) {
  return options.trace_file.empty() ? plan_drawn(options) : plan_trace(options);
}

std::vector<int32_t> prompt_ids(const PlannedRequest& request, int32_t least, int32_t most) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<std::size_t>(request.prompt_tokens()));
  for (const PromptPart& p : request.parts) {
    std::mt19937_64 random(p.seed);
    std::uniform_int_distribution<int32_t> id(least, most);
    for (int64_t i = 0; i < p.tokens; ++i) ids.push_back(id(random));
  }
  return ids;
}

}  // namespace deepinfer::serve
