#include "cli/quantity.h"

#include <charconv>
#include <cmath>

namespace deepinfer {

Result<int64_t> parse_quantity(std::string_view option, std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  double value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  if (rest.ends_with("iB")) rest.remove_suffix(2);
  if (rest.ends_with("B")) rest.remove_suffix(1);
  const size_t unit = rest.empty() ? 0 : kUnits.find(rest) + 1;
  const double scaled = std::ldexp(value, 10 * static_cast<int>(unit));
  if (ec != std::errc() || rest.size() > 1 || (!rest.empty() && unit == 0) || !(scaled >= 0 && scaled < 0x1p62)) {
    return fail(Code::kInvalid, "{} is '{}', allowed are numbers with K, M, G or T", option, text);
  }
  return static_cast<int64_t>(scaled);
}

std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace deepinfer
