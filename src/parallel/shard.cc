#include "parallel/shard.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace deepinfer::parallel {

Range shard_range(int64_t count, int64_t quantum, int num_parts, int part) {
  DI_CHECK(count >= 0 && quantum > 0 && part >= 0 && part < num_parts, "part {} of {} over {}", part, num_parts, count);
  int64_t units = ceil_div(count, quantum);
  auto border = [&](int p) { return std::min(count, units * p / num_parts * quantum); };
  return {border(part), border(part + 1)};
}

std::vector<int64_t> shard_bounds(int64_t count, int64_t quantum, int num_parts) {
  std::vector<int64_t> bounds = {0};
  for (int p = 0; p < num_parts; ++p) bounds.push_back(shard_range(count, quantum, num_parts, p).end);
  return bounds;
}

}  // namespace deepinfer::parallel
