# Language level, optimisation and warnings. `di_options` carries what every target of ours needs.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")

find_program(DI_CCACHE ccache)
if(DI_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DI_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${DI_CCACHE})
endif()
find_program(DI_MOLD mold)
if(DI_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(di_options INTERFACE)
# Contraction is off so that a multiply followed by an add rounds twice everywhere unless the code asks for std::fma:
# the same source then gives the same bits in every unit and instruction set.
target_compile_options(di_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

set(DI_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>)
# Clang blames std::stable_sort of libstdc++ 12 on whoever calls it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND DI_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
endif()
enable_testing()
