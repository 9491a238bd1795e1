#include "serve/overload.h"

#include <iterator>

namespace deepinfer::serve {
namespace {

constexpr double kMarks[] = {0, 0.5, 0.75, 1};  // loads from which on the rungs hold
constexpr int kHighest = std::ssize(kMarks) - 1;
constexpr double kLeaveShare = 0.8;  // of a rung's mark; it is left below

}  // namespace

void Overload::update(double load) {
  if (rung_ > 0 && load < kLeaveShare * kMarks[rung_]) --rung_;
  while (rung_ < kHighest && load >= kMarks[rung_ + 1]) ++rung_;
}

}  // namespace deepinfer::serve
