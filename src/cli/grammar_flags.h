// What an answer must look like, on a command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {
class Command;

// Adds --json-schema, --json-object, --regex, --grammar, --choice.
struct GrammarFlags {
  std::string schema_file, regex, grammar_file;
  std::vector<std::string> choices;
  bool is_json_object = false;

  void add_to(Command& command);
  // Reads the file; at most one of the options may be given.
  Result<std::optional<StructuredOutput>> get() const;
};

}  // namespace deepinfer
