// Where weights, runs and cache records lie: plain structs that host code and kernels of every device read alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::kernels {

// A matrix [rows, cols] in the checkpoint's own bytes (model.md 2), or a range of its rows (multiple of 32 for kFp8).
struct Weight {
  enum class Kind : uint8_t { kNone, kF32, kBF16, kFp8, kFp8Row, kFp4 };
  Kind kind = Kind::kNone;
  const void* codes = nullptr;      // F32, BF16, e4m3 [rows, cols], or e2m1 pairs [rows, cols / 2], low nibble first
  const uint8_t* scales = nullptr;  // ue8m0: kFp8 [ceil(rows / 32), cols / 32]; kFp8Row, kFp4 [rows, cols / 32]
  int64_t rows = 0, cols = 0;

  bool empty() const { return kind == Kind::kNone; }
};

// Consecutive rows of one sequence at consecutive positions.
struct Run {
  int32_t row_begin = 0, num_rows = 0;
  int64_t first_pos = 0;
  int32_t slot = 0;                      // private state slot
  const int32_t* block_table = nullptr;  // block ids; entry b covers positions [128 b, 128 b + 128)
  int64_t window_floor = 0;              // window keys below this position are invisible (bounded replay)
  int64_t write_floor = 0;               // global rows of positions below this are never written (prefix hit)
};

// How cached records are stored. kPacked: window 512 e4m3 + 16 ue8m0 per 512 channels (D + D/32 bytes), entries D/2 +
// D/16, index keys I/2 + I/32 (model.md 6.3). kF32: plain floats, for the `fp32` numerics.
enum class RecordFormat : uint8_t { kPacked, kF32 };
int64_t window_record_bytes(RecordFormat f, int head_dim);
int64_t entry_record_bytes(RecordFormat f, int head_dim);
int64_t index_record_bytes(RecordFormat f, int index_dim);

// Window keys of one layer: [slots][ring] records; position p of a slot lies at ring index p mod ring.
struct WindowCache {
  std::byte* data = nullptr;
  int ring = 0;  // window + positions that may be taken back
  int window = 0;
  int head_dim = 0;
  RecordFormat format = RecordFormat::kPacked;

  std::byte* record(int32_t slot, int64_t pos) const {
    return data + (static_cast<int64_t>(slot) * ring + pos % ring) * window_record_bytes(format, head_dim);
  }
};

// Shared compressed entries and index keys of one KV source. A block of 128 positions holds 128 / ratio entries:
//   main [entries][entry record];   index, packed: [entries][I / 2] codes, then [entries][I / 32] scales; kF32:
//   [entries][I]
// Block b starts at main + b * main_block_bytes and index + b * index_block_bytes.
struct GlobalCache {
  std::byte* main = nullptr;
  std::byte* index = nullptr;
  int64_t main_block_bytes = 0, index_block_bytes = 0;
  int ratio = 1;
  int head_dim = 0, index_dim = 0;
  RecordFormat format = RecordFormat::kPacked;

  int entries_per_block() const { return 128 / ratio; }
};

// Open groups of a ratio-2 source: [slots][ring][2][D] F32, K row then G row of position p at p mod ring.
struct TailCache {
  float* data = nullptr;
  int ring = 0;
  int head_dim = 0;

  float* record(int32_t slot, int64_t pos) const {
    return data + (static_cast<int64_t>(slot) * ring + pos % ring) * 2 * head_dim;
  }
};

// Groups that a batch completes: group rows are numbered through the batch.
struct GroupRun {
  int32_t group_begin = 0, num_groups = 0;
  int64_t first_group = 0;  // absolute index; the group covers positions [ratio g, ratio g + ratio)
  int32_t run = 0;          // index into Batch::runs
};

struct ExpertWeights {
  Weight w1, w2, w3;  // gate, down, up
};
}  // namespace deepinfer::kernels
