// JSON values that keep the spelling of numbers and the order of members.
//
// Prompts contain JSON that the user gave (tool schemas, arguments), integers of any size included, so a tree that
// turns numbers into machine types will not do. The tree is one flat array of nodes over the text itself: strings are
// unescaped in place, which never needs more room. 260,000 strings of a tokenizer.json take 10 ms.
//
// Rejected: invalid UTF-8, lone surrogate escapes, control characters in strings, nesting above the limit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::text {

class JsonTree;

// A value inside a tree, valid while the tree stays where it is. A default one is "missing": what find() returns for no
// member.
class JsonValue {
 public:
  enum class Type : uint8_t { kMissing, kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

  JsonValue() = default;
  Type type() const;
  bool is_missing() const { return tree_ == nullptr; }
  bool is_given() const { return tree_ != nullptr && type() != Type::kNull; }  // there and not null
  bool is_string() const { return type() == Type::kString; }
  bool is_number() const { return type() == Type::kNumber; }
  bool is_array() const { return type() == Type::kArray; }
  bool is_object() const { return type() == Type::kObject; }
  bool is_true() const { return type() == Type::kTrue; }
  bool is_bool() const { return type() == Type::kTrue || type() == Type::kFalse; }

  std::string_view text() const;  // of a string: its characters; of a number: its spelling; else empty
  std::string_view key() const;   // name inside the object it belongs to
  int size() const;               // members or elements

  // The member of that name, the last one if there are several; missing in anything but an object.
  JsonValue find(std::string_view name) const;

  // Children in order: for (JsonValue child : value).
  class Iterator;
  Iterator begin() const;
  Iterator end() const;

 private:
  friend class JsonTree;
  friend class Iterator;
  JsonValue(const JsonTree* tree, uint32_t index) : tree_(tree), index_(index) {}

  const JsonTree* tree_ = nullptr;
  uint32_t index_ = 0;
};

class JsonTree {
 public:
  // The error names the byte offset.
  static Result<JsonTree> parse(std::string text, int max_depth = 128);
  JsonValue root() const { return {this, 0}; }

 private:
  friend class JsonValue;
  friend class JsonParser;
  struct Node {
    uint32_t key_begin = 0, key_size = 0;
    uint32_t begin = 0, size = 0;  // text of strings and numbers; size counts the children of arrays and objects
    uint32_t next = 0;             // node behind this one and all it holds
    JsonValue::Type type = JsonValue::Type::kNull;
  };

  std::string text_;
  std::vector<Node> nodes_;
};

class JsonValue::Iterator {
 public:
  Iterator(const JsonTree* tree, uint32_t index) : tree_(tree), index_(index) {}
  JsonValue operator*() const { return {tree_, index_}; }
  Iterator& operator++();
  bool operator==(const Iterator&) const = default;

 private:
  const JsonTree* tree_;
  uint32_t index_;
};

// How JSON is written: prompts use ", " and ": ", constraints neither space.
enum class JsonStyle { kSpaced, kCompact };

// Members in order; of several with one name the first position and the last value.
std::vector<JsonValue> unique_members(JsonValue object);

// Appends the value. Integers keep their spelling, floats take Python's shortest layout (1.0, 1e+20); of members with
// one name the first position and the last value stay.
void append_json(JsonValue value, JsonStyle style, std::string& out);

// Appends the characters of a JSON string without its quotes: escapes for ", \ and control characters only.
void append_json_escaped(std::string_view text, std::string& out);
void append_json_string(std::string_view text, std::string& out);  // with quotes

// True if the whole text is one JSON value, white space around it allowed.
bool is_json(std::string_view text);

}  // namespace deepinfer::text
