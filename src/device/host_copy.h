// A matrix of a device where the host can read it: as it lies on a host, else a copy of its rows.
//
// Waits for the stream. For traces, tests and the command line; the step loop has its own buffers.
#pragma once

#include <vector>

#include "device/device.h"
#include "tensor/view.h"

namespace deepinfer {

class HostCopy {
 public:
  HostCopy(const Device& device, Stream& stream, const TensorView& from) : view_(from) {
    if (!device.is_host() && !from.empty()) {
      bytes_.resize(static_cast<size_t>(from.rows * from.row_bytes()));
      view_ = TensorView::make(bytes_.data(), from.dtype, from.rows, from.cols);
      for (int64_t r = 0; r < from.rows; ++r)
        stream.copy(view_.row_range(r, 1).data, from.row_range(r, 1).data, from.row_bytes());
    }
    stream.synchronize();
  }
  HostCopy(const HostCopy&) = delete;
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

}  // namespace deepinfer
