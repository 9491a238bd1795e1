// Cuts text into the pieces inside which byte pairs merge. A linear scanner; no regular expression engine.
//
// kDeepSeek: three splits one after the other, each inside the pieces of the one before, matches and gaps both kept:
//   1  \p{N}{1,3}
//   2  [U+4E00-9FA5 U+3040-309F U+30A0-30FF]+
//   3  [!-/:-@[-`{-~][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S)
//   | \s+ The first two cut where the class of a character changes, so one scan does all three: a character that does
//   not belong to the segment of the scan's start counts as the end of the text, as look-ahead wants it.
// kGpt2: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

namespace deepinfer::text {

enum class SplitScheme { kDeepSeek, kGpt2 };

// End of the piece that starts at `begin`. [begin, end) is not empty, is well-formed UTF-8, and `begin` is a piece
// border.
const char* piece_end(SplitScheme scheme, const char* begin, const char* end);

}  // namespace deepinfer::text
