// Integer helpers and the typed views of raw bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace deepinfer {

template <typename T>
constexpr T ceil_div(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}
template <typename T>
constexpr T round_up(T a, std::type_identity_t<T> b) {
  return ceil_div(a, b) * b;
}
template <typename T>
constexpr T round_down(T a, std::type_identity_t<T> b) {
  return a / b * b;
}

}  // namespace deepinfer
