#include "cli/logits_output.h"

#include <algorithm>

namespace deepinfer {
namespace {

using weights::StoredType;

int64_t num_entries(const ModelConfig& config, int layer, int64_t length) {
  return length / config.compress_ratios[static_cast<size_t>(layer)];
}

}  // namespace

std::string LogitsOutput::name(const char* kind) const {
  return fmt::format("{}.{}", kind, sequence_);
}
std::string LogitsOutput::name(const char* kind, int layer) const {
  return fmt::format("{}.{}.{}", kind, sequence_, layer);
}

void LogitsOutput::declare(int sequence, int64_t first, int64_t length) {
  const ModelConfig& c = config_;
  const int64_t rows = length - first;
  sequence_ = sequence;
  writer_.declare(name("logits"), StoredType::kF32, {parts_.last_logits_only ? 1 : rows, c.vocab_size});
  if (parts_.draft) {
    writer_.declare(name("draft"), StoredType::kI32, {c.dspark_block_size});
    writer_.declare(name("confidence"), StoredType::kF32, {c.dspark_block_size});
  }
  for (int layer = 0; layer <= c.num_hidden_layers && parts_.hidden; ++layer) {
    writer_.declare(name("hidden", layer), StoredType::kF32, {rows, c.hc_mult, c.hidden_size});
    writer_.declare(name("pre", layer), StoredType::kF32, {rows, c.hc_mult});
  }
  if (!parts_.trace) return;
  for (int layer : c.index_source_layer_ids) {
    writer_.declare(name("chosen", layer), StoredType::kU8, {rows, num_entries(c, layer, length)});
    if (layer == c.candidate_source_layer_id)
      writer_.declare(name("candidates", layer), StoredType::kU8, {rows, num_entries(c, layer, length)});
  }
  if (!c.engram_layer_ids.empty())
    writer_.declare(name("engram"), StoredType::kI64,
                    {static_cast<int64_t>(c.engram_layer_ids.size()), rows, c.engram_columns()});
}

void LogitsOutput::write_rows(const std::string& tensor, int64_t row, int64_t row_bytes, const void* data,
                              int64_t rows) {
  auto written = writer_.write(tensor, row * row_bytes,
                               {static_cast<const std::byte*>(data), static_cast<size_t>(rows * row_bytes)});
  if (!written && status_) status_ = written;
}

void LogitsOutput::write_floats(const std::string& tensor, const TensorView& values) {
  std::vector<float> row(static_cast<size_t>(values.cols));
  for (int64_t t = 0; t < values.rows; ++t) {
    if (values.dtype == DType::kBF16)
      std::transform(values.row<bf16>(t), values.row<bf16>(t) + values.cols, row.begin(),
                     [](bf16 v) { return to_float(v); });
    else
      std::copy_n(values.f32(t), values.cols, row.begin());
    write_rows(tensor, row_ + t, values.cols * 4, row.data(), 1);
  }
}

void LogitsOutput::on_logits(const TensorView& logits) {
  write_rows(name("logits"), parts_.last_logits_only ? 0 : row_, logits.row_bytes(), logits.data, logits.rows);
}

void LogitsOutput::on_draft(const TensorView& tokens, const TensorView& confidence) {
  write_rows(name("draft"), 0, 4, tokens.data, tokens.rows);
  write_rows(name("confidence"), 0, 4, confidence.data, confidence.cols);
}

void LogitsOutput::on_streams(int layer, const TensorView& streams, const TensorView& pre) {
  if (!parts_.hidden) return;
  write_floats(name("hidden", layer), streams);
  write_floats(name("pre", layer), pre);
}

void LogitsOutput::on_selection(int layer, const TensorView& chosen, const TensorView& candidates) {
  if (!parts_.trace) return;
  const int64_t entries = num_entries(config_, layer, length_), size = config_.candidate_block_size;
  std::vector<uint8_t> mask(static_cast<size_t>(entries));
  auto write = [&](const char* kind, const TensorView& ids, int64_t width) {  // id b stands for entries [b width, ..)
    for (int64_t t = 0; t < ids.rows; ++t) {
      std::fill(mask.begin(), mask.end(), uint8_t{0});
      const auto* row = ids.row<int32_t>(t);
      for (int64_t k = 0; k < ids.cols && row[k] >= 0; ++k) {
        const int64_t begin = row[k] * width, end = std::min(entries, begin + width);
        if (begin < end) std::fill(mask.begin() + begin, mask.begin() + end, uint8_t{1});
      }
      write_rows(name(kind, layer), row_ + t, entries, mask.data(), 1);
    }
  };
  write("chosen", chosen, 1);
  if (!candidates.empty()) write("candidates", candidates, size);
}

void LogitsOutput::on_engram_rows(int engram_index, const TensorView& rows) {
  if (!parts_.trace) return;
  write_rows(name("engram"), engram_index * (length_ - first_) + row_, rows.row_bytes(), rows.data, rows.rows);
}

Result<void> LogitsOutput::finish() {
  DI_TRY_VOID(status_);
  return writer_.finish();
}

}  // namespace deepinfer
