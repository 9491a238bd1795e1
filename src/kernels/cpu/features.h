// Which instruction sets this processor and its system offer.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/kernel_table.h"

namespace deepinfer::kernels::cpu {

// The tables this machine can run, best first; empty on a processor without AVX2 and FMA.
std::vector<const KernelTable*> usable_tables();

// The backend with a table of choice, for tests and benchmarks.
std::unique_ptr<Ops> make_ops(const KernelTable& table);

}  // namespace deepinfer::kernels::cpu
