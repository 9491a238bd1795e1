#include "parallel/context.h"

#include <random>

#include <gtest/gtest.h>

#include "base/testing/runtime_cases.h"

namespace deepinfer::parallel {
namespace {

using testing_cases::name_of;
using testing_cases::number;
using testing_cases::numbers;
using testing_cases::runtime_cases;
using testing_cases::table;

TEST(ContextCases, Mirror) {
  for (const auto& c : runtime_cases("cp_mirror")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    auto rows = numbers<int>(in.at("seqlens_q"));
    auto keys = numbers<int64_t>(in.at("seqlens_k"));
    MirrorPlan plan = mirror_rows(rows, number<int>(in, "cp_size"));
    EXPECT_EQ(plan.rows_per_rank, number<int>(want, "rows_per_rank")) << name_of(c);
    EXPECT_EQ(plan.index, table<int>(want.at("index"))) << name_of(c);
    EXPECT_EQ(plan.reverse, numbers<int>(want.at("reverse"))) << name_of(c);
    for (int ratio : numbers<int>(in.at("ratios"))) {
      KeyRanges ranges = key_ranges(plan, rows, keys, ratio);
      EXPECT_EQ(ranges.begin, table<int64_t>(want.at("ks").at(std::to_string(ratio)))) << name_of(c);
      EXPECT_EQ(ranges.end, table<int64_t>(want.at("ke").at(std::to_string(ratio)))) << name_of(c);
    }
  }
}

TEST(ContextCases, Boundary) {
  for (const auto& c : runtime_cases("cp_boundary")) {
    const auto &in = c.at("inputs"), &want = c.at("expected");
    BoundaryPlan plan =
        boundary_rows(numbers<int>(in.at("seqlens_q")), numbers<int>(in.at("keep")), number<int>(in, "cp_size"));
    EXPECT_EQ(plan.pad, number<int>(want, "pad")) << name_of(c);
    EXPECT_EQ(plan.contrib, table<int>(want.at("contrib"))) << name_of(c);
    EXPECT_EQ(plan.reverse, numbers<int>(want.at("reverse"))) << name_of(c);
  }
}

TEST(ContextCases, Balance) {
  for (const auto& c : runtime_cases("cp_balance")) {
    EXPECT_EQ(causal_pairs(number<int>(c.at("inputs"), "length"), number<int>(c.at("inputs"), "cp_size")),
              numbers<int64_t>(c.at("expected").at("causal_pairs_per_rank")));
  }
}

TEST(Context, EveryRowIsOnExactlyOneRank) {
  std::mt19937 rng(9);
  for (int round = 0; round < 300; ++round) {
    int cp = 1 + static_cast<int>(rng() % 8);
    std::vector<int> rows(1 + rng() % 5), kept;
    int total = 0, num_kept = 0;
    for (int& q : rows) {
      q = 1 + static_cast<int>(rng() % 40);
      kept.push_back(1 + static_cast<int>(rng() % static_cast<unsigned>(q)));
      total += q;
      num_kept += kept.back();
    }
    MirrorPlan plan = mirror_rows(rows, cp);
    for (int row = 0; row < total; ++row) {
      int place = plan.reverse[static_cast<std::size_t>(row)];
      EXPECT_EQ(plan.index[static_cast<std::size_t>(place / plan.rows_per_rank)]
                          [static_cast<std::size_t>(place % plan.rows_per_rank)],
                row);
    }
    BoundaryPlan boundary = boundary_rows(rows, kept, cp);
    EXPECT_EQ(static_cast<int>(boundary.reverse.size()), num_kept);
    EXPECT_EQ(static_cast<int>(boundary.kept.reverse.size()), num_kept);
  }
}

}  // namespace
}  // namespace deepinfer::parallel
