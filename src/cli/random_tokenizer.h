// A tokenizer.json for generated checkpoints: byte-level BPE over invented words.
//
//   ids in ascending order, those of the configuration's special tokens left out:
//     256 single bytes | words of 2, 3, 4 letters, each a known word plus a letter | spaced words " ab", ... | control
//     tokens
//   Compressed ids: the 26 capitals fold onto small letters, tab, CR and LF onto space, a spaced word onto its word,
//   and nothing else folds. So the number of spaced words sets the size of the compressed vocabulary exactly.
#pragma once

#include <string>

#include "base/result.h"
#include "weights/config.h"

namespace deepinfer {

// kInvalid: the sizes or ids of the configuration cannot be met.
Result<std::string> random_tokenizer(const ModelConfig& config);

}  // namespace deepinfer
