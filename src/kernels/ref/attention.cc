// Attention with a sink over the window and the chosen entries (model.md 3.5).
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/dot.h"
#include "kernels/ref/formats.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {
namespace {

// All keys of row t, decoded, one after the other.
std::vector<double> gather_keys(const AttentionParams& p, int64_t t) {
  const Run& run = p.batch->runs[p.batch->run_of_row[t]];
  const int64_t dim = p.head_dim, pos = p.batch->positions[t], window = p.window.window;
  const int64_t end = p.block_mask ? run.first_pos + run.num_rows : pos + 1;
  const int64_t oldest = p.block_mask ? run.first_pos - window : pos - window + 1;
  const int64_t begin = std::max({oldest, run.window_floor, int64_t{0}});
  const int64_t record_bytes = window_record_bytes(p.window.format, p.head_dim);

  std::vector<double> keys;
  std::vector<float> key(static_cast<size_t>(dim));
  for (int64_t s = begin; s < end; ++s) {
    const std::byte* record = s >= run.first_pos ? p.records + (run.row_begin + s - run.first_pos) * record_bytes
                                                 : p.window.record(run.slot, s);
    decode_window(p.window.format, record, p.head_dim, key.data());
    keys.insert(keys.end(), key.begin(), key.end());
  }
  for (int64_t i = 0; i < p.chosen.cols; ++i) {
    const int32_t group = p.chosen.row<int32_t>(t)[i];
    if (group < 0) continue;
    decode_entry(p.global, run.block_table, group, key.data());
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

}  // namespace

void RefOps::attention(Stream& stream, const AttentionParams& p) {
  const int64_t dim = p.head_dim, pairs = p.rope.cos.cols;
  pool_of(stream).each(p.q.rows, [&](int64_t t) {
    const std::vector<double> keys = gather_keys(p, t);
    const int64_t num_keys = static_cast<int64_t>(keys.size()) / dim;
    std::vector<float> queries(p.q.f32(t), p.q.f32(t) + p.heads * dim);
    auto query = [&](int64_t h) { return queries.data() + h * dim; };
    for (int h = 0; h < p.heads; ++h) rotate_row(query(h), dim, p.rope.cos.f32(t), p.rope.sin.f32(t), pairs);
    Matrix scores(p.heads, num_keys);
    dots(p.heads, query, num_keys, keys.data(), dim,
         [&](int64_t h, int64_t k, double sum) { scores.row(h)[k] = static_cast<float>(sum) * p.scale; });
    for (int h = 0; h < p.heads; ++h) {
      const float* score = scores.row(h);
      float top = -1e30f;  // stands for "no key": the sink then takes everything and the result is 0
      for (int64_t k = 0; k < num_keys; ++k) top = std::max(top, score[k]);
      double denominator = 0;
      std::vector<double> sum(static_cast<size_t>(dim));
      for (int64_t k = 0; k < num_keys; ++k) {
        const float e = std::exp(score[k] - top);
        denominator += e;
        add_scaled(sum.data(), r(e), keys.data() + k * dim, dim);  // rounded here, not in the denominator
      }
      const float total = static_cast<float>(denominator) + std::exp(p.sink[h] - top);
      float* out = p.out.f32(t) + h * dim;
      for (int64_t c = 0; c < dim; ++c) out[c] = r(static_cast<float>(sum[c]) / total);
      rotate_row(out, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), pairs, true);
    }
  });
}

}  // namespace deepinfer::kernels::ref
