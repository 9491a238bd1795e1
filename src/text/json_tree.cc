#include "text/json_tree.h"

#include <limits>

#include "text/utf8.h"

namespace deepinfer::text {

using Type = JsonValue::Type;

// Recursive descent over the tree's own text; depth is bounded by the caller's limit.
class JsonParser {
 public:
  JsonParser(JsonTree& tree, int max_depth) : tree_(tree), text_(tree.text_), max_depth_(max_depth) {}

  Result<void> run() {
    skip_space();
    bool is_good = value(0);
    skip_space();
    if (is_good && at_ != text_.size()) is_good = wrong("text after the value");
    if (!is_good) return fail(Code::kInvalid, "not valid JSON at byte {}: {}", at_, problem_);
    return {};
  }

 private:
  using Node = JsonTree::Node;

  bool wrong(const char* problem) {
    problem_ = problem;
    return false;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
      ++at_;
    }
  }
  uint32_t add(Type type) {
    tree_.nodes_.push_back({.type = type});
    return static_cast<uint32_t>(tree_.nodes_.size() - 1);
  }
  void finish(uint32_t node) { tree_.nodes_[node].next = static_cast<uint32_t>(tree_.nodes_.size()); }

  bool value(int depth) {
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"': {
        uint32_t node = add(Type::kString), begin = 0, size = 0;
        if (!string(begin, size)) return false;
        tree_.nodes_[node].begin = begin;
        tree_.nodes_[node].size = size;
        finish(node);
        return true;
      }
      case 't':
        return word("true", Type::kTrue);
      case 'f':
        return word("false", Type::kFalse);
      case 'n':
        return word("null", Type::kNull);
      default:
        return number();
    }
  }

  bool word(std::string_view name, Type type) {
    if (std::string_view(text_).substr(at_, name.size()) != name) return wrong("unknown word");
    at_ += name.size();
    finish(add(type));
    return true;
  }

  bool object(int depth) {
    if (depth >= max_depth_) return wrong("nested too deeply");
    uint32_t node = add(Type::kObject), count = 0;
    ++at_;
    skip_space();
    if (peek() == '}') {
      ++at_;
      finish(node);
      return true;
    }
    for (;; ++count) {
      uint32_t begin = 0, size = 0;
      if (peek() != '"') return wrong("a member name in quotes was expected");
      if (!string(begin, size)) return false;
      skip_space();
      if (peek() != ':') return wrong("a colon was expected");
      ++at_;
      skip_space();
      auto child = static_cast<uint32_t>(tree_.nodes_.size());
      if (!value(depth + 1)) return false;
      tree_.nodes_[child].key_begin = begin;
      tree_.nodes_[child].key_size = size;
      skip_space();
      if (peek() == '}') break;
      if (peek() != ',') return wrong("a comma or } was expected");
      ++at_;
      skip_space();
    }
    ++at_;
    tree_.nodes_[node].size = count + 1;
    finish(node);
    return true;
  }

  bool array(int depth) {
    if (depth >= max_depth_) return wrong("nested too deeply");
    uint32_t node = add(Type::kArray), count = 0;
    ++at_;
    skip_space();
    if (peek() == ']') {
      ++at_;
      finish(node);
      return true;
    }
    for (;; ++count) {
      if (!value(depth + 1)) return false;
      skip_space();
      if (peek() == ']') break;
      if (peek() != ',') return wrong("a comma or ] was expected");
      ++at_;
      skip_space();
    }
    ++at_;
    tree_.nodes_[node].size = count + 1;
    finish(node);
    return true;
  }

  bool digits() {
    std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > begin;
  }

  bool number() {
    std::size_t begin = at_;
    if (peek() == '-') ++at_;
    bool has_leading_zero = peek() == '0';
    std::size_t first = at_;
    if (!digits()) return wrong("a value was expected");
    if (has_leading_zero && at_ - first > 1) return wrong("a number with a leading zero");
    if (peek() == '.') {
      ++at_;
      if (!digits()) return wrong("digits were expected");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!digits()) return wrong("digits were expected");
    }
    uint32_t node = add(Type::kNumber);
    tree_.nodes_[node].begin = static_cast<uint32_t>(begin);
    tree_.nodes_[node].size = static_cast<uint32_t>(at_ - begin);
    finish(node);
    return true;
  }

  // Unescapes in place; the result lies at [begin, begin + size).
  bool string(uint32_t& begin, uint32_t& size) {
    ++at_;
    begin = static_cast<uint32_t>(at_);
    auto is_plain = [](char c) { return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20; };
    while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
    std::size_t to = at_;
    for (;;) {
      if (at_ >= text_.size()) return wrong("the string does not end");
      char c = text_[at_];
      if (c == '"') break;
      if (c == '\\') {
        if (!escape(to)) return false;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        return wrong("a control character in a string");
      } else {
        text_[to++] = c;
        ++at_;
      }
    }
    ++at_;
    size = static_cast<uint32_t>(to - begin);
    return true;
  }

  bool escape(std::size_t& to) {
    ++at_;
    char c = peek();
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (auto i = kNames.find(c); i != kNames.npos && c != '\0') {
      ++at_;
      text_[to++] = kMeanings[i];
      return true;
    }
    if (c != 'u') return wrong("unknown escape");
    ++at_;
    uint32_t unit = 0, low = 0;
    if (!hex4(unit)) return false;
    if (unit >= 0xDC00 && unit < 0xE000) return wrong("a lone surrogate escape");
    if (unit >= 0xD800 && unit < 0xDC00) {
      if (std::string_view(text_).substr(at_, 2) != "\\u") return wrong("a lone surrogate escape");
      at_ += 2;
      if (!hex4(low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return wrong("a lone surrogate escape");
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    std::string bytes;
    append_utf8(unit, bytes);
    for (char b : bytes) text_[to++] = b;
    return true;
  }

  bool hex4(uint32_t& unit) {
    for (int i = 0; i < 4; ++i, ++at_) {
      char c = peek();
      uint32_t digit;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if (char lower = static_cast<char>(c | 0x20); lower >= 'a' && lower <= 'f') {
        digit = static_cast<uint32_t>(lower - 'a' + 10);
      } else {
        return wrong("four hexadecimal digits were expected");
      }
      unit = unit << 4 | digit;
    }
    return true;
  }

  JsonTree& tree_;
  std::string& text_;
  int max_depth_;
  std::size_t at_ = 0;
  const char* problem_ = "";
};

Result<JsonTree> JsonTree::parse(std::string text, int max_depth) {
  if (text.size() > std::numeric_limits<uint32_t>::max()) {
    return fail(Code::kInvalid, "JSON of {} bytes exceeds the limit of 4 GiB", text.size());
  }
  if (!is_valid_utf8(text)) return fail(Code::kInvalid, "not valid JSON: the text is not valid UTF-8");
  JsonTree tree;
  tree.text_ = std::move(text);
  DI_TRY_VOID(JsonParser(tree, max_depth).run());
  return tree;
}

bool is_json(std::string_view text) {
  return JsonTree::parse(std::string(text)).has_value();
}

Type JsonValue::type() const {
  return tree_ == nullptr ? Type::kMissing : tree_->nodes_[index_].type;
}

std::string_view JsonValue::text() const {
  if (!is_string() && !is_number()) return {};
  const auto& node = tree_->nodes_[index_];
  return std::string_view(tree_->text_).substr(node.begin, node.size);
}

std::string_view JsonValue::key() const {
  if (tree_ == nullptr) return {};
  const auto& node = tree_->nodes_[index_];
  return std::string_view(tree_->text_).substr(node.key_begin, node.key_size);
}

int JsonValue::size() const {
  return is_array() || is_object() ? static_cast<int>(tree_->nodes_[index_].size) : 0;
}

JsonValue JsonValue::find(std::string_view name) const {
  JsonValue found;
  if (!is_object()) return found;
  for (JsonValue child : *this) {
    if (child.key() == name) found = child;
  }
  return found;
}

JsonValue::Iterator JsonValue::begin() const {
  return {tree_, is_array() || is_object() ? index_ + 1 : index_};
}

JsonValue::Iterator JsonValue::end() const {
  return {tree_, is_array() || is_object() ? tree_->nodes_[index_].next : index_};
}

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  index_ = tree_->nodes_[index_].next;
  return *this;
}

}  // namespace deepinfer::text
