# One folder under src/ is one target.
#
#   di_folder(<name> DEPENDS <targets...> [EXECUTABLE <binary>])
#
# Sources are all *.cc below src/<name>, tests all *_test.cc beside them (one test program a folder, label `fast`;
# files called *_slow_test.cc form a second program with the label `slow`). Units that need an instruction set's flags
# live in kernels/cpu/<isa>/ and get them in isa.cmake.

include(GoogleTest)
include(isa)

function(di_folder name)
  cmake_parse_arguments(ARG "" "EXECUTABLE" "DEPENDS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER all EXCLUDE REGEX "_test\\.cc$")
  set(slow_tests ${tests})
  list(FILTER slow_tests INCLUDE REGEX "_slow_test\\.cc$")
  list(FILTER tests EXCLUDE REGEX "_slow_test\\.cc$")
  set(main ${all})
  list(FILTER main INCLUDE REGEX "/main\\.cc$")
  list(FILTER all EXCLUDE REGEX "/main\\.cc$")

  if(all)
    add_library(di_${name} STATIC ${all})
    set(kind PUBLIC)
    target_compile_options(di_${name} PRIVATE ${DI_WARNINGS})
  else()
    add_library(di_${name} INTERFACE)
    set(kind INTERFACE)
  endif()
  target_include_directories(di_${name} ${kind} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(di_${name} ${kind} ${ARG_DEPENDS} di_options)

  if(ARG_EXECUTABLE AND main)
    add_executable(${ARG_EXECUTABLE} ${main})
    target_compile_options(${ARG_EXECUTABLE} PRIVATE ${DI_WARNINGS})
    target_link_libraries(${ARG_EXECUTABLE} PRIVATE di_${name})
    set_target_properties(${ARG_EXECUTABLE} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  endif()

  if(DI_TESTS)
    di_test_program(di_${name}_test di_${name} fast ${tests})
    di_test_program(di_${name}_slow_test di_${name} slow ${slow_tests})
  endif()
endfunction()

function(di_test_program target library label)
  if(NOT ARGN)
    return()
  endif()
  add_executable(${target} ${ARGN})
  target_compile_options(${target} PRIVATE ${DI_WARNINGS})
  target_compile_definitions(${target} PRIVATE DI_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${library} GTest::gtest GTest::gmock GTest::gtest_main ${DI_RAPIDCHECK})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${target} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${target} PROPERTIES LABELS ${label} TIMEOUT 900)
endfunction()
