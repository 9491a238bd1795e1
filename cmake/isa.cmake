# Flags of the units under src/kernels/cpu/<isa>/, and of these only: the rest of the program runs on any x86-64.
#
#   avx2     Haswell, Zen 1 and later (AVX2, FMA, F16C)
#   avx512   Ice Lake, Zen 4 and later (AVX-512 F BW DQ VL VBMI VNNI)
#
# Which of them a process uses is decided at run time (kernels/cpu/features.cc).

set(DI_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2 -mpopcnt)
# -Wmaybe-uninitialized: GCC 12 takes the undefined values inside its own intrinsics for ours.
set(DI_ISA_FLAGS_avx512 ${DI_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vnni
    -mprefer-vector-width=512 -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)

# With address and undefined-behaviour checks at -O2 a unit of unrolled tiles takes minutes and a gigabyte to compile.
set(DI_ISA_SANITIZE_FLAGS)
if(DI_SANITIZE)
  set(DI_ISA_SANITIZE_FLAGS -O1 -fno-sanitize=undefined)
endif()

foreach(isa avx2 avx512)
  file(GLOB units CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/${isa}/*.cc)
  set_source_files_properties(${units} PROPERTIES COMPILE_OPTIONS "${DI_ISA_FLAGS_${isa}};-fno-trapping-math;-fno-math-errno;${DI_ISA_SANITIZE_FLAGS}")
endforeach()
