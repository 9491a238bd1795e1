// Operations on one row at a time, and the caches.
#include <cmath>

#include "kernels/cuda/arguments.h"

namespace deepinfer::kernels::cuda {
namespace {

void check_record(int64_t dim, int64_t pairs) {
  DI_CHECK(dim % 32 == 0 && dim <= kMaxRecordDim && pairs <= kMaxPairs && 2 * pairs <= dim,
           "records of {} channels with {} rotated pairs", dim, pairs);
}
void check_packed(RecordFormat format) {
  DI_CHECK(format == RecordFormat::kPacked, "the CUDA backend has packed records only");
}

NormArgs norm_args(const RmsNormParams& p) {
  return {bf16_rows(p.x), bf16_rows(p.y), device_bf16(p.gain), p.x.cols, p.eps};
}
WindowKeyArgs window_key_args(const WindowKeyParams& p) {
  check_packed(p.format);
  check_record(p.raw.cols, p.rope.cos.cols);
  return {.raw = bf16_rows(p.raw),
          .dim = static_cast<int>(p.raw.cols),
          .gain = device_bf16(p.gain),
          .eps = p.eps,
          .cos = f32_rows(p.rope.cos),
          .sin = f32_rows(p.rope.sin),
          .pairs = static_cast<int>(p.rope.cos.cols),
          .records = reinterpret_cast<uint8_t*>(p.records),
          .num_rows = static_cast<int>(p.raw.rows)};
}

}  // namespace

void CudaOps::embed(Stream& stream, const EmbedParams& p) {
  if (p.streams.rows == 0) return;
  const int64_t d = p.table.empty() ? p.given.cols : p.table.cols;
  launch_embed(handle_of(stream), {.ids = p.ids,
                                   .given = f32_rows(p.given),
                                   .table = device_bf16(p.table.codes),
                                   .table_rows = p.table.rows,
                                   .d = d,
                                   .row_begin = p.row_begin,
                                   .streams = bf16_rows(p.streams),
                                   .m = static_cast<int>(p.streams.cols / d),
                                   .num_rows = static_cast<int>(p.streams.rows)});
}

void CudaOps::rms_norm(Stream& stream, const RmsNormParams& p) {
  if (p.x.rows == 0) return;
  launch_rms_norm(handle_of(stream), norm_args(p), static_cast<int>(p.x.rows));
}

void CudaOps::rope(Stream& stream, const RopeParams& p) {
  if (p.cos.rows == 0) return;
  launch_rope(handle_of(stream), p.positions, frequencies_of(p.freq), f32_rows(p.cos), f32_rows(p.sin),
              static_cast<int>(p.cos.rows));
}

void CudaOps::stream_mean(Stream& stream, const StreamMeanParams& p) {
  if (p.mean.rows == 0) return;
  launch_stream_mean(handle_of(stream), bf16_rows(p.streams), p.m, bf16_rows(p.mean), static_cast<int>(p.mean.rows),
                     p.mean.cols);
}

void CudaOps::gather_rows(Stream& stream, const GatherRowsParams& p) {
  if (p.out.rows == 0) return;
  launch_gather_rows(handle_of(stream), device_bf16(p.table.codes), p.table.rows, p.row_begin, p.ids, bf16_rows(p.out),
                     static_cast<int>(p.out.rows), p.out.cols);
}

void CudaOps::combine(Stream& stream, const CombineParams& p) {
  if (p.z.rows == 0) return;
  launch_combine(handle_of(stream), bf16_rows(p.slots), bf16_rows(p.shared), p.top_k, bf16_rows(p.z),
                 static_cast<int>(p.z.rows), p.z.cols);
}

void CudaOps::swiglu(Stream& stream, const SwigluParams& p) {
  if (p.a.rows == 0) return;
  launch_swiglu(handle_of(stream), bf16_rows(p.gate), bf16_rows(p.up), bf16_rows(p.a), static_cast<int>(p.a.rows),
                p.a.cols, p.limit);
}

void CudaOps::engram_gather(Stream& stream, const EngramGatherParams& p) {
  if (p.rows.rows == 0) return;
  launch_engram_gather(handle_of(stream), {.rows = rows_of<int64_t>(p.rows, DType::kI64),
                                           .columns = p.rows.cols,
                                           .codes = static_cast<const uint8_t*>(p.table.codes),
                                           .scales = p.table.scales,
                                           .table_rows = p.table.rows,
                                           .dim = p.table.cols,
                                           .row_begin = p.row_begin,
                                           .out = bf16_rows(p.out),
                                           .num_rows = static_cast<int>(p.rows.rows)});
}

void CudaOps::engram_gate(Stream& stream, const EngramGateParams& p) {
  if (p.streams.rows == 0) return;
  const int64_t d = p.streams.cols / p.m;
  launch_engram_gate(handle_of(stream), {.streams = bf16_rows(p.streams),
                                         .kv = bf16_rows(p.kv),
                                         .q_weight = device_bf16(p.q_weight),
                                         .k_weight = device_bf16(p.k_weight),
                                         .is_image = p.is_image,
                                         .m = p.m,
                                         .d = d,
                                         .eps = p.eps,
                                         .width_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(d))),
                                         .num_rows = static_cast<int>(p.streams.rows)});
}

void CudaOps::window_keys(Stream& stream, const WindowKeyParams& p) {
  if (p.raw.rows == 0) return;
  launch_window_keys(handle_of(stream), window_key_args(p), nullptr);
}

void CudaOps::norm_and_window_keys(Stream& stream, const RmsNormParams& norm, const WindowKeyParams& keys) {
  if (keys.raw.rows == 0) return;
  DI_CHECK(norm.x.rows == keys.raw.rows, "a norm of {} rows beside keys of {}", norm.x.rows, keys.raw.rows);
  const NormArgs beside = norm_args(norm);
  launch_window_keys(handle_of(stream), window_key_args(keys), &beside);
}

void CudaOps::window_store(Stream& stream, const WindowStoreParams& p) {
  if (p.batch->num_rows == 0) return;
  check_packed(p.cache.format);
  launch_window_store(handle_of(stream), batch_of(*p.batch), reinterpret_cast<const uint8_t*>(p.records), p.cache);
}

void CudaOps::pool(Stream& stream, const PoolParams& p) {
  if (p.batch->num_rows == 0) return;
  check_record(p.kv.cols, 0);
  DI_CHECK(p.group_of_row != nullptr, "a batch without its groups on the device");
  launch_pool(handle_of(stream), batch_of(*p.batch),
              {.group_of_row = p.group_of_row,
               .kv = p.ratio == 1 ? bf16_rows(p.kv) : Rows<Bf16>{},
               .kv_pairs = p.ratio == 1 ? Rows<float>{} : f32_rows(p.kv),
               .gate = f32_rows(p.gate),
               .tail = p.tail,
               .dim = static_cast<int>(p.kv.cols),
               .ratio = p.ratio,
               .gain = device_bf16(p.gain),
               .eps = p.eps,
               .latent = bf16_rows(p.latent)});
}

void CudaOps::global_write(Stream& stream, const GlobalWriteParams& p) {
  if (p.batch->num_rows == 0 || p.latent.rows == 0) return;
  check_packed(p.cache.format);
  check_record(p.latent.cols, static_cast<int64_t>(p.freq.size()));
  check_record(p.key_raw.cols, static_cast<int64_t>(p.freq.size()));
  DI_CHECK(p.group_of_row != nullptr, "a batch without its groups on the device");
  launch_global_write(handle_of(stream), batch_of(*p.batch),
                      {.group_of_row = p.group_of_row,
                       .latent = bf16_rows(p.latent),
                       .key_raw = bf16_rows(p.key_raw),
                       .dim = static_cast<int>(p.latent.cols),
                       .index_dim = static_cast<int>(p.key_raw.cols),
                       .key_gain = device_bf16(p.key_gain),
                       .eps = p.eps,
                       .freq = frequencies_of(p.freq),
                       .cache = p.cache});
}

}  // namespace deepinfer::kernels::cuda
