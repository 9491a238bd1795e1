// What is written to the caches: window keys, pooled groups, compressed entries and index keys
// (model.md 3.3, 3.4, 6.3).
#pragma once

#include "kernels/cpu/body/records.h"

namespace deepinfer::kernels::cpu {
namespace DI_ISA {

void window_keys(const Context& ctx, const WindowKeyParams& p) {
  const int64_t dim = p.raw.cols, record_bytes = dim + dim / 32;
  for_rows(ctx, p.raw.rows, 4 * dim, [&](int64_t begin, int64_t end) {
    alignas(64) float key[kMaxDim];
    for (int64_t t = begin; t < end; ++t) {
      norm_row(p.raw.f32(t), p.gain, dim, p.eps, key);
      rotate_row(key, dim, p.rope.cos.f32(t), p.rope.sin.f32(t), p.rope.cos.cols, false, key);
      encode_window(key, dim, reinterpret_cast<uint8_t*>(p.records) + t * record_bytes);
    }
  });
}

void pool(const Context& ctx, const PoolParams& p) {
  const int64_t dim = p.kv.cols;
  for (const GroupRun& groups : p.groups) {
    const Run& run = p.batch->runs[static_cast<size_t>(groups.run)];
    for_rows(ctx, groups.num_groups, 8 * dim, [&](int64_t begin, int64_t end) {
      alignas(64) float pooled[kMaxDim];
      for (int64_t g = begin; g < end; ++g) {
        const float *kv[2] = {}, *gate[2] = {};
        for (int k = 0; k < p.ratio; ++k) {  // rows of this batch, or kept from earlier ones
          const int64_t pos = (groups.first_group + g) * p.ratio + k, row = run.row_begin + pos - run.first_pos;
          const bool is_new = pos >= run.first_pos;
          kv[k] = is_new ? p.kv.f32(row) : p.tail.record(run.slot, pos);
          if (p.ratio > 1) gate[k] = is_new ? p.gate.f32(row) : p.tail.record(run.slot, pos) + dim;
        }
        const float* c = kv[0];
        if (p.ratio == 2) {
          for (int64_t i = 0; i < dim; i += 16) {
            const VF a = load(gate[0] + i), b = load(gate[1] + i), top = vmax(a, b);
            const VF ea = vexp(sub(a, top)), eb = vexp(sub(b, top)), sum = add(ea, eb);
            const VF mean = add(mul(load(kv[0] + i), div(ea, sum)), mul(load(kv[1] + i), div(eb, sum)));
            store(pooled + i, mean);
          }
          c = pooled;
        }
        norm_row(c, p.gain, dim, p.eps, p.latent.f32(groups.group_begin + g));
      }
    });
  }
  if (p.ratio == 1) return;
  // The last rows of every run, of open and finished groups alike: positions may be taken back and their groups reopen.
  for (const Run& run : p.batch->runs) {
    for (int64_t i = run.num_rows > p.tail.ring ? run.num_rows - p.tail.ring : 0; i < run.num_rows; ++i) {
      float* record = p.tail.record(run.slot, run.first_pos + i);
      __builtin_memcpy(record, p.kv.f32(run.row_begin + i), static_cast<size_t>(dim) * 4);
      __builtin_memcpy(record + dim, p.gate.f32(run.row_begin + i), static_cast<size_t>(dim) * 4);
    }
  }
}

void global_write(const Context& ctx, const GlobalWriteParams& p) {
  const int64_t dim = p.latent.cols, index_dim = p.key_raw.cols, pairs = static_cast<int64_t>(p.freq.size());
  const int64_t per_block = p.cache.entries_per_block(), record_bytes = dim / 2 + dim / 16;
  for (const GroupRun& groups : p.groups) {
    const Run& run = p.batch->runs[static_cast<size_t>(groups.run)];
    for_rows(ctx, groups.num_groups, 16 * dim, [&](int64_t begin, int64_t end) {
      alignas(64) float row[kMaxDim], cos[kMaxDim / 2 + 16], sin[kMaxDim / 2 + 16];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = groups.first_group + i, pos = group * p.cache.ratio, at = groups.group_begin + i;
        if (pos < run.write_floor) continue;
        rope_angles(pos, p.freq.data(), pairs, cos, sin);
        const int64_t block = run.block_table[group / per_block], entry = group % per_block;
        norm_row(p.key_raw.f32(at), p.key_gain, index_dim, p.eps, row);
        rotate_row(row, index_dim, cos, sin, pairs, false, row);
        uint8_t* index = reinterpret_cast<uint8_t*>(p.cache.index) + block * p.cache.index_block_bytes;
        encode_index_key(row, index_dim, index + entry * (index_dim / 2),
                         index + per_block * (index_dim / 2) + entry * (index_dim / 32));
        rotate_row(p.latent.f32(at), dim, cos, sin, pairs, false, row);
        encode_entry(
            row, dim,
            reinterpret_cast<uint8_t*>(p.cache.main) + block * p.cache.main_block_bytes + entry * record_bytes);
      }
    });
  }
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
