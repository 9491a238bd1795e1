#include "serve/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

using testing::HasSubstr;

TEST(Keys, FindsTheOwnerOfAKey) {
  Keys keys;
  std::string digest = hex(sha256(std::as_bytes(std::span("second-key", 10))));
  ASSERT_TRUE(
      keys.parse("# people\nanna  first-key rpm=60 priority=5\n\nbert sha256:" + digest + " admin # boss\n", "f"));
  EXPECT_FALSE(keys.is_open());
  ASSERT_TRUE(keys.find("first-key"));
  EXPECT_EQ(keys.find("first-key")->name, "anna");
  EXPECT_EQ(keys.find("first-key")->requests_per_minute, 60);
  EXPECT_EQ(keys.find("first-key")->priority, 5);
  ASSERT_TRUE(keys.find("second-key"));
  EXPECT_TRUE(keys.find("second-key")->is_admin);
  for (std::string wrong : {"", "first-ke", "first-key ", "First-key", digest.c_str()}) EXPECT_FALSE(keys.find(wrong));
}

TEST(Keys, WithoutAFileNoKeyIsNeeded) {
  EXPECT_TRUE(Keys().is_open());
}

TEST(Keys, AnErrorNamesTheLineAndKeepsTheOldKeys) {
  Keys keys;
  ASSERT_TRUE(keys.parse("anna first-key\n", "f"));
  struct Case {
    const char *text, *named;
  };
  for (auto [text, named] : {Case{"anna\n", "f:1"}, Case{"a first-key\nb short\n", "f:2"},
                             Case{"a sha256:12\n", "64 hex"}, Case{"a first-key rpm=-1\n", "rpm=-1"},
                             Case{"a first-key rpm=x\n", "rpm=x"}, Case{"a first-key priority=2000\n", "priority"},
                             Case{"a first-key wizard\n", "wizard"}, Case{"# nothing\n", "no key"}}) {
    auto parsed = keys.parse(text, "f");
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(named));
  }
  EXPECT_TRUE(keys.find("first-key"));
}

}  // namespace
}  // namespace deepinfer::serve
