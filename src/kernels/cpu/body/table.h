#pragma once

#include "kernels/cpu/body/declare.h"

namespace deepinfer::kernels::cpu {
namespace {

#define DI_NAME_OF(isa) #isa
#define DI_NAME(isa) DI_NAME_OF(isa)
constexpr KernelTable kTable = {
    .name = DI_NAME(DI_ISA),
    .embed = DI_ISA::embed,
    .mhc = DI_ISA::mhc,
    .linear = DI_ISA::linear,
    .grouped_linear = DI_ISA::grouped_linear,
    .rms_norm = DI_ISA::rms_norm,
    .window_keys = DI_ISA::window_keys,
    .pool = DI_ISA::pool,
    .global_write = DI_ISA::global_write,
    .select = DI_ISA::select,
    .attention = DI_ISA::attention,
    .route = DI_ISA::route,
    .moe = DI_ISA::moe,
    .combine = DI_ISA::combine,
    .swiglu = DI_ISA::swiglu,
    .engram_gather = DI_ISA::engram_gather,
    .engram_gate = DI_ISA::engram_gate,
    .stream_mean = DI_ISA::stream_mean,
    .gather_rows = DI_ISA::gather_rows,
};

}  // namespace

#define DI_TABLE_OF(isa) isa##_table
#define DI_TABLE(isa) DI_TABLE_OF(isa)
const KernelTable& DI_TABLE(DI_ISA)() {
  return kTable;
}

}  // namespace deepinfer::kernels::cpu
