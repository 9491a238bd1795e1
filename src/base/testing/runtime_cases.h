// Reads tests/golden/cases/runtime_cases.json. For tests only: DI_SOURCE_DIR is defined there.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace deepinfer::testing_cases {

// The cases of a group, by value: iterate over the result directly.
inline json::array runtime_cases(const char* group) {
  auto file = json::parse_file(DI_SOURCE_DIR "/tests/golden/cases/runtime_cases.json");
  if (!file) return {};
  return file->at("cases").at(group).as_array();
}

template <typename T>
T number(const json::value& object, const char* key) {
  return object.at(key).to_number<T>();
}

// A list of numbers; null gives an empty one.
template <typename T>
std::vector<T> numbers(const json::value& v) {
  std::vector<T> out;
  if (v.is_array())
    for (const auto& x : v.as_array()) out.push_back(x.to_number<T>());
  return out;
}

template <typename T>
std::vector<std::vector<T>> table(const json::value& v) {
  std::vector<std::vector<T>> out;
  for (const auto& row : v.as_array()) out.push_back(numbers<T>(row));
  return out;
}

inline std::string name_of(const json::value& c) {
  return c.as_object().contains("name") ? std::string(c.at("name").as_string()) : json::dump(c.at("inputs"));
}

}  // namespace deepinfer::testing_cases
