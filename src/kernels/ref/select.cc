// Index scores and the choice of compressed entries (model.md 3.4).
#include <algorithm>
#include <limits>
#include <vector>

#include "base/math.h"
#include "kernels/ref/dot.h"
#include "kernels/ref/formats.h"
#include "kernels/ref/ref_ops.h"
#include "kernels/ref/top_k.h"

namespace deepinfer::kernels::ref {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void write_padded(const std::vector<int32_t>& ids, const TensorView& out, int64_t row) {
  int32_t* to = out.row<int32_t>(row);
  std::fill(std::copy(ids.begin(), ids.end(), to), to + out.cols, -1);
}

std::vector<int32_t> best_blocks(const SelectParams& p, const std::vector<float>& scores) {
  const int64_t size = p.candidate_block_size, visible = static_cast<int64_t>(scores.size());
  std::vector<float> best(static_cast<size_t>(ceil_div(visible, size)), -kInfinity);
  for (int64_t g = 0; g < visible; ++g) best[g / size] = std::max(best[g / size], scores[g]);
  if (!best.empty()) best.back() = kInfinity;  // the block of the newest visible entry
  return top_k_indices(best, p.candidate_blocks);
}

}  // namespace

void RefOps::select(Stream& stream, const SelectParams& p) {
  const int64_t dim = p.q.cols / p.heads;
  pool_of(stream).each(p.q.rows, [&](int64_t t) {
    const Run& run = p.batch->runs[p.batch->run_of_row[t]];
    const int64_t visible = (p.batch->positions[t] + 1) / p.cache.ratio;
    std::vector<float> q(p.q.f32(t), p.q.f32(t) + p.q.cols), head_weight(static_cast<size_t>(p.heads));
    for (int h = 0; h < p.heads; ++h) {
      rotate_row(&q[h * dim], dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols);
      if (rounds_caches(numerics_)) round_fp4e8(&q[h * dim], dim);
      head_weight[h] = r(p.head_weights.f32(t)[h] * p.head_scale);
    }

    const std::vector<double> queries = widened(q);
    std::vector<float> scores(static_cast<size_t>(visible), -kInfinity), key(static_cast<size_t>(dim));
    auto score = [&](int64_t g) {
      decode_index_key(p.cache, run.block_table, g, key.data());
      const std::vector<double> wide_key = widened(key);
      double sum = 0;
      for (int h = 0; h < p.heads; ++h) {
        const float similarity = std::max(0.f, r(static_cast<float>(dot(&queries[h * dim], wide_key.data(), dim))));
        sum += r(similarity * head_weight[h]);
      }
      scores[g] = r(static_cast<float>(sum));
    };
    if (p.role == SelectParams::Role::kChooser) {
      for (int64_t i = 0; i < p.candidates.cols; ++i) {
        const int64_t block = p.candidates.row<int32_t>(t)[i], size = p.candidate_block_size;
        if (block < 0) continue;
        for (int64_t g = block * size; g < std::min(visible, (block + 1) * size); ++g) score(g);
      }
    } else {
      for (int64_t g = 0; g < visible; ++g) score(g);
    }

    if (p.role == SelectParams::Role::kSource) write_padded(best_blocks(p, scores), p.candidates, t);
    write_padded(top_k_indices(scores, p.top_k), p.chosen, t);
  });
}

}  // namespace deepinfer::kernels::ref
