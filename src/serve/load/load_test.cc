#include "serve/load/load.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "serve/load/load_plan.h"
#include "serve/load/load_report.h"
#include "serve/load/sse_reader.h"
#include "text/json_tree.h"

namespace deepinfer::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double number(const text::JsonTree& tree, const char* name) {
  return std::stod(std::string(tree.root().find(name).text()));
}

TEST(LoadPlan, GapsHaveTheRateAndTheFormThatWasAskedFor) {
  for (double burstiness : {0.25, 1.0, 4.0}) {
    auto plan = *plan_load({.num_prompts = 20'000, .request_rate = 50, .burstiness = burstiness});
    double sum = 0, squares = 0;
    for (std::size_t i = 1; i < plan.size(); ++i) {
      double gap = plan[i].at_s - plan[i - 1].at_s;
      sum += gap, squares += gap * gap;
    }
    auto n = static_cast<double>(plan.size() - 1);
    double mean = sum / n, variation = (squares / n - mean * mean) / (mean * mean);
    EXPECT_NEAR(mean, 1.0 / 50, 0.05 / 50) << burstiness;
    EXPECT_NEAR(variation * burstiness, 1, 0.15) << burstiness;  // squared deviation over squared mean: 1 / shape
  }
}

TEST(LoadPlan, TheSeedDecidesEverything) {
  LoadOptions o{.num_prompts = 50, .request_rate = 10, .input_len = "lognormal:40:0.8", .output_len = "uniform:1:9"};
  auto ids = [](const LoadOptions& options) {
    std::vector<std::vector<int32_t>> all;
    auto plan = *plan_load(options);
    for (const PlannedRequest& r : plan) all.push_back(prompt_ids(r, 100, 999));
    return all;
  };
  auto first = ids(o);
  EXPECT_EQ(first, ids(o));
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
  o.seed = 1;
  EXPECT_NE(first, ids(o));
}

TEST(LoadPlan, PrefixesAreSharedByPopularity) {
  LoadOptions o{.num_prompts = 3000, .input_len = "5", .prefix_len = "20", .num_prefixes = 4, .prefix_skew = 1};
  auto plan = *plan_load(o);
  std::map<std::vector<int32_t>, int> uses;
  for (const PlannedRequest& r : plan) {
    std::vector<int32_t> ids = prompt_ids(r, 100, 999);
    EXPECT_EQ(ids.size(), 25u);
    ids.resize(20);
    ++uses[ids];
  }
  std::vector<int> counts;
  for (auto& [ids, count] : uses) counts.push_back(count);
  std::ranges::sort(counts, std::greater());
  ASSERT_EQ(counts.size(), 4u);
  EXPECT_NEAR(counts[0], 3000 * 12.0 / 25, 150);  // 1 of 1 + 1/2 + 1/3 + 1/4
  EXPECT_NEAR(counts[3], 3000 * 3.0 / 25, 90);
}

TEST(LoadPlan, LengthsStayInTheirForm) {
  std::mt19937_64 random(1);
  auto mean = [&](const char* form) {
    Lengths lengths = *Lengths::parse("--x", form, 1);
    double sum = 0;
    for (int i = 0; i < 20'000; ++i) {
      int64_t n = lengths.draw(random);
      EXPECT_GE(n, 1);
      sum += static_cast<double>(n);
    }
    return sum / 20'000;
  };
  EXPECT_EQ(mean("7"), 7);
  EXPECT_NEAR(mean("uniform:10:20"), 15, 0.2);
  EXPECT_NEAR(mean("normal:100:10"), 100, 1);
  EXPECT_NEAR(mean("lognormal:100:0.5"), 100 * std::exp(0.125), 3);
  for (const char* form : {"", "0", "-1", "x", "uniform:3", "uniform:3:2", "normal:1:2:3", "zipf:1:2", "1e12", "nan"})
    EXPECT_THAT(Lengths::parse("--x", form, 1).error().message, HasSubstr("--x")) << form;
}

TEST(LoadPlan, ATraceSharesBlocksByTheirHashes) {
  std::string path = testing::TempDir() + "/load_trace.jsonl";
  ASSERT_TRUE(write_file(path, R"({"timestamp": 3000, "input_length": 25, "output_length": 4, "hash_ids": [7, 8, 9]})"
                               "\n"
                               R"({"timestamp": 1000, "input_length": 22, "output_length": 3, "hash_ids": [7, 8]})"
                               "\n\n"));
  auto plan = *plan_load({.trace_file = path, .trace_speed = 2, .trace_block = 10});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].at_s, 0);
  EXPECT_EQ(plan[1].at_s, 1);
  EXPECT_EQ(plan[0].output_tokens, 3);
  auto a = prompt_ids(plan[0], 100, 999), b = prompt_ids(plan[1], 100, 999);
  EXPECT_EQ(a.size(), 22u);
  EXPECT_EQ(b.size(), 25u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 20, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 20, a.end(), b.begin() + 20));
  ASSERT_TRUE(write_file(path, "{\"timestamp\": 1}\n"));
  EXPECT_THAT(plan_load({.trace_file = path}).error().message, HasSubstr("line 1: input_length"));
}

TEST(SseReader, TheCutOfTheBytesDoesNotMatter) {
  const std::string stream = ": hello\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\ndata: [DONE]\n\n";
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> data;
    auto keep = [&](std::string_view d) { data.emplace_back(d); };
    reader.push(std::string_view(stream).substr(0, cut), keep);
    reader.push(std::string_view(stream).substr(cut), keep);
    EXPECT_THAT(data, ElementsAre("{\"a\": 1}", "two\nlines", "[DONE]")) << cut;
    EXPECT_TRUE(reader.is_between_events());
  }
  SseReader reader;
  reader.push("data: half", [](std::string_view) {});
  EXPECT_FALSE(reader.is_between_events());
}

TEST(LoadReport, CountsTimesAndGoodRequests) {
  std::vector<RequestOutcome> outcomes;
  for (int i = 1; i <= 4; ++i) {
    outcomes.push_back({.start_s = 0.1 * i,
                        .ttft_s = 0.1 * i,
                        .e2el_s = 0.1 * i + 0.4,
                        .itl_s = {0.1, 0.3},
                        .input_tokens = 10,
                        .output_tokens = 5,
                        .status = 200});
  }
  outcomes.push_back({.start_s = 5, .e2el_s = 0.02, .status = 503, .error = "HTTP 503: full"});
  outcomes.push_back({.start_s = 5, .e2el_s = 1, .error = "no connection"});
  LoadOptions o{.request_rate = 3, .goodput_ms = {{"ttft", 250}, {"tpot", 101}}, .is_detailed = true};
  LoadResult result = report_load(o, "m", 2, outcomes);
  EXPECT_EQ(result.num_completed, 4);
  EXPECT_EQ(result.num_failed, 2);
  auto tree = *text::JsonTree::parse(result.json);
  EXPECT_EQ(number(tree, "completed"), 4);
  EXPECT_EQ(number(tree, "refused"), 1);
  EXPECT_NEAR(number(tree, "max_refusal_ms"), 20, 1e-9);
  EXPECT_EQ(number(tree, "request_throughput"), 2);
  EXPECT_EQ(number(tree, "request_goodput"), 1);
  EXPECT_EQ(number(tree, "output_throughput"), 10);
  EXPECT_EQ(number(tree, "total_token_throughput"), 30);
  EXPECT_NEAR(number(tree, "median_ttft_ms"), 250, 1e-9);
  EXPECT_NEAR(number(tree, "p99_ttft_ms"), 397, 1e-9);
  EXPECT_NEAR(number(tree, "mean_tpot_ms"), 100, 1e-9);
  EXPECT_NEAR(number(tree, "mean_itl_ms"), 200, 1e-9);
  EXPECT_EQ(number(tree, "max_concurrent_requests"), 4);
  EXPECT_EQ(tree.root().find("ttfts").size(), 6);
  EXPECT_EQ(tree.root().find("errors_by_kind").find("no connection").text(), "1");
  EXPECT_THAT(result.table, HasSubstr("4 completed, 1 refused, 1 failed"));
}

TEST(LoadReport, APercentileLiesBetweenItsNeighbours) {
  std::vector<double> values = {1, 2, 4};
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile(values, 50), 2);
  EXPECT_EQ(percentile(values, 75), 3);
  EXPECT_EQ(percentile(values, 100), 4);
  EXPECT_EQ(percentile({}, 50), 0);
}

}  // namespace
}  // namespace deepinfer::serve
