# The CUDA backend, if DI_CUDA is on. The runtime is linked statically: the program starts on machines without a GPU and
# says so in one sentence when one is asked for.
#
#   smxx   every GPU from compute capability 9.0 on; compiled for DI_CUDA_ARCHITECTURES
#   sm90   Hopper's own instructions

set(DI_CUDA_ARCHITECTURES "90a-real;100a-real" CACHE STRING "GPU architectures of the generic kernels")
if(DI_CUDA)
  find_program(DI_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NOT DI_NVCC)
    message(FATAL_ERROR "DI_CUDA is on and nvcc was not found: install the CUDA toolkit 13 or put nvcc on the PATH")
  endif()
  set(CMAKE_CUDA_COMPILER ${DI_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${DI_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know that this nvcc has C++20.
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")
endif()
