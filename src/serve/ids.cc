#include "serve/ids.h"

#include <chrono>

#include <openssl/rand.h>

#include "base/check.h"
#include "text/output_parser.h"

namespace deepinfer::serve {

std::string new_id(std::string_view prefix) {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  unsigned char bytes[24];
  DI_CHECK(RAND_bytes(bytes, sizeof bytes) == 1, "no random bytes");
  std::string id(prefix);
  for (unsigned char b : bytes) id += kAlphabet[b % kAlphabet.size()];
  return id;
}

std::string new_call_id(int index) {
  uint64_t random[2];
  DI_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(random), sizeof random) == 1, "no random bytes");
  return text::make_call_id(index, random[0], random[1]);
}

int64_t unix_seconds() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace deepinfer::serve
