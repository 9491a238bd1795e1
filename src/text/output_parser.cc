#include "text/output_parser.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "text/chat.h"
#include "text/json_tree.h"

namespace deepinfer::text {
namespace {

// All markers begin with their only '<', so a mismatch can only restart at the mismatching byte.
constexpr std::string_view kOpenDsml = "<｜DSML｜", kCloseDsml = "</｜DSML｜";

constexpr std::string_view kInvoke = "invoke name=\"", kParameter = "parameter name=\"";
// The blank behind the marker is missing in the older spelling.
constexpr std::array<std::string_view, 4> kEndCalls = {"</｜DSML｜ calls>", "</｜DSML｜ tool_calls>",
                                                       "</｜DSML｜calls>", "</｜DSML｜tool_calls>"};
constexpr std::size_t kTailBytes = 32;  // longer than anything looked for at the end of skipped text
constexpr char kLastOfBar = '\x9C';     // last byte of '｜'

constexpr std::string_view kKeyOfString = "\" string=\"true\">", kKeyOfJson = "\" string=\"false\">",
                           kKeyOfUnknown = "\">";

}  // namespace

OutputParser::OutputParser(const OutputFormat& format) : format_(format), state_(State::kText), stops_(format.stops) {
  using Start = OutputFormat::Start;
  if (format.start == Start::kReasoning || format.start == Start::kReasoningContinuation) state_ = State::kReasoning;
  if (format.start == Start::kCalls) state_ = State::kCalls;
  is_at_start_ = format.start != Start::kReasoningContinuation && format.start != Start::kTextContinuation;
}

void OutputParser::push(std::string_view text, std::vector<OutputDelta>& deltas) {
  deltas_ = &deltas;
  while (!text.empty() && state_ != State::kDone) {
    switch (state_) {
      case State::kReasoning:
      case State::kText:
        scan_text(text);
        break;
      case State::kCalls:
        scan_calls(text);
        break;
      case State::kName:
        scan_name(text);
        break;
      case State::kParams:
        scan_params(text);
        break;
      case State::kKey:
        scan_key(text);
        break;
      case State::kValue:
        scan_value(text);
        break;
      case State::kDone:
        break;
    }
  }
  deltas_ = nullptr;
}

void OutputParser::finish(std::vector<OutputDelta>& deltas) {
  deltas_ = &deltas;
  if (state_ == State::kReasoning || state_ == State::kText) {
    if (!marker_.empty()) plain(marker_);
    if (num_newlines_ > 0 && !is_at_start_) plain({});
    end_content();
  } else if (state_ == State::kValue) {
    // Cut inside a value: what there is of it, unclosed.
    value_text(marker_);
    if (!is_repeated_key_) emit(OutputDelta::Kind::kArguments, value_);
  }
  state_ = State::kDone;
  deltas_ = nullptr;
}

// ---- reasoning and text -------------------------------------------------------------------------------------------

void OutputParser::scan_text(std::string_view& text) {
  if (marker_.empty()) {
    std::size_t n = std::min(text.find_first_of("<\n"), text.size());
    if (n > 0) {
      plain(text.substr(0, n));
      text.remove_prefix(n);
      return;
    }
    if (text[0] == '\n') {
      ++num_newlines_;
      text.remove_prefix(1);
      return;
    }
  }
  marker_ += text[0];
  Marker marker = match_marker();
  if (marker == Marker::kNone) {
    // At least the '<' matched; the byte that broke the match is looked at again.
    marker_.pop_back();
    plain(marker_);
    marker_.clear();
    return;
  }
  text.remove_prefix(1);
  if (marker == Marker::kPartial) return;
  marker_.clear();
  on_marker(marker);
}

OutputParser::Marker OutputParser::match_marker() const {
  struct Candidate {
    std::string_view text;
    Marker marker;
    bool is_active;
  };
  bool is_repeated_think = state_ == State::kReasoning && is_at_start_;
  const std::array<Candidate, 4> candidates = {{{kEndThink, Marker::kEndThink, true},
                                                {kOpenDsml, Marker::kDsml, format_.parses_tool_calls},
                                                {kThink, Marker::kThink, is_repeated_think},
                                                {kEos, Marker::kEos, true}}};
  Marker best = Marker::kNone;
  for (const Candidate& c : candidates) {
    if (!c.is_active || !c.text.starts_with(marker_)) continue;
    if (c.text.size() == marker_.size()) return c.marker;
    best = Marker::kPartial;
  }
  return best;
}

void OutputParser::on_marker(Marker marker) {
  if (marker == Marker::kEos) return;
  num_newlines_ = 0;
  if (marker == Marker::kDsml) {
    end_content();
    if (state_ != State::kDone) state_ = State::kCalls;
  } else if (marker == Marker::kEndThink && state_ == State::kReasoning) {
    state_ = State::kText;
    is_at_start_ = true;
  }
}

// Text that is no marker, with the line breaks before it.
void OutputParser::plain(std::string_view text) {
  std::string newlines;
  if (!is_at_start_) newlines.assign(static_cast<std::size_t>(num_newlines_), '\n');
  num_newlines_ = 0;
  is_at_start_ = false;
  for (std::string_view piece : {std::string_view(newlines), text}) {
    if (state_ == State::kReasoning) {
      emit(OutputDelta::Kind::kReasoning, piece);
    } else if (state_ == State::kText) {
      content(piece);
    }
  }
}

void OutputParser::content(std::string_view text) {
  std::string inside, out;
  if (format_.is_json) {
    json_.push(text, inside);
    text = inside;
  }
  stops_.push(text, out);
  emit(OutputDelta::Kind::kContent, out);
  if (stops_.is_found()) state_ = State::kDone;
}

void OutputParser::end_content() {
  if (state_ != State::kText) return;
  std::string inside, out;
  if (format_.is_json) json_.finish(inside);
  stops_.push(inside, out);
  stops_.finish(out);
  emit(OutputDelta::Kind::kContent, out);
  if (stops_.is_found()) state_ = State::kDone;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

void OutputParser::remember(std::string_view text) {
  if (text.size() > kTailBytes) text.remove_prefix(text.size() - kTailBytes);
  tail_ += text;
  if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
}

void OutputParser::scan_calls(std::string_view& text) {
  std::size_t n = std::min(text.find_first_of("\">"), text.size() - 1) + 1;
  remember(text.substr(0, n));
  text.remove_prefix(n);
  if (tail_.ends_with(kInvoke)) {
    tail_.clear();
    name_.clear();
    state_ = State::kName;
  } else if (std::any_of(kEndCalls.begin(), kEndCalls.end(), [&](auto end) { return tail_.ends_with(end); })) {
    state_ = State::kDone;
  }
}

void OutputParser::scan_name(std::string_view& text) {
  std::size_t quote = text.find('"');
  name_ += text.substr(0, quote);
  if (quote == text.npos) {
    text = {};
    return;
  }
  text.remove_prefix(quote + 1);
  ++num_calls_;
  deltas_->push_back({.kind = OutputDelta::Kind::kCall, .call_index = num_calls_ - 1, .text = name_});
  keys_.clear();
  state_ = State::kParams;
}

void OutputParser::scan_params(std::string_view& text) {
  constexpr std::array kTriggers = {'"', kLastOfBar};
  std::size_t n = std::min(text.find_first_of(kTriggers.data(), 0, kTriggers.size()), text.size() - 1) + 1;
  remember(text.substr(0, n));
  text.remove_prefix(n);
  if (tail_.ends_with(kParameter)) {
    tail_.clear();
    key_.clear();
    state_ = State::kKey;
  } else if (tail_.ends_with(kCloseDsml)) {
    // The tail stays: if this tag closes the whole block, Calls sees it.
    emit(OutputDelta::Kind::kArguments, keys_.empty() ? "{}" : "}");
    state_ = State::kCalls;
  }
}

// A key ends at the first quote followed by one of the three attribute endings. Each of them has its only '>' at its
// end.
void OutputParser::scan_key(std::string_view& text) {
  std::size_t n = std::min(text.find('>'), text.size() - 1) + 1;
  key_ += text.substr(0, n);
  text.remove_prefix(n);
  constexpr std::array<std::pair<std::string_view, ValueKind>, 3> kEndings = {
      {{kKeyOfString, ValueKind::kString}, {kKeyOfJson, ValueKind::kJson}, {kKeyOfUnknown, ValueKind::kUnknown}}};
  for (auto [ending, kind] : kEndings) {
    if (!key_.ends_with(ending)) continue;
    key_.resize(key_.size() - ending.size());
    value_kind_ = kind;
    begin_value();
    return;
  }
}

void OutputParser::begin_value() {
  state_ = State::kValue;
  value_.clear();
  bool is_first = keys_.empty();
  is_repeated_key_ = !keys_.insert(key_).second;
  if (is_repeated_key_) return;
  std::string piece = is_first ? "{" : ", ";
  append_json_string(key_, piece);
  piece += value_kind_ == ValueKind::kString ? ": \"" : ": ";
  emit(OutputDelta::Kind::kArguments, piece);
}

void OutputParser::scan_value(std::string_view& text) {
  if (marker_.empty()) {
    std::size_t n = std::min(text.find('<'), text.size());
    value_text(text.substr(0, n));
    text.remove_prefix(n);
    if (text.empty()) return;
  }
  if (text[0] != kCloseDsml[marker_.size()]) {
    value_text(marker_);
    marker_.clear();
    return;
  }
  marker_ += text[0];
  text.remove_prefix(1);
  if (marker_ != kCloseDsml) return;
  marker_.clear();
  end_value();
}

void OutputParser::value_text(std::string_view text) {
  if (is_repeated_key_) return;
  if (value_kind_ != ValueKind::kString) {
    value_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(text, escaped);
  emit(OutputDelta::Kind::kArguments, escaped);
}

void OutputParser::end_value() {
  state_ = State::kParams;
  tail_.clear();
  if (is_repeated_key_) return;
  std::string piece;
  if (value_kind_ == ValueKind::kString) {
    piece = "\"";
  } else if (is_json(value_)) {
    piece = value_;
  } else {
    append_json_string(value_, piece);
  }
  emit(OutputDelta::Kind::kArguments, piece);
}

void OutputParser::emit(OutputDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  int call_index = kind == OutputDelta::Kind::kArguments ? num_calls_ - 1 : -1;
  if (!deltas_->empty() && deltas_->back().kind == kind && deltas_->back().call_index == call_index) {
    deltas_->back().text += text;
  } else {
    deltas_->push_back({.kind = kind, .call_index = call_index, .text = std::string(text)});
  }
}

// ---- whole messages -------------------------------------------------------------------------------------------------

std::string_view OutputParser::finish_reason(std::string_view engine_reason) const {
  if (engine_reason == "length" || engine_reason == "content_filter") return engine_reason;
  return num_calls_ > 0 ? "tool_calls" : "stop";
}

void ParsedOutput::add(const OutputDelta& delta) {
  switch (delta.kind) {
    case OutputDelta::Kind::kReasoning:
      reasoning = reasoning.value_or("") + delta.text;
      break;
    case OutputDelta::Kind::kContent:
      content += delta.text;
      break;
    case OutputDelta::Kind::kCall:
      calls.push_back({.name = delta.text, .arguments = {}});
      break;
    case OutputDelta::Kind::kArguments:
      calls.back().arguments += delta.text;
      break;
  }
}

ParsedOutput parse_output(std::string_view text, const OutputFormat& format, std::string_view engine_reason) {
  OutputParser parser(format);
  std::vector<OutputDelta> deltas;
  parser.push(text, deltas);
  parser.finish(deltas);
  ParsedOutput output;
  for (const OutputDelta& delta : deltas) output.add(delta);
  output.finish_reason = parser.finish_reason(engine_reason);
  return output;
}

std::string make_call_id(int index, uint64_t random_a, uint64_t random_b) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id = fmt::format("call_{:02}_", index);
  for (uint64_t random : {random_a, random_b}) {
    for (int i = 0; i < 10; ++i, random /= kLetters.size()) id += kLetters[random % kLetters.size()];
  }
  return id;
}

}  // namespace deepinfer::text
