#include "cli/grammar_flags.h"

#include "base/file.h"
#include "base/json.h"
#include "cli/command.h"

namespace deepinfer {

void GrammarFlags::add_to(Command& command) {
  command.option("--json-schema", schema_file, "file with a JSON schema that the answer follows");
  command.flag("--json-object", is_json_object, "the answer is a JSON object");
  command.option("--regex", regex, "regular expression that the whole answer matches");
  command.option("--grammar", grammar_file, "file with an EBNF grammar (first rule: root) that the answer follows");
  command.option("--choice", choices, "a text that the answer may be; repeated for each").one_value_each();
}

Result<std::optional<StructuredOutput>> GrammarFlags::get() const {
  int given = !schema_file.empty() + !regex.empty() + !grammar_file.empty() + !choices.empty() + is_json_object;
  if (given == 0) return std::nullopt;
  if (given > 1)
    return fail(Code::kInvalid,
                "only one of --json-schema, --json-object, --regex, --grammar and --choice can be given");
  StructuredOutput output{.schema_type = "json_object"};
  if (!schema_file.empty()) {
    output.schema_type = "json";
    DI_TRY(output.schema, read_file(schema_file));
  } else if (!regex.empty()) {
    output.schema_type = "regex";
    output.schema = regex;
  } else if (!grammar_file.empty()) {
    output.schema_type = "ebnf";
    DI_TRY(output.schema, read_file(grammar_file));
  } else if (!choices.empty()) {
    output.schema_type = "choice";
    output.schema = json::dump(json::array(choices.begin(), choices.end()));
  }
  return output;
}

}  // namespace deepinfer
