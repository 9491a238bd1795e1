#include "net/multipart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer::net {
namespace {

using testing::HasSubstr;

const std::string kType = "multipart/form-data; boundary=\"x y\"";
const std::string kBody =
    "--x y\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--x y\r\ncontent-disposition: form-data; filename=\"a \\\"b\\\"; c.jsonl\"; name=file\r\nContent-Type: "
    "text/plain\r\n"
    "\r\n{}\r\n--x\r\n\r\n--x y--\r\n";

TEST(Multipart, GivesNamesAndBytes) {
  auto parts = parse_form(kType, kBody);
  ASSERT_TRUE(parts) << parts.error().message;
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].data, "batch");
  EXPECT_EQ((*parts)[1].name, "file");
  EXPECT_EQ((*parts)[1].filename, "a \"b\"; c.jsonl");
  EXPECT_EQ((*parts)[1].data, "{}\r\n--x\r\n");
}

TEST(Multipart, SkipsWhatStandsBeforeTheFirstBoundary) {
  auto parts = parse_form(kType, "preamble\r\n" + kBody);
  ASSERT_TRUE(parts) << parts.error().message;
  EXPECT_EQ(parts->size(), 2u);
  EXPECT_TRUE(parse_form(kType, "--x y--")->empty());
}

TEST(Multipart, ABodyCutAnywhereIsRefused) {
  std::size_t end = kBody.rfind("--\r\n");
  for (std::size_t cut = 0; cut <= end; ++cut) EXPECT_FALSE(parse_form(kType, kBody.substr(0, cut))) << cut;
}

TEST(Multipart, SaysWhatIsWrong) {
  auto error = [](const std::string& type, const std::string& body) { return parse_form(type, body).error().message; };
  EXPECT_THAT(error("application/json", kBody), HasSubstr("application/json"));
  EXPECT_THAT(error("multipart/form-data", kBody), HasSubstr("boundary"));
  EXPECT_THAT(error("multipart/form-data; boundary=z", kBody), HasSubstr("boundary"));
  EXPECT_THAT(error(kType, "--x y\r\nA: b\r\n\r\nc\r\n--x y--"), HasSubstr("part 1 has no name"));
  EXPECT_THAT(error(kType, "--x y\r\n\r\n--x y--"), HasSubstr("part 1"));
}

}  // namespace
}  // namespace deepinfer::net
