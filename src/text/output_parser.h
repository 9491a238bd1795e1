// What the model writes -> reasoning, content and tool calls, as it comes.
//
//   Reasoning --</think>--> Text --<｜DSML｜--> Calls --invoke name="--> Name --"--> Params --parameter name="--> Key
//       \______________________________________/  |  \__</｜DSML｜______________________/ \__</｜DSML｜__ Value <--/
//                                                 +--</｜DSML｜ calls>--> Done
//
// The result does not depend on how the text is cut: a run of line breaks and the beginning of a marker are held back
// until it is clear what they are. Linear in the text. Where output is malformed the parser repairs what it can:
// arguments of calls that were closed are always JSON. Control tokens arrive spelled out (Detokenizer with special
// tokens kept); the stop token does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/json_window.h"
#include "text/stop_strings.h"

namespace deepinfer::text {

struct OutputFormat {
  enum class Start {
    kText,  // not thinking
    kReasoning,
    kReasoningContinuation,  // the prompt ends inside reasoning
    kTextContinuation,       // the prompt ends inside the answer
    kCalls,                  // the prompt ends inside an opened block of calls
  };
  Start start = Start::kText;
  bool parses_tool_calls = false;  // no: their markup is text
  bool is_json = false;            // JSON output mode
  std::vector<std::string> stops;  // matched in content only
};

struct OutputDelta {
  enum class Kind {
    kReasoning,
    kContent,
    kCall,       // a call begins; text is the function's name
    kArguments,  // a piece of the arguments' JSON
  };
  Kind kind = Kind::kContent;
  int call_index = -1;  // of kCall and kArguments
  std::string text;
  bool operator==(const OutputDelta&) const = default;
};

class OutputParser {
 public:
  explicit OutputParser(const OutputFormat& format);

  // Appends what became certain with `text`; neighbours of one kind are joined.
  void push(std::string_view text, std::vector<OutputDelta>& deltas);
  // The output ended: appends what was held back.
  void finish(std::vector<OutputDelta>& deltas);

  // Nothing further belongs to the message: a stop string was found or the block of calls was closed.
  bool is_done() const { return state_ == State::kDone; }
  bool is_reasoning() const { return state_ == State::kReasoning; }
  std::optional<int> stop_index() const { return stops_.found(); }
  int num_calls() const { return num_calls_; }

  // The finish_reason of the API: `length` and `content_filter` stay, else `tool_calls` if there was a call, else
  // `stop`.
  std::string_view finish_reason(std::string_view engine_reason) const;

 private:
  enum class State { kReasoning, kText, kCalls, kName, kParams, kKey, kValue, kDone };
  enum class Marker { kNone, kPartial, kEndThink, kDsml, kThink, kEos };
  enum class ValueKind { kString, kJson, kUnknown };

  void scan_text(std::string_view& text);
  void scan_calls(std::string_view& text);
  void scan_name(std::string_view& text);
  void scan_params(std::string_view& text);
  void scan_key(std::string_view& text);
  void scan_value(std::string_view& text);

  Marker match_marker() const;
  void on_marker(Marker marker);
  void plain(std::string_view text);
  void content(std::string_view text);
  void end_content();
  void begin_value();
  void value_text(std::string_view text);
  void end_value();
  void remember(std::string_view text);
  void emit(OutputDelta::Kind kind, std::string_view text);

  OutputFormat format_;
  State state_;
  std::vector<OutputDelta>* deltas_ = nullptr;  // the caller's, during a call
  int num_calls_ = 0;

  bool is_at_start_ = true;   // of reasoning or text: line breaks are dropped
  int64_t num_newlines_ = 0;  // held back
  std::string marker_;        // beginning of a marker, held back
  StopStrings stops_;
  JsonWindow json_;

  std::string tail_;  // last bytes of what Calls and Params skip
  std::string name_, key_;
  std::unordered_set<std::string> keys_;  // of the current call
  ValueKind value_kind_ = ValueKind::kString;
  bool is_repeated_key_ = false;
  std::string value_;  // a value that is not a string is held until its end
};

// The whole message.
struct ParsedOutput {
  struct Call {
    std::string name, arguments;
  };
  std::optional<std::string> reasoning;
  std::string content;
  std::vector<Call> calls;
  std::string finish_reason;

  void add(const OutputDelta& delta);
};
ParsedOutput parse_output(std::string_view text, const OutputFormat& format, std::string_view engine_reason = "stop");

// Id of a call from its index and 128 random bits: "call_00_" and 20 letters or digits.
std::string make_call_id(int index, uint64_t random_a, uint64_t random_b);

}  // namespace deepinfer::text
