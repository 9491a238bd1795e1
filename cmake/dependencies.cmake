# Third-party libraries, all from the distribution (THIRD_PARTY.md says which and why).

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(tl-expected REQUIRED)
if(DI_SERVER)
  # Its package file wants libcurl for the push client, which is not used.
  find_library(DI_PROMETHEUS prometheus-cpp-core REQUIRED)
endif()

add_library(di_boost_json INTERFACE)
target_link_libraries(di_boost_json INTERFACE Boost::json tl::expected)

if(DI_TESTS)
  find_package(GTest REQUIRED)
  # Debian's rapidcheck has no CMake package file.
  find_library(DI_RAPIDCHECK rapidcheck REQUIRED)
endif()
