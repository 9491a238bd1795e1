// Collectives between the ranks of one replica. A communicator is a value that a rank is given; ranks are numbered from
// 0.
//
//   all_gather  every rank has filled its own columns of a matrix; afterwards each has all columns
//   merge       the ranks that have an element agree on its bits, the others have zero; afterwards every rank has it (a
//               bitwise or, so even the sign of a zero survives: no sum is ever split between ranks)
//   barrier     nobody leaves before everybody came
//
// All ranks call the same functions in the same order with the same shapes, each from its own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "tensor/view.h"

namespace deepinfer::comm {

// Columns [bounds[r], bounds[r + 1]) of `view` belong to rank r.
struct Gather {
  TensorView view;
  std::span<const int64_t> bounds;  // [ranks + 1]
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void all_gather(Stream& stream, std::span<const Gather> pieces) = 0;
  virtual void merge(Stream& stream, TensorView view) = 0;
  virtual void barrier(Stream& stream) = 0;

  void all_gather(Stream& stream, const Gather& piece) { all_gather(stream, std::span(&piece, 1)); }
};

// One rank: nothing to do.
std::unique_ptr<Communicator> make_single_communicator();

// Ranks of this process, each driven by a thread of its own; element r is for rank r.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int num_ranks);

}  // namespace deepinfer::comm
