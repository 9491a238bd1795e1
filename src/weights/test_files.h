// Helpers of the tests: golden paths, a scratch directory, edits of a JSON configuration.
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

namespace deepinfer::weights {

inline std::string golden(const std::string& path) {
  return std::string(DI_SOURCE_DIR) + "/tests/golden/" + path;
}

// A directory of its own, removed at the end of the test.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("di_{}_{}_{}", test->test_suite_name(), test->name(), ::getpid());
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline json::value released_config() {
  return json::parse_file(golden("released/config.json")).value();
}

}  // namespace deepinfer::weights
