// Numerics and backend by name, as options give them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "kernels/ops.h"

namespace deepinfer {

struct Backend {
  kernels::Numerics numerics = kernels::Numerics::kFast;
  std::function<std::unique_ptr<kernels::Ops>()> make_ops;
  std::function<Result<std::unique_ptr<Device>>()> make_device;
  int rows_a_step = 512;  // unless options say otherwise: so many employ it fully
};

// `backend` empty: ref for fp32 and qat, else cpu. kInvalid names the option, its value and what is allowed; kNotFound
// or kUnsupported say why there is no GPU.
Result<Backend> choose_backend(const std::string& numerics, const std::string& backend);
// The same for an empty `backend` where the accelerator decides: auto, cpu or nvidia. auto takes a GPU if there is one.
Result<Backend> choose_backend(const std::string& numerics, const std::string& backend, const std::string& accelerator);

}  // namespace deepinfer
