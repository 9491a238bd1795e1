#include "engine/backend.h"

namespace deepinfer {

Result<Backend> choose_backend(const std::string& numerics, const std::string& backend) {
  const auto parsed = kernels::parse_numerics(numerics);
  if (!parsed) return fail(Code::kInvalid, "numerics is '{}'; allowed: fp32, qat, vendor, fast", numerics);
  const bool is_exact = *parsed == kernels::Numerics::kFp32 || *parsed == kernels::Numerics::kQat;
  const std::string name = !backend.empty() ? backend : is_exact ? "ref" : "cpu";
  if (name != "ref" && name != "cpu" && name != "cuda")
    return fail(Code::kInvalid, "backend is '{}'; allowed: ref, cpu, cuda", name);
  if (is_exact && name != "ref") return fail(Code::kInvalid, "numerics '{}' exists on the ref backend only", numerics);
  if (name == "cuda") {
    if (auto device = make_cuda_device(); !device)
      return fail(device.error().code, "backend is 'cuda': {}", device.error().message);
    return Backend{*parsed, [n = *parsed] { return kernels::make_cuda_ops(n); }, make_cuda_device, 4096};
  }
  // A processor's `vendor` is the reference's: what follows a definition rounding by rounding needs no second program.
  const bool is_fast_cpu = name == "cpu" && *parsed == kernels::Numerics::kFast;
  return Backend{
      *parsed, [n = *parsed, is_fast_cpu] { return is_fast_cpu ? kernels::make_cpu_ops() : kernels::make_ref_ops(n); },
      [] { return Result<std::unique_ptr<Device>>(make_cpu_device()); }};
}

Result<Backend> choose_backend(const std::string& numerics, const std::string& backend,
                               const std::string& accelerator) {
  if (!backend.empty() || accelerator == "cpu") return choose_backend(numerics, backend);
  if (accelerator == "nvidia") {
    if (auto device = make_cuda_device(); !device)
      return fail(device.error().code, "DEEPINFER_ACCELERATOR is 'nvidia': {}", device.error().message);
    return choose_backend(numerics, "cuda");
  }
  const auto parsed = kernels::parse_numerics(numerics);
  const bool runs_there = parsed == kernels::Numerics::kVendor || parsed == kernels::Numerics::kFast;
  return choose_backend(numerics, runs_there && make_cuda_device() ? "cuda" : "");
}

}  // namespace deepinfer
