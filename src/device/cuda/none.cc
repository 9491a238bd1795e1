// Stands for device/cuda in programs built without CUDA.
#include "device/device.h"

namespace deepinfer {

Result<std::unique_ptr<Device>> make_cuda_device() {
  return fail(Code::kUnsupported, "this program was built without CUDA");
}

}  // namespace deepinfer
