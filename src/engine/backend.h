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
};

// `backend` empty: ref for fp32 and qat, else cpu. kInvalid names the option, its value and what is allowed.
Result<Backend> choose_backend(const std::string& numerics, const std::string& backend);

}  // namespace deepinfer
