#include "serve/overload.h"

#include <gtest/gtest.h>

namespace deepinfer::serve {
namespace {

Rung after(Overload& overload, double load) {
  overload.update(load);
  return overload.rung();
}

TEST(Overload, ClimbsAtOnceToTheRungOfTheLoad) {
  for (auto [load, rung] :
       {std::pair(0.49, Rung::kNone), std::pair(0.5, Rung::kFewerDrafts), std::pair(0.74, Rung::kFewerDrafts),
        std::pair(0.75, Rung::kNoBatches), std::pair(0.99, Rung::kNoBatches), std::pair(1.0, Rung::kRefusing),
        std::pair(7.0, Rung::kRefusing)}) {
    Overload overload;
    EXPECT_EQ(after(overload, load), rung) << load;
  }
}

TEST(Overload, StaysWhileTheLoadIsCloseBelowAMark) {
  Overload overload;
  after(overload, 1.0);
  EXPECT_EQ(after(overload, 0.81), Rung::kRefusing);
  EXPECT_EQ(after(overload, 0.79), Rung::kNoBatches);
  EXPECT_EQ(after(overload, 0.61), Rung::kNoBatches);
  EXPECT_EQ(after(overload, 0.59), Rung::kFewerDrafts);
  EXPECT_EQ(after(overload, 0.41), Rung::kFewerDrafts);
  EXPECT_EQ(after(overload, 0.39), Rung::kNone);
}

TEST(Overload, ComesDownOneRungAtATime) {
  Overload overload;
  after(overload, 2.0);
  EXPECT_EQ(after(overload, 0), Rung::kNoBatches);
  EXPECT_EQ(after(overload, 0), Rung::kFewerDrafts);
  EXPECT_EQ(after(overload, 0), Rung::kNone);
  EXPECT_EQ(after(overload, 0), Rung::kNone);
}

}  // namespace
}  // namespace deepinfer::serve
