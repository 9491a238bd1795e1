// Stored weights and cache records, one row at a time: bytes to floats and back (model.md 2, 6.1 - 6.3).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace deepinfer::kernels::ref {

// out[0 .. cols) = values of row `row`.
void decode_row(const Weight& weight, int64_t row, float* out);

// Rounds x[0 .. n) to e4m3 in groups of 32 with ue8m0 scales, the input of every fp8 and fp4 product. n % 32 == 0.
void round_act(float* x, int64_t n);
// Rounds x[0 .. n) to e2m1 in groups of 32 with ue8m0 scales: index queries.
void round_fp4e8(float* x, int64_t n);

// Records. `encode` rounds unless the format is kF32, which stores the floats as they are.
void encode_window(RecordFormat format, const float* x, int head_dim, std::byte* record);
void decode_window(RecordFormat format, const std::byte* record, int head_dim, float* x);

// Entry `group` of the sequence with this block table.
void encode_entry(const GlobalCache& cache, const int32_t* block_table, int64_t group, const float* x);
void decode_entry(const GlobalCache& cache, const int32_t* block_table, int64_t group, float* x);
void encode_index_key(const GlobalCache& cache, const int32_t* block_table, int64_t group, const float* x);
void decode_index_key(const GlobalCache& cache, const int32_t* block_table, int64_t group, float* x);

}  // namespace deepinfer::kernels::ref
