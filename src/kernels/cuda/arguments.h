// Views of the device boundary as the kernels take them; dtypes are checked on the way.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/smxx/launch.h"

namespace deepinfer::kernels::cuda {

using deepinfer::cuda::handle_of;

template <typename T>
Rows<T> rows_of(const TensorView& v, DType dtype) {
  DI_CHECK(v.empty() || v.dtype == dtype, "{} where {} is expected", dtype_name(v.dtype), dtype_name(dtype));
  return {static_cast<T*>(v.data), v.stride};
}
inline Rows<Bf16> bf16_rows(const TensorView& v) {
  return rows_of<Bf16>(v, DType::kBF16);
}
inline Rows<float> f32_rows(const TensorView& v) {
  return rows_of<float>(v, DType::kF32);
}
inline Rows<int32_t> i32_rows(const TensorView& v) {
  return rows_of<int32_t>(v, DType::kI32);
}
inline const Bf16* device_bf16(const void* p) {
  return static_cast<const Bf16*>(p);
}
inline BatchArgs batch_of(const Batch& b) {
  DI_CHECK(b.num_rows == 0 || b.device_runs != nullptr, "a batch without its runs on the device");
  return {b.device_runs, b.run_of_row, b.positions, b.num_rows};
}
inline Frequencies frequencies_of(std::span<const float> freq) {
  DI_CHECK(freq.size() <= kMaxPairs, "{} rotated pairs, {} are built", freq.size(), kMaxPairs);
  Frequencies f{};
  f.count = static_cast<int>(freq.size());
  std::copy(freq.begin(), freq.end(), f.f);
  return f;
}

}  // namespace deepinfer::kernels::cuda
