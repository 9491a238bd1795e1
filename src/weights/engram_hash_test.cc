// Check values of model.md 4.2, and numpy's generator.

#include "weights/engram_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer {
namespace {

using testing::ElementsAre;

ModelConfig released() {
  return load_config(weights::golden("released")).value();
}

TEST(EngramHash, PrimesOfTheReleasedModel) {
  EngramHash hash(released(), 2);
  EXPECT_EQ(hash.columns(), 24);
  EXPECT_EQ(hash.primes(0).front(), 16000057);
  EXPECT_EQ(hash.primes(0).back(), 16000463);
  EXPECT_EQ(hash.primes(1).front(), 16000477);
  EXPECT_EQ(hash.primes(1).back(), 16000889);
  EXPECT_THAT(engram_table_rows(2, 4, 8, 16000000), ElementsAre(384006168, 384016682));
}

TEST(EngramHash, PrimesAgreeWithTrialDivision) {
  for (int64_t start : {0, 2, 3, 500, 7919, 104729, 2147483000}) {
    auto found = primes_from(start, 40);
    ASSERT_EQ(found.size(), 40u);
    size_t next = 0;
    for (int64_t n = std::max<int64_t>(start, 2); next < found.size(); ++n) {
      bool is_prime = true;
      for (int64_t d = 2; d * d <= n && is_prime; ++d) is_prime = n % d != 0;
      if (!is_prime) continue;
      ASSERT_EQ(found[next++], n);
    }
  }
}

TEST(EngramHash, MultipliersOfTheReleasedModel) {
  EngramHash hash(released(), 2);
  EXPECT_THAT(hash.multipliers(0), ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(hash.multipliers(1), ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(EngramHash, RowsOfTheCheckHistory) {
  EngramHash hash(released(), 2);
  const std::vector<int32_t> history = {5, 17, 99091, 1234, 77};
  std::vector<int64_t> rows(5 * 24);
  hash.rows(0, history, 5, rows);
  EXPECT_EQ(rows[0], 5412672);
  const int64_t* last = rows.data() + 4 * 24;
  EXPECT_EQ(last[0], 14881346);
  EXPECT_EQ(last[1], 23329163);
  EXPECT_EQ(last[2], 41551872);
  EXPECT_EQ(last[23], 374269417);
  hash.rows(1, history, 5, rows);
  EXPECT_EQ(last[0], 2156652);
  EXPECT_EQ(last[8], 130315179);
  EXPECT_EQ(last[16], 258574337);
  EXPECT_EQ(last[23], 378599296);
}

TEST(EngramHash, RowsFromAnyStartAgree) {
  EngramHash hash(released(), 2);
  const std::vector<int32_t> history = {9, 8, 7, kEngramDead, 5, 4, 3, 2, 1, 0};
  std::vector<int64_t> all(10 * 24), one(24);
  hash.rows(1, history, 10, all);
  for (int64_t t = 0; t < 10; ++t) {
    int64_t begin = std::max<int64_t>(0, t - 3);
    hash.rows(1, std::span(history).subspan(static_cast<size_t>(begin), static_cast<size_t>(t - begin + 1)), 1, one);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + t * 24)) << t;
  }
}

TEST(EngramHash, EverythingBehindADeadTokenIsPad) {
  EngramHash hash(released(), 2);
  std::vector<int64_t> dead(24), pad(24);
  hash.rows(0, std::vector<int32_t>{7, 8, kEngramDead, 5}, 1, dead);
  hash.rows(0, std::vector<int32_t>{2, 2, 2, 5}, 1, pad);
  EXPECT_EQ(dead, pad);
}

}  // namespace
}  // namespace deepinfer
