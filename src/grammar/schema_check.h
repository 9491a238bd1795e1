// JSON schemas and regular expressions that the grammar library would accept and then not obey, or that would cost too
// much: refused by name.
//
//   The library ignores some keywords altogether, and where one of $ref, const, enum, anyOf, oneOf, allOf is given, all
//   keywords beside it. Annotations (title, default, format without a known meaning, ...) are fine.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer::grammar {

// `schema`: JSON text. kInvalid or kUnsupported, with the place as a JSON pointer.
Result<void> check_json_schema(std::string_view schema);

// Brackets and counts of a regular expression or, with `is_grammar`, of an EBNF grammar (whose strings are skipped).
Result<void> check_pattern(std::string_view pattern, bool is_grammar);

}  // namespace deepinfer::grammar
