// Directories and hub names are found; what is absent is answered with the way to get it.

#include "weights/model_path.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer::weights {
namespace {

using testing::HasSubstr;

// Points the hub cache at a scratch directory for one test.
class ModelPath : public testing::Test {
 protected:
  ModelPath() {
    ::setenv("HF_HOME", dir_.path().c_str(), 1);
    ::unsetenv("HF_HUB_CACHE");
  }
  ~ModelPath() override { ::unsetenv("HF_HOME"); }
  void add_snapshot(const std::string& revision) {
    const std::string path = dir_.file("hub/models--owner--name/snapshots/" + revision);
    std::filesystem::create_directories(path);
    ASSERT_TRUE(write_file(path + "/config.json", "{}"));
  }
  ScratchDirectory dir_;
};

TEST_F(ModelPath, DirectoriesAreTakenAsTheyAre) {
  EXPECT_EQ(resolve_model(dir_.path()).value(), dir_.path());
}

TEST_F(ModelPath, MainReferenceWins) {
  add_snapshot("aaa");
  add_snapshot("bbb");
  std::filesystem::create_directories(dir_.file("hub/models--owner--name/refs"));
  ASSERT_TRUE(write_file(dir_.file("hub/models--owner--name/refs/main"), "aaa\n"));
  EXPECT_THAT(resolve_model("owner/name").value(), HasSubstr("snapshots/aaa"));
}

TEST_F(ModelPath, AnySnapshotServesWithoutReference) {
  add_snapshot("ccc");
  EXPECT_THAT(resolve_model("owner/name").value(), HasSubstr("snapshots/ccc"));
}

TEST_F(ModelPath, AbsentModelsAreExplained) {
  auto r = resolve_model("deepseek-ai/DeepSeek-V4.1-Flash");
  ASSERT_FALSE(r);
  EXPECT_EQ(exit_code(r.error()), 2);
  EXPECT_THAT(r.error().message, testing::AllOf(HasSubstr("510 GB"), HasSubstr("free"),
                                                HasSubstr("hf download deepseek-ai/DeepSeek-V4.1-Flash")));
  EXPECT_THAT(resolve_model("/no/such/place").error().message, HasSubstr("no such directory"));
  EXPECT_THAT(resolve_model("../name").error().message, HasSubstr("not a hub name"));
}

}  // namespace
}  // namespace deepinfer::weights
