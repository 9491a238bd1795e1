// What a structured output may ask for at most: found before anything is compiled, so that a hostile schema costs
// nothing. Time is bounded as well: a compilation has a deadline (compiler.h), a token has kMaxTokenMs.
#pragma once

#include <cstddef>

namespace deepinfer::grammar {

inline constexpr std::size_t kMaxSchemaBytes = 256 << 10;
inline constexpr int kMaxDepth = 64;       // of JSON, and of brackets in a regular expression or a grammar
inline constexpr int kMaxRepeat = 4096;    // a count in a regular expression or a grammar, and of the counts around it
inline constexpr int kMaxTrigger = 64;     // tokens
inline constexpr int kMaxTokenMs = 2'000;  // for one token of one sequence; ordinary grammars take microseconds
// Spaces, tabs and line breaks in a row between two parts of a JSON document: enough for an indented one, and a model
// that falls into writing spaces gets out of it.
inline constexpr int kMaxJsonSpace = 16;

}  // namespace deepinfer::grammar
