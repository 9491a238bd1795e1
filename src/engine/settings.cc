#include "engine/settings.h"

#include <charconv>
#include <functional>
#include <map>

#include "base/env.h"

namespace deepinfer::engine {
namespace {

constexpr std::string_view kPrefix = "DEEPINFER_";

using Values = std::map<std::string, std::string, std::less<>>;

auto bad_value(std::string_view name, std::string_view value, std::string_view allowed) {
  return fail(Code::kInvalid, "{}{} is '{}'; allowed: {}", kPrefix, name, value, allowed);
}

template <typename T>
bool parse_number(std::string_view text, T& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Reads values out of the given variables; the first problem is kept.
class Reader {
 public:
  explicit Reader(const Values& values) : values_(values) {}

  const std::string* text(std::string_view name) const {
    auto it = values_.find(name);
    return it == values_.end() || it->second.empty() ? nullptr : &it->second;
  }
  template <typename T>
  void number(std::string_view name, T& out, T low, T high) {
    const std::string* value = text(name);
    if (value == nullptr) return;
    T parsed{};
    if (!parse_number(*value, parsed) || !(parsed >= low && parsed <= high)) {
      keep(bad_value(name, *value, fmt::format("a number from {} to {}", low, high)));
      return;
    }
    out = parsed;
  }
  // DeepInfer's booleans: 0, empty, false and False are false; 1, true and True are true.
  void boolean(std::string_view name, bool& out) {
    const std::string* value = text(name);
    if (value == nullptr) return;
    bool yes = *value == "1" || *value == "true" || *value == "True";
    bool no = *value == "0" || *value == "false" || *value == "False";
    if (!yes && !no) keep(bad_value(name, *value, "0 or 1"));
    out = yes;
  }
  template <typename T>
  void choice(std::string_view name, std::initializer_list<std::pair<std::string_view, T>> options, T& out) {
    const std::string* value = text(name);
    if (value == nullptr) return;
    std::string allowed;
    for (const auto& [word, meaning] : options) {
      if (*value == word) {
        out = meaning;
        return;
      }
      allowed += allowed.empty() ? "" : ", ";
      allowed += word;
    }
    keep(bad_value(name, *value, allowed));
  }
  void keep(tl::unexpected<Error> e) {
    if (!problem_) problem_ = std::move(e).value();
  }
  const std::optional<Error>& problem() const { return problem_; }

 private:
  const Values& values_;
  std::optional<Error> problem_;
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

void read_temperatures(Reader& reader, Settings& s) {
  constexpr std::string_view kName = "DFLASH_CONFIDENCE_HEAD_TEMPERATURE";
  const std::string* value = reader.text(kName);
  if (value == nullptr) return;
  for (std::string_view part : split(*value, ',')) {
    float t = 0;
    if (!parse_number(part, t) || !(t > 0)) {
      reader.keep(bad_value(kName, *value, "a positive number, or one for each draft position, with commas"));
      return;
    }
    s.confidence_temperature.push_back(t);
  }
}

void read_blacklist(Reader& reader, Settings& s) {
  constexpr std::string_view kName = "DECODE_TOKEN_BLACKLIST";
  const std::string* value = reader.text(kName);
  if (value == nullptr) return;
  for (std::string_view part : split(*value, ',')) {
    size_t dots = part.find("..");
    int32_t first = 0, last = 0;
    bool ok = parse_number(part.substr(0, dots), first);
    last = first;
    if (dots != std::string_view::npos) ok = ok && parse_number(part.substr(dots + 2), last);
    bool rising = s.blacklist.empty() || first > s.blacklist.back().second;
    if (!ok || first < 0 || last < first || !rising) {
      reader.keep(bad_value(kName, *value, "strictly rising ids or closed ranges, as in 0..3,7"));
      return;
    }
    s.blacklist.emplace_back(first, last);
  }
}

}  // namespace

Result<Settings> read_settings() {
  return read_settings(env_with_prefix(kPrefix));
}

Result<Settings> read_settings(std::span<const std::pair<std::string, std::string>> variables) {
  std::vector<std::string_view> known;
  for (const SettingRow& row : environment_rows()) known.push_back(row.name);

  Settings s;
  Values values;
  for (const auto& [full_name, value] : variables) {
    std::string_view name = std::string_view(full_name).substr(kPrefix.size());
    const SettingRow* row = nullptr;
    for (const SettingRow& r : environment_rows()) {
      if (r.name == name) row = &r;
    }
    if (row == nullptr) {
      return fail(Code::kInvalid, "unknown variable {}; did you mean {}{}?", full_name, kPrefix,
                  nearest_name(name, known));
    }
    if (row->status == SettingStatus::kRefused && value != row->fallback) {
      return fail(Code::kInvalid, "{} is refused: {}", full_name, row->note);
    }
    if (row->status == SettingStatus::kAccepted)
      s.notes.push_back(fmt::format("{} has no effect here: {}", full_name, row->note));
    values.emplace(name, value);
  }

  Reader reader(values);
  if (const std::string* a = reader.text("ACCELERATOR"); a != nullptr && *a == "ascend") {
    return fail(Code::kUnsupported,
                "DEEPINFER_ACCELERATOR is 'ascend': that backend is not built; allowed: auto, cpu, nvidia");
  }
  reader.choice<std::string>("ACCELERATOR", {{"auto", "auto"}, {"cpu", "cpu"}, {"nvidia", "nvidia"}}, s.accelerator);
  reader.number("USE_NEXTN_DECODE", s.num_drafts, 0, 32);
  reader.choice("ENABLE_MTP_VARLEN", {{"0", 0}, {"false", 0}, {"1", 1}, {"true", 1}}, s.varlen);
  reader.number("MAX_BACKTRACKING_TOKENS", s.backtracking, 0, 1024);
  read_temperatures(reader, s);
  reader.choice(
      "YOCO_PREFILL_TRUNCATION_MODE",
      {{"off", sched::Truncation::kOff}, {"mask", sched::Truncation::kMask}, {"compact", sched::Truncation::kCompact}},
      s.truncation);
  reader.number("YOCO_PREFILL_KEEP_TOKENS", s.keep_tokens, int64_t{0}, int64_t{1} << 20);
  reader.boolean("BATCH_INVARIANT", s.batch_invariant);
  reader.boolean("ZERO_OVERHEAD_SCHEDULING", s.async_steps);
  reader.number("NUM_STATE_SLOTS_RATIO", s.state_slots_ratio, 1.0, 100.0);
  reader.number("STORED_WINDOWS", s.stored_windows, 0, 1 << 24);
  read_blacklist(reader, s);
  reader.number("LOGGING_INTERVAL_STEP", s.logging_interval_steps, -1, 1 << 30);
  reader.number("XGRAMMAR_TIMEOUT", s.grammar_timeout_s, 0.001, 1e6);
  reader.number("XGRAMMAR_CACHE_LIMIT_BYTES", s.grammar_cache_bytes, int64_t{-1}, int64_t{1} << 50);
  bool grammar_cache_off = false;
  reader.boolean("XGRAMMAR_DISABLE_CACHE", grammar_cache_off);
  if (grammar_cache_off) s.grammar_cache_bytes = 1;
  reader.number("SO_BUILDER_CPUS", s.grammar_threads, 1, 1024);
  reader.number("SAMPLER_FORCE_TOPK", s.sampler_force_topk, 0, 1 << 30);
  reader.choice<std::string>(
      "CPP_LOG_LEVEL", {{"off", "off"}, {"error", "error"}, {"warn", "warn"}, {"info", "info"}, {"debug", "debug"}},
      s.log_level);
  if (reader.problem()) return tl::unexpected(*reader.problem());
  return s;
}

std::string settings_markdown() {
  auto section = [](std::string_view title, std::string_view prefix, std::span<const SettingRow> rows) {
    std::string out =
        fmt::format("## {}\n\n| name | default | state | effect or reason |\n| --- | --- | --- | --- |\n", title);
    constexpr std::string_view kStates[] = {"implemented", "no effect", "refused"};
    for (const SettingRow& r : rows) {
      out += fmt::format("| `{}{}` | {} | {} | {} |\n", prefix, r.name, r.fallback.empty() ? "unset" : r.fallback,
                         kStates[static_cast<int>(r.status)], r.note);
    }
    return out + "\n";
  };
  return "# Settings\n\nPrinted by `deepinfer settings --markdown`; the table is `src/engine/settings_table.cc`.\n\n" +
         section("Environment variables", kPrefix, environment_rows()) +
         section("Arguments of `LLM(...)`", "", engine_argument_rows()) +
         section("Fields of `SamplingParams`", "", sampling_argument_rows());
}

}  // namespace deepinfer::engine
