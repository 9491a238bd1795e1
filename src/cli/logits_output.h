// The file that `deepinfer logits` writes, one set of tensors a sequence i (rows are positions first .. length - 1,
// with
// --last logits have one row):
//
//   logits.i [rows, vocab] f32     draft.i [block] i32     confidence.i [block] f32
//   --hidden: hidden.i.L [rows, streams, width] f32, pre.i.L [rows, streams] f32     L = 0 .. number of layers
//   --trace:  chosen.i.L, candidates.i.L [rows, entries] u8     engram.i [engram layers, rows, columns] i64
#pragma once

#include <string>

#include "model/batch.h"
#include "weights/config.h"
#include "weights/tensor_writer.h"

namespace deepinfer {

class LogitsOutput final : public model::Observer {
 public:
  struct Parts {
    bool draft = false, hidden = false, trace = false;
    bool last_logits_only = false;
  };
  LogitsOutput(const ModelConfig& config, const Parts& parts) : config_(config), parts_(parts) {}

  // Positions [first, length) of the next sequence; before create.
  void declare(int sequence, int64_t first, int64_t length);
  Result<void> create(const std::string& path) { return writer_.create(path); }
  // The rows that follow are those of `sequence` from position `pos` on.
  void begin_chunk(int sequence, int64_t first, int64_t length, int64_t pos) {
    sequence_ = sequence, first_ = first, length_ = length, row_ = pos - first;
  }
  bool observes() const { return parts_.hidden || parts_.trace; }

  void on_logits(const TensorView& logits);
  void on_draft(const TensorView& tokens, const TensorView& confidence);
  void on_streams(int layer, const TensorView& streams, const TensorView& pre) override;
  void on_selection(int layer, const TensorView& chosen, const TensorView& candidates) override;
  void on_engram_rows(int engram_index, const TensorView& rows) override;

  // The first error of any write, or of giving the file its name.
  Result<void> finish();

 private:
  std::string name(const char* kind) const;
  std::string name(const char* kind, int layer) const;
  void write_rows(const std::string& tensor, int64_t row, int64_t row_bytes, const void* data, int64_t rows);
  void write_floats(const std::string& tensor, const TensorView& values);

  const ModelConfig& config_;
  const Parts parts_;
  weights::TensorWriter writer_;
  int sequence_ = 0;
  int64_t first_ = 0, length_ = 0, row_ = 0;
  Result<void> status_;
};

}  // namespace deepinfer
