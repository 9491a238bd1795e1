#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace deepinfer {
namespace {

TEST(Sha256, MatchesThePublishedAnswer) {
  EXPECT_EQ(hex(sha256(std::as_bytes(std::span("abc", 3)))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Json, NamesTheOffsetAndLimitsTheDepth) {
  EXPECT_EQ(json::parse("{\"a\": [1, 2}").error().code, Code::kInvalid);
  EXPECT_FALSE(json::parse(std::string(100, '[') + std::string(100, ']')));
  EXPECT_TRUE(json::parse(std::string(60, '[') + std::string(60, ']')));
  EXPECT_FALSE(json::parse("{} x"));
  EXPECT_FALSE(json::parse(""));
}

TEST(File, ReadsWhatWasWrittenAndNamesAMissingOne) {
  std::string path = testing::TempDir() + "/deepinfer_file_test";
  ASSERT_TRUE(write_file(path, "hello"));
  EXPECT_EQ(read_file(path).value(), "hello");
  auto mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->bytes().size(), 5u);
  std::array<std::byte, 3> part;
  auto file = File::open_read(path);
  ASSERT_TRUE(file->read_at(2, part));
  EXPECT_EQ(static_cast<char>(part[0]), 'l');
  EXPECT_EQ(file->read_at(3, part).error().code, Code::kCorrupt);
  std::remove(path.c_str());
  EXPECT_EQ(read_file(path).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace deepinfer
