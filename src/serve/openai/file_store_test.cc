#include "serve/openai/file_store.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "serve/openai/paging.h"
#include "text/json_tree.h"

namespace deepinfer::serve::openai {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kDay{86400};

class FileStoreTest : public testing::Test {
 protected:
  FileStoreTest() { fs::remove_all(folder_); }
  ~FileStoreTest() override { fs::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "file_store_test";
};

std::vector<std::string> names(const std::vector<FilePtr>& files) {
  std::vector<std::string> out;
  for (const FilePtr& f : files) out.push_back(f->name);
  return out;
}

TEST_F(FileStoreTest, AFileIsFoundByItsTenantAndByALaterProcess) {
  std::string bytes("line\n\0\xff\n", 8), first;
  {
    FileStore store(folder_, kDay, 1000);
    ASSERT_TRUE(store.load());
    first = (*store.add("anna", {.name = "a \"b\"\n", .purpose = "batch", .data = bytes}))->id;
    ASSERT_TRUE(store.add("anna", {.name = "second", .purpose = "batch", .data = ""}));
    EXPECT_EQ(store.get("ben", first), nullptr);
    EXPECT_FALSE(store.remove("ben", first));
  }
  FileStore store(folder_, kDay, 1000);
  ASSERT_TRUE(store.load());
  FilePtr file = store.get("anna", first);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->data, bytes);
  EXPECT_EQ(file->expires_s - file->created_s, kDay.count());
  EXPECT_EQ(names(store.list("anna")).front(), "second");  // both of the same second
  EXPECT_EQ(store.list("anna").size(), 2U);
  EXPECT_TRUE(store.list("ben").empty());
  EXPECT_TRUE(store.remove("anna", first));
  EXPECT_FALSE(fs::exists(folder_ + "/" + first));
}

TEST_F(FileStoreTest, WhatDoesNotFitIsRefusedAndNothingIsPushedOut) {
  FileStore store("", kDay, 100);
  ASSERT_TRUE(store.add("", {.name = "a", .purpose = "batch", .data = std::string(60, 'x')}));
  auto refused = store.add("", {.name = "b", .purpose = "batch", .data = std::string(60, 'x')});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 413);
  EXPECT_THAT(refused.error().message, testing::AllOf(HasSubstr("61"), HasSubstr("100")));
  ASSERT_TRUE(store.add("", {.name = "c", .purpose = std::string(kBatchOutput), .data = std::string(60, 'x')}));
  EXPECT_THAT(names(store.list("")), ElementsAre("c", "a"));
}

TEST_F(FileStoreTest, FilesGoWhenTheirTimeIsOver) {
  FileStore store(folder_, std::chrono::seconds(0), 1000);
  ASSERT_TRUE(store.load());
  std::string id = (*store.add("", {.name = "a", .purpose = "batch", .data = "x"}))->id;
  EXPECT_EQ(store.get("", id), nullptr);
  EXPECT_FALSE(fs::exists(folder_ + "/" + id));
}

TEST_F(FileStoreTest, ADamagedFileIsLeftOut) {
  std::string whole;
  {
    FileStore store(folder_, kDay, 1000);
    ASSERT_TRUE(store.load());
    whole = (*store.add("", {.name = "whole", .purpose = "batch", .data = "xyz"}))->id;
  }
  std::string text = *read_file(folder_ + "/" + whole);
  for (std::size_t cut = 0; cut < text.size(); ++cut)
    ASSERT_TRUE(write_file(folder_ + "/cut" + std::to_string(cut), text.substr(0, cut)));
  FileStore store(folder_, kDay, 1000);
  ASSERT_TRUE(store.load());
  EXPECT_THAT(names(store.list("")), ElementsAre("whole"));
}

TEST(Paging, GivesEveryEntryOnceInEitherOrder) {
  std::vector<ListEntry> entries;
  for (int i = 9; i >= 0; --i) entries.push_back({std::to_string(i), std::to_string(i)});
  for (std::string order : {"desc", "asc"}) {
    std::string seen, after;
    for (int pages = 1;; ++pages) {
      auto page = read_page("x=1&limit=4&order=" + order + "&after=" + after, 20, 100);
      auto json = page_json(*page, entries);
      ASSERT_TRUE(json);
      auto tree = *text::JsonTree::parse(*json);
      for (text::JsonValue v : tree.root().find("data")) seen += v.text();
      after = tree.root().find("last_id").text();
      if (tree.root().find("has_more").is_true()) continue;
      EXPECT_EQ(pages, 3);
      break;
    }
    EXPECT_EQ(seen, order == "asc" ? "0123456789" : "9876543210");
  }
}

TEST(Paging, SaysWhatIsWrong) {
  for (const char* query : {"limit=0", "limit=101", "limit=1x", "limit=-1"})
    EXPECT_EQ(read_page(query, 20, 100).error().param, "limit") << query;
  EXPECT_EQ(read_page("order=up", 20, 100).error().param, "order");
  EXPECT_EQ(page_json({.after = "none"}, {}).error().param, "after");
  EXPECT_THAT(*page_json({}, {}), HasSubstr(R"("first_id":null,"last_id":null,"has_more":false)"));
}

}  // namespace
}  // namespace deepinfer::serve::openai
