// Names for requests, answers and calls: unique, and not to be guessed by other clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::serve {

// `prefix` and 24 random letters and digits.
std::string new_id(std::string_view prefix);
// Of a tool call, in the form of text::make_call_id.
std::string new_call_id(int index);
int64_t unix_seconds();

}  // namespace deepinfer::serve
