#include "serve/admission.h"

#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

Principal key(const std::string& name, double rpm = 0, double tpm = 0) {
  return {.name = name, .requests_per_minute = rpm, .tokens_per_minute = tpm};
}

// As if a prompt had just been computed with so many rows a second.
void learn(Admission& a, double rows_per_second) {
  auto ticket = a.admit(key("another"), {}, 0);
  a.start(*ticket, 0);
  a.observe(rows_per_second, 1.0);
  a.release(*ticket);
}

TEST(Admission, RefusesWhenThePredictedWaitExceedsTheLimit) {
  Admission a({.max_wait_s = 10});
  learn(a, 1000);  // 1000 rows a second
  EXPECT_TRUE(a.admit(key("a"), {.prompt_tokens = 9000, .output_tokens = 1}, 0));
  EXPECT_NEAR(a.predicted_wait_s(0), 9.0, 0.01);
  auto refused = a.admit(key("a"), {.prompt_tokens = 3000, .output_tokens = 1}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 503);
  EXPECT_EQ(refused.error().code, "overloaded");
  EXPECT_EQ(refused.error().retry_after_s, 2);
}

TEST(Admission, ADeadlineBelowTheLimitCounts) {
  Admission a({.max_wait_s = 100});
  learn(a, 1000);
  EXPECT_FALSE(a.admit(key("a"), {.prompt_tokens = 5000, .output_tokens = 1, .deadline_s = 4.0}, 0));
  EXPECT_TRUE(a.admit(key("a"), {.prompt_tokens = 5000, .output_tokens = 1, .deadline_s = 6.0}, 0));
}

TEST(Admission, LetsEverythingInWhileTheRateIsUnknown) {
  Admission a({.max_wait_s = 1});
  EXPECT_TRUE(a.admit(key("a"), {.prompt_tokens = 1e9, .output_tokens = 1}, 0));
}

TEST(Admission, StepsThatOnlyDecodeSayNothingOfPrompts) {
  Admission a({.max_wait_s = 10});
  a.observe(2, 1.0);  // the warm-up
  EXPECT_EQ(a.predicted_wait_s(1000), 0) << "still unknown";
  auto t = a.admit(key("a"), {.prompt_tokens = 500, .output_tokens = 100}, 0);
  ASSERT_TRUE(t);
  a.observe(5, 1.0);  // the prompt had only just come
  EXPECT_EQ(a.predicted_wait_s(1000), 0);
  a.observe(500, 1.0);
  a.start(*t, 1);
  a.observe(500, 1.0);  // the prompt's last rows were in here
  for (int i = 0; i < 100; ++i) a.observe(5, 1.0);
  EXPECT_NEAR(a.predicted_wait_s(1000), 2.0, 0.01);
}

TEST(Admission, BoundsTheNumberOfRequests) {
  Admission a({.max_requests = 2});
  auto first = a.admit(key("a"), {}, 0);
  ASSERT_TRUE(first);
  EXPECT_TRUE(a.admit(key("a"), {}, 0));
  auto third = a.admit(key("a"), {}, 0);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().status, 503);
  EXPECT_GE(third.error().retry_after_s, 1);
  a.release(*first);
  EXPECT_TRUE(a.admit(key("a"), {}, 0));
}

TEST(Admission, LoadIsTheLargerShareOfWaitAndRequests) {
  Admission a({.max_wait_s = 10, .max_requests = 4});
  learn(a, 100);
  EXPECT_EQ(a.take_load(), 0);
  ASSERT_TRUE(a.admit(key("a"), {.prompt_tokens = 100}, 0));
  EXPECT_NEAR(a.take_load(), 0.25, 0.01) << "one of four";
  ASSERT_TRUE(a.admit(key("a"), {.prompt_tokens = 500}, 0));
  EXPECT_NEAR(a.take_load(), 0.6, 0.01) << "six seconds of ten";
}

TEST(Admission, ARequestThatHadNoRoomMakesTheLoadOneOnce) {
  Admission a({.max_wait_s = 10});
  learn(a, 100);
  ASSERT_TRUE(a.admit(key("a"), {.prompt_tokens = 400}, 0));
  EXPECT_FALSE(a.admit(key("a"), {.prompt_tokens = 500, .deadline_s = 1.0}, 0));
  EXPECT_NEAR(a.take_load(), 0.4, 0.01) << "its own deadline, not the room";
  EXPECT_FALSE(a.admit(key("a"), {.prompt_tokens = 700}, 0));
  EXPECT_EQ(a.take_load(), 1);
  EXPECT_NEAR(a.take_load(), 0.4, 0.01);
}

TEST(Admission, WorkGoesAwayAsItIsDone) {
  Admission a({.max_wait_s = 10});
  learn(a, 100);
  auto t = a.admit(key("a"), {.prompt_tokens = 500, .output_tokens = 100}, 0);
  ASSERT_TRUE(t);
  EXPECT_NEAR(a.queued_work_s(), 6.0, 0.01);
  a.start(*t, 5);
  EXPECT_NEAR(a.predicted_wait_s(0), 0.0, 0.01);
  a.produce(*t, 40);
  EXPECT_NEAR(a.queued_work_s(), 0.6, 0.01);
  a.release(*t);
  EXPECT_EQ(a.queued_work_s(), 0.0);
  EXPECT_EQ(a.num_requests(), 0);
}

TEST(Admission, PredictionsAreCorrectedByHowLongWaitsTurnOut) {
  Admission a({.max_wait_s = 10});
  learn(a, 1000);
  double now = 0;
  int num_above = 0;
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) {
    double predicted = a.predicted_wait_s(1000);
    double wait = 1.5 + 0.5 * ((i * 7) % 10) / 10;  // 1 s is the plain prediction
    auto t = a.admit(key("a"), {.prompt_tokens = 1000, .output_tokens = 1}, now);
    ASSERT_TRUE(t);
    a.start(*t, now += wait);
    a.release(*t);
    if (i >= kCount / 2) num_above += wait > predicted;
  }
  EXPECT_LE(num_above, kCount / 2 / 20);
  EXPECT_NEAR(a.predicted_wait_s(1000), 2.0, 0.15);
}

TEST(Admission, RequestsAMinuteRefillWithTime) {
  Admission a({});
  EXPECT_TRUE(a.admit(key("a", 2), {}, 0));
  EXPECT_TRUE(a.admit(key("a", 2), {}, 0));
  auto refused = a.admit(key("a", 2), {}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_EQ(refused.error().retry_after_s, 30);
  EXPECT_TRUE(a.admit(key("b", 2), {}, 0));  // another key has its own
  EXPECT_FALSE(a.admit(key("a", 2), {}, 29));
  EXPECT_TRUE(a.admit(key("a", 2), {}, 31));
}

TEST(Admission, TokensAMinuteCountPromptAndAnswer) {
  Admission a({});
  EXPECT_TRUE(a.admit(key("a", 0, 1000), {.prompt_tokens = 700, .output_tokens = 100}, 0));
  auto refused = a.admit(key("a", 0, 1000), {.prompt_tokens = 300, .output_tokens = 100}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  // Larger than a whole minute: passes once the bucket is full.
  EXPECT_TRUE(a.admit(key("b", 0, 1000), {.prompt_tokens = 5000, .output_tokens = 100}, 0));
}

TEST(Admission, AKeyOverItsShareOfABusySystemIsRefusedFirst) {
  Admission a({.max_wait_s = 10});
  learn(a, 100);
  ASSERT_TRUE(a.admit(key("small"), {.prompt_tokens = 10, .output_tokens = 10}, 0));
  ASSERT_TRUE(a.admit(key("large"), {.prompt_tokens = 700, .output_tokens = 10}, 0));
  auto refused = a.admit(key("large"), {.prompt_tokens = 10, .output_tokens = 10}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_EQ(refused.error().code, "over_fair_share");
  EXPECT_TRUE(a.admit(key("small"), {.prompt_tokens = 10, .output_tokens = 10}, 0));
}

}  // namespace
}  // namespace deepinfer::serve
