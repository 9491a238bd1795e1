// The overload ladder (serving.md 7.4): what the service gives up, one thing after the other, before it refuses.
//
//   rung  from load   what it does
//   1     0.5         steps whose rows do not suffice for the prompts at hand verify half of the drafts
//   2     0.75        batches give their lines back and start none
//   3     1           requests are refused; admission does that by itself, one by one
//
//   Load: the predicted wait as a share of the longest, or the requests that are in as a share of the most, whichever
//   is larger; a request that had no room makes it 1. A rung is climbed at once and left, one at a time, only when the
//   load is well below its mark, so that what it gains does not undo it.
//
// Owned by the loop.
#pragma once

namespace deepinfer::serve {

enum class Rung : int { kNone, kFewerDrafts, kNoBatches, kRefusing };

class Overload {
 public:
  // Called several times a second.
  void update(double load);
  Rung rung() const { return static_cast<Rung>(rung_); }

 private:
  int rung_ = 0;
};

}  // namespace deepinfer::serve
