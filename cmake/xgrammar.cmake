# xgrammar as a static library, from its pinned source distribution (scripts/fetch_xgrammar.py).
#
# Its own CMake files turn on link-time optimisation and -Werror for the compilers of its makers; here it is built like
# everything else. XGRAMMAR_LOG_CUSTOMIZE: warnings and errors go to src/grammar/xgrammar/library_log.cc.

set(DI_XGRAMMAR_DIR ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar-0.2.9)
if(NOT EXISTS ${DI_XGRAMMAR_DIR}/LICENSE)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/fetch_xgrammar.py COMMAND_ERROR_IS_FATAL ANY)
endif()

file(GLOB_RECURSE DI_XGRAMMAR_UNITS ${DI_XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER DI_XGRAMMAR_UNITS EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${DI_XGRAMMAR_UNITS})
target_include_directories(xgrammar SYSTEM PUBLIC ${DI_XGRAMMAR_DIR}/include ${DI_XGRAMMAR_DIR}/3rdparty/dlpack/include
                                    PRIVATE ${DI_XGRAMMAR_DIR}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                            XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(xgrammar PRIVATE -w -g0)
if(DI_SANITIZE STREQUAL "address")
  # Its memory is watched, its arithmetic is not ours: those checks take minutes to compile.
  target_compile_options(xgrammar PRIVATE -fno-sanitize=undefined)
endif()
# In a few large units: its headers are most of what there is to compile.
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
