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
  return Backend{*parsed,
                 [n = *parsed, name] { return name == "ref" ? kernels::make_ref_ops(n) : kernels::make_cpu_ops(n); }};
}

}  // namespace deepinfer
