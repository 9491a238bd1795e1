#include "kernels/cpu/features.h"

namespace deepinfer::kernels::cpu {

std::vector<const KernelTable*> usable_tables() {
  std::vector<const KernelTable*> tables;
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  if (avx512) tables.push_back(&avx512_table());
  if (avx2) tables.push_back(&avx2_table());
  return tables;
}

}  // namespace deepinfer::kernels::cpu
