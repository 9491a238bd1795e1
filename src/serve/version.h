// The version of the program, from CMakeLists.txt.
#pragma once

#include <string_view>

namespace deepinfer::serve {

inline constexpr std::string_view kVersion = DI_VERSION;

}  // namespace deepinfer::serve
