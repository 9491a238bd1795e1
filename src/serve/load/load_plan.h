// When requests leave, what they ask and how long an answer they want; the same for the same seed.
//
//   lengths   "512" | "uniform:100:1000" | "normal:MEAN:DEVIATION" | "lognormal:MEDIAN:SIGMA"
//             tokens, at least 1; prefixes may have 0
//   trace     one JSON object a line: {"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [...]}
//             equal hash ids stand for equal blocks of the prompt, from its beginning
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/load/load.h"

namespace deepinfer::serve {

class Lengths {
 public:
  // Errors name `option` and what is allowed.
  static Result<Lengths> parse(std::string_view option, std::string_view text, int64_t least);
  int64_t draw(std::mt19937_64& random) const;

 private:
  enum class Kind { kFixed, kUniform, kNormal, kLogNormal };
  Kind kind_ = Kind::kFixed;
  double a_ = 0, b_ = 0;
  int64_t least_ = 0;
};

// A run of tokens that is made from its seed alone.
struct PromptPart {
  uint64_t seed = 0;
  int64_t tokens = 0;
};

struct PlannedRequest {
  double at_s = 0;  // after the begin
  std::vector<PromptPart> parts;
  int64_t output_tokens = 0;

  int64_t prompt_tokens() const;
};

// In order of time.
Result<std::vector<PlannedRequest>> plan_load(const LoadOptions& options);
// The ids of a prompt.
std::vector<int32_t> prompt_ids(const PlannedRequest& request, int32_t least, int32_t most);

}  // namespace deepinfer::serve
