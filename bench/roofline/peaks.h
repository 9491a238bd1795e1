// Loops that do nothing but load one resource of the machine. Each returns the units (bytes or operations) it did.
#pragma once

#include <cstddef>

namespace deepinfer::bench {

double read_bytes(const float* data, size_t count);  // sums the floats; 512-bit loads where they exist
double fma_f32();                                    // operations: 2 a multiply-add
double dot_int8();                                   // vpdpbusd, or vpmaddubsw + vpmaddwd; 2 a multiply-add
double dot_int16();                                  // vpdpwssd, or vpmaddwd + vpaddd
double dot_bf16();                                   // vdpbf16ps; 0 where the processor has none

}  // namespace deepinfer::bench
