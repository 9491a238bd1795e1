// The client's side of server-sent events: bytes, however they are cut, to the data of events.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::serve {

class SseReader {
 public:
  // Calls `on_data` with the data of every event that `bytes` completes. Comments and names of events are dropped.
  template <typename F>
  void push(std::string_view bytes, F on_data) {
    for (char c : bytes) {
      if (c == '\r') continue;
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (!line_.empty()) {
        take_line();
      } else if (has_data_) {
        has_data_ = false;
        on_data(std::string_view(data_));
        data_.clear();
      }
      line_.clear();
    }
  }
  // True between events: a stream that ends elsewhere was cut.
  bool is_between_events() const { return line_.empty() && !has_data_; }

 private:
  void take_line() {
    constexpr std::string_view kData = "data:";
    std::string_view line = line_;
    if (!line.starts_with(kData)) return;
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }

  std::string line_, data_;
  bool has_data_ = false;
};

}  // namespace deepinfer::serve
