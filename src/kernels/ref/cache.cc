// What is written to the caches: window keys, pooled groups, compressed entries and index keys (model.md 3.3, 3.4).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/ref/formats.h"
#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels::ref {

void RefOps::window_keys(Stream& stream, const WindowKeyParams& p) {
  const int64_t dim = p.raw.cols, record_bytes = window_record_bytes(p.format, static_cast<int>(dim));
  pool_of(stream).split(p.raw.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> key(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      norm_row(p.raw.f32(t), p.gain, dim, p.eps, key.data());
      rotate_row(key.data(), dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols);
      encode_window(p.format, key.data(), static_cast<int>(dim), p.records + t * record_bytes);
    }
  });
}

void RefOps::window_store(Stream&, const WindowStoreParams& p) {
  const int64_t record_bytes = window_record_bytes(p.cache.format, p.cache.head_dim);
  for (const Run& run : p.batch->runs) {
    for (int64_t i = std::max(0, run.num_rows - p.cache.ring); i < run.num_rows; ++i) {
      std::memcpy(p.cache.record(run.slot, run.first_pos + i), p.records + (run.row_begin + i) * record_bytes,
                  static_cast<size_t>(record_bytes));
    }
  }
}

void RefOps::pool(Stream& stream, const PoolParams& p) {
  const int64_t dim = p.kv.cols;
  const int ratio = p.ratio;
  for (const GroupRun& groups : p.groups) {
    const Run& run = p.batch->runs[groups.run];
    pool_of(stream).split(groups.num_groups, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> pooled(static_cast<size_t>(dim)), share(static_cast<size_t>(ratio));
      std::vector<const float*> kv(static_cast<size_t>(ratio)), gate(static_cast<size_t>(ratio));
      for (int64_t g = begin; g < end; ++g) {
        for (int k = 0; k < ratio; ++k) {  // rows of this batch, or kept from earlier ones
          const int64_t pos = (groups.first_group + g) * ratio + k, row = run.row_begin + pos - run.first_pos;
          const bool is_new = pos >= run.first_pos;
          kv[k] = is_new ? p.kv.f32(row) : p.tail.record(run.slot, pos);
          if (ratio > 1) gate[k] = is_new ? p.gate.f32(row) : p.tail.record(run.slot, pos) + dim;
        }
        for (int64_t c = 0; c < dim; ++c) {
          if (ratio == 1) {
            pooled[c] = kv[0][c];
            continue;
          }
          float top = gate[0][c], sum = 0, mean = 0;
          for (int k = 1; k < ratio; ++k) top = std::max(top, gate[k][c]);
          for (int k = 0; k < ratio; ++k) share[k] = std::exp(gate[k][c] - top);
          for (int k = 0; k < ratio; ++k) sum += share[k];
          for (int k = 0; k < ratio; ++k) mean += kv[k][c] * (share[k] / sum);
          pooled[c] = r(mean);
        }
        norm_row(pooled.data(), p.gain, dim, p.eps, p.latent.f32(groups.group_begin + g));
      }
    });
  }
  if (ratio == 1) return;
  // The last rows of every run, of open and finished groups alike: positions may be taken back and their groups reopen.
  for (const Run& run : p.batch->runs) {
    for (int64_t i = std::max(0, run.num_rows - p.tail.ring); i < run.num_rows; ++i) {
      float* record = p.tail.record(run.slot, run.first_pos + i);
      std::copy_n(p.kv.f32(run.row_begin + i), dim, record);
      std::copy_n(p.gate.f32(run.row_begin + i), dim, record + dim);
    }
  }
}

void RefOps::global_write(Stream& stream, const GlobalWriteParams& p) {
  const int64_t dim = p.latent.cols, index_dim = p.key_raw.cols, pairs = static_cast<int64_t>(p.freq.size());
  for (const GroupRun& groups : p.groups) {
    const Run& run = p.batch->runs[groups.run];
    pool_of(stream).split(groups.num_groups, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> entry(static_cast<size_t>(dim)), key(static_cast<size_t>(index_dim));
      std::vector<float> cos(p.freq.size()), sin(p.freq.size());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = groups.first_group + i, pos = group * p.cache.ratio, row = groups.group_begin + i;
        if (pos < run.write_floor) continue;
        for (int64_t k = 0; k < pairs; ++k) {
          const double angle = static_cast<float>(pos) * p.freq[k];
          cos[k] = static_cast<float>(std::cos(angle));
          sin[k] = static_cast<float>(std::sin(angle));
        }
        norm_row(p.key_raw.f32(row), p.key_gain, index_dim, p.eps, key.data());
        rotate_row(key.data(), index_dim, cos.data(), sin.data(), pairs);
        encode_index_key(p.cache, run.block_table, group, key.data());
        std::copy_n(p.latent.f32(row), dim, entry.data());
        rotate_row(entry.data(), dim, cos.data(), sin.data(), pairs);
        encode_entry(p.cache, run.block_table, group, entry.data());
      }
    });
  }
}

}  // namespace deepinfer::kernels::ref
