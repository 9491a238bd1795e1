// Drives a prefix index and a naive map of whole prefixes with the same random operations and compares them after each:
// for tests. Aborts (DI_CHECK) on the first difference.
//
//   Short alphabets make prompts share prefixes; a small pool forces eviction; short names force collisions.
#pragma once

#include <cstdint>

namespace deepinfer::cache::testing {

struct RandomOperations {
  uint32_t seed = 1;
  int num_operations = 1000;
  int32_t num_blocks = 60;
  int name_bits = 128;
};
void run_random_operations(const RandomOperations& settings);

}  // namespace deepinfer::cache::testing
