#include "engine/backend.h"

namespace deepinfer {

Result<Backend> choose_backend(const std::string& numerics, const std::string& backend) {
  const auto parsed = kernels::parse_numerics(numerics);
  if (!parsed) return fail(Code::kInvalid, "numerics is '{}'; allowed: fp32, qat, vendor, fast", numerics);
  const bool is_exact = *parsed == kernels::Numerics::kFp32 || *parsed == kernels::Numerics::kQat;
  const std::string name = !backend.empty() ? backend : is_exact ? "ref" : "cpu";
  if (name == "cuda") return fail(Code::kUnsupported, "backend is 'cuda': this binary was built without CUDA");
  if (name != "ref" && name != "cpu") return fail(Code::kInvalid, "backend is '{}'; allowed: ref, cpu, cuda", name);
  if (is_exact && name != "ref") return fail(Code::kInvalid, "numerics '{}' exists on the ref backend only", numerics);
  // A processor's `vendor` is the reference's: what follows a definition rounding by rounding needs no second program.
  const bool is_fast_cpu = name == "cpu" && *parsed == kernels::Numerics::kFast;
  return Backend{
      *parsed, [n = *parsed, is_fast_cpu] { return is_fast_cpu ? kernels::make_cpu_ops() : kernels::make_ref_ops(n); }};
}

}  // namespace deepinfer
