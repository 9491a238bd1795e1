// Any bytes as tokenizer.json: an error that says something, or a tokenizer that gives every text back.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/compressed_vocabulary.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using namespace deepinfer;
using namespace deepinfer::text;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string json(reinterpret_cast<const char*>(data), size);
  auto tokenizer = Tokenizer::parse(json);
  if (!tokenizer) {
    DI_CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  // The file itself is text with a bit of everything.
  std::string expected;
  append_lossy(json, expected);
  std::vector<int32_t> ids, plain;
  tokenizer->encode(json, ids);
  tokenizer->encode_plain(json, plain);
  DI_CHECK(tokenizer->decode(ids) == expected);
  DI_CHECK(tokenizer->decode(plain) == expected);
  DI_CHECK(static_cast<int>(compress_vocabulary(*tokenizer).ids.size()) == tokenizer->num_ids());
  return 0;
}
