// Headers that contradict themselves or the file are refused with a sentence; sound ones give exact places.

#include "weights/safetensors.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer::weights {
namespace {

using testing::HasSubstr;

std::string error_of(std::string_view header, int64_t payload_bytes) {
  auto r = parse_header(header, 100, payload_bytes);
  if (r) return "accepted";
  EXPECT_EQ(exit_code(r.error()), 2);
  return r.error().message;
}

// A file with the given header text and payload size.
void write_shard(const std::string& path, const std::string& header, int64_t payload_bytes) {
  uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  ASSERT_TRUE(write_file(path, bytes + header + std::string(static_cast<size_t>(payload_bytes), 'x')));
}

const char* kTwo = R"({"__metadata__":{"format":"pt"},"model.a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                   R"("b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";

TEST(Safetensors, PlacesOfTensors) {
  auto r = parse_header(kTwo, 100, 16);
  ASSERT_TRUE(r) << r.error().message;
  ASSERT_EQ(r->size(), 2u);
  EXPECT_EQ((*r)[0].name, "a");
  EXPECT_EQ((*r)[0].type, StoredType::kBF16);
  EXPECT_THAT((*r)[0].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ((*r)[0].offset, 104);
  EXPECT_EQ((*r)[0].bytes, 12);
  EXPECT_EQ((*r)[1].offset, 100);
}

TEST(Safetensors, EveryDtype) {
  for (int i = 0; i < 20; ++i) {
    auto type = static_cast<StoredType>(i);
    TensorEntry e{.name = "t", .type = type, .shape = {8, 3}, .bytes = 3 * stored_type_bits(type)};
    std::string file = make_header({e});
    auto r = parse_header(std::string_view(file).substr(8), static_cast<int64_t>(file.size()), e.bytes);
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ((*r)[0].type, type);
    EXPECT_EQ(file.size() % 8, 0u);
  }
}

TEST(Safetensors, ContradictoryHeadersAreRefused) {
  auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  EXPECT_EQ(error_of(one("U8", "[4]", "[0,4]"), 4), "accepted");
  EXPECT_THAT(error_of(one("U7", "[4]", "[0,4]"), 4), HasSubstr("unknown dtype 'U7'"));
  EXPECT_THAT(error_of(one("U8", "[5]", "[0,4]"), 4), HasSubstr("span 4 bytes"));
  EXPECT_THAT(error_of(one("BF16", "[4]", "[0,4]"), 4), HasSubstr("BF16 [4]"));
  EXPECT_THAT(error_of(one("U8", "[-4]", "[0,4]"), 4), HasSubstr("negative size"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[-4,0]"), 4), HasSubstr("data_offsets [-4, 0]"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[4,0]"), 4), HasSubstr("data_offsets [4, 0]"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0]"), 4), HasSubstr("1 offsets"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0,2,4]"), 4), HasSubstr("more than two"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0,4.5]"), 4), HasSubstr("whole number"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0,99999999999999999999]"), 4), HasSubstr("out of range"));
  EXPECT_THAT(error_of(one("U8", "[4294967296,4294967296]", "[0,0]"), 0), HasSubstr("span 0 bytes"));
  EXPECT_THAT(error_of(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), HasSubstr("dimensions"));
  EXPECT_THAT(error_of(one("F4", "[3]", "[0,2]"), 2), HasSubstr("F4 [3]"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0,4]"), 3), HasSubstr("the file is cut"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[0,4]"), 5), HasSubstr("belong to no tensor"));
  EXPECT_THAT(error_of(one("U8", "[4]", "[2,6]"), 6), HasSubstr("belong to nothing"));
  EXPECT_THAT(error_of(R"({"t":{"dtype":"U8","shape":[4]}})", 4), HasSubstr("lacks"));
  EXPECT_THAT(
      error_of(
          R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"u":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
          6),
      HasSubstr("t and u overlap"));
  EXPECT_THAT(
      error_of(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"model.t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2),
      HasSubstr("given twice"));
}

TEST(Safetensors, HeadersThatAreNoJsonAreRefused) {
  EXPECT_NE(error_of("", 0), "accepted");
  EXPECT_NE(error_of("null", 0), "accepted");
  EXPECT_NE(error_of("{} x", 0), "accepted");
  EXPECT_NE(error_of("{\"a", 0), "accepted");
  EXPECT_NE(error_of("{\"\\ud800\":{}}", 0), "accepted");
  EXPECT_THAT(error_of("{\"__metadata__\":" + std::string(100000, '[') + "}", 0), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of("{\"t\":" + std::string(100000, '{'), 0), HasSubstr("expected"));
  for (size_t n = 0; n + 4 < std::strlen(kTwo); ++n)
    EXPECT_NE(error_of(std::string_view(kTwo).substr(0, n), 16), "accepted");
}

TEST(Safetensors, HeaderLengthIsComparedWithTheFile) {
  ScratchDirectory dir;
  const std::string path = dir.file("model.safetensors");
  ASSERT_TRUE(write_file(path, "abc"));
  EXPECT_THAT(open_tensor_files(path).error().message, HasSubstr("3 bytes"));
  for (uint64_t length : {uint64_t{100}, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string bytes(16, ' ');
    std::memcpy(bytes.data(), &length, 8);
    ASSERT_TRUE(write_file(path, bytes));
    EXPECT_THAT(open_tensor_files(path).error().message, HasSubstr("larger than the file"));
  }
}

TEST(Safetensors, ShardsAndIndexMustAgree) {
  ScratchDirectory dir;
  auto tensor = [](const char* name) {
    return fmt::format(R"({{"{}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}})", name);
  };
  write_shard(dir.file("a.safetensors"), tensor("x"), 4);
  write_shard(dir.file("b.safetensors"), tensor("model.y"), 4);
  auto open_with = [&](const std::string& map) {
    EXPECT_TRUE(write_file(dir.file("model.safetensors.index.json"),
                           "{\"metadata\":{\"total_size\":8},\"weight_map\":" + map + "}"));
    return open_tensor_files(dir.path());
  };
  auto good = open_with(R"({"x":"a.safetensors","model.y":"b.safetensors"})");
  ASSERT_TRUE(good) << good.error().message;
  ASSERT_NE(good->find("y"), nullptr);
  EXPECT_EQ(good->find("y")->shard, 1);
  EXPECT_EQ(good->find("z"), nullptr);

  auto missing = open_with(R"({"x":"a.safetensors","y":"c.safetensors"})");
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("c.safetensors: shard 2 of 2"));
  EXPECT_THAT(open_with(R"({"x":"a.safetensors","z":"b.safetensors"})").error().message,
              HasSubstr("tensor z is not in b.safetensors"));
  EXPECT_THAT(open_with(R"({"x":"b.safetensors","y":"a.safetensors"})").error().message,
              HasSubstr("tensor x is not in b.safetensors"));
  EXPECT_THAT(open_with(R"({"x":"a.safetensors","x":"a.safetensors"})").error().message, HasSubstr("given twice"));
  EXPECT_THAT(open_with(R"({"x":"../a.safetensors"})").error().message, HasSubstr("plain file names"));
  EXPECT_THAT(open_with("{}").error().message, HasSubstr("empty"));
  EXPECT_THAT(open_with("[").error().message, HasSubstr("index.json"));

  std::filesystem::resize_file(dir.file("b.safetensors"), std::filesystem::file_size(dir.file("b.safetensors")) - 1);
  EXPECT_THAT(open_with(R"({"x":"a.safetensors","y":"b.safetensors"})").error().message,
              testing::AllOf(HasSubstr("b.safetensors"), HasSubstr("the file is cut")));
  EXPECT_THAT(open_with(R"({"x":"a.safetensors"})")->unlisted, testing::IsEmpty());
}

TEST(Safetensors, ParsesHundredThousandTensors) {
  std::vector<TensorEntry> entries;
  for (int i = 0; i < 96085; ++i) {
    entries.push_back({.name = fmt::format("layers.{}.ffn.experts.{}.w1.weight", i / 400, i % 400),
                       .type = StoredType::kI8,
                       .shape = {2304, 2560},
                       .offset = int64_t{2304} * 2560 * i,
                       .bytes = int64_t{2304} * 2560});
  }
  std::string header = make_header(entries).substr(8);
  auto r = parse_header(header, 0, int64_t{2304} * 2560 * 96085);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->size(), 96085u);
}

}  // namespace
}  // namespace deepinfer::weights
