// Look-up of long prompts in the prefix index: naming the blocks, finding the chain, comparing the ids.
#include <vector>

#include <benchmark/benchmark.h>

#include "cache/prefix_index.h"

namespace deepinfer::cache {
namespace {

void look_up(benchmark::State& state) {
  auto num_tokens = static_cast<std::size_t>(state.range(0));
  auto whole = static_cast<int64_t>(num_tokens / kBlockPositions);
  BlockAllocator blocks(static_cast<int32_t>(whole) + 1);
  PrefixIndex index(blocks, BlockNamer("key", {}));
  std::vector<int32_t> prompt(num_tokens);
  for (std::size_t i = 0; i < num_tokens; ++i) prompt[i] = static_cast<int32_t>(i * 2654435761u % 129280);
  ChainPosition end = index.open("salt");
  for (int64_t i = 0; i < whole; ++i)
    index.publish(end, std::span(prompt).subspan(static_cast<std::size_t>(i) * kBlockPositions, kBlockPositions),
                  index.take().value(), Provenance::kExact);
  for (auto _ : state) benchmark::DoNotOptimize(index.probe("salt", prompt, whole - 1, false));
}
BENCHMARK(look_up)->Arg(4096)->Arg(131072)->Arg(1 << 20)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepinfer::cache

BENCHMARK_MAIN();
