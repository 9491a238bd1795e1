// Ranks as threads of one process: each publishes the address of its views, waits for the others, and copies.
#include <barrier>
#include <cstring>

#include "base/check.h"
#include "comm/communicator.h"

namespace deepinfer::comm {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(Stream&, std::span<const Gather>) override {}
  void merge(Stream&, TensorView) override {}
  void barrier(Stream&) override {}
};

// What the ranks share. Owners: the communicators of the group, of which any may outlive the others.
struct Group {
  explicit Group(int num_ranks) : published(static_cast<size_t>(num_ranks)), meeting(num_ranks) {}
  std::vector<std::span<const Gather>> published;  // written by its rank before `meeting`, read by the others after
  std::barrier<> meeting;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->published.size()); }

  void all_gather(Stream& stream, std::span<const Gather> pieces) override {
    publish(stream, pieces);
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      std::span<const Gather> theirs = group_->published[static_cast<size_t>(r)];
      DI_CHECK(theirs.size() == pieces.size(), "rank {} gathers {} views, rank {} {}", r, theirs.size(), rank_,
               pieces.size());
      for (size_t i = 0; i < pieces.size(); ++i) copy_columns(theirs[i], pieces[i], r);
    }
    group_->meeting.arrive_and_wait();
  }

  // Rank r merges its share of the rows from all ranks into its own view; the shares are then copied.
  void merge(Stream& stream, TensorView view) override {
    Gather piece{view, {}};
    publish(stream, std::span(&piece, 1));
    auto [begin, end] = share(view.rows, rank_);
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      const TensorView& theirs = view_of(r, view);
      for (int64_t row = begin; row < end; ++row) or_bytes(view.row_range(row, 1), theirs.row_range(row, 1));
    }
    group_->meeting.arrive_and_wait();
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      const TensorView& theirs = view_of(r, view);
      auto [from, to] = share(view.rows, r);
      for (int64_t row = from; row < to; ++row)
        std::memcpy(view.row_range(row, 1).data, theirs.row_range(row, 1).data, static_cast<size_t>(view.row_bytes()));
    }
    group_->meeting.arrive_and_wait();
  }

  void barrier(Stream& stream) override {
    stream.synchronize();
    group_->meeting.arrive_and_wait();
  }

 private:
  void publish(Stream& stream, std::span<const Gather> pieces) {
    stream.synchronize();
    group_->published[static_cast<size_t>(rank_)] = pieces;
    group_->meeting.arrive_and_wait();
  }
  std::pair<int64_t, int64_t> share(int64_t rows, int r) const { return {rows * r / size(), rows * (r + 1) / size()}; }

  const TensorView& view_of(int r, const TensorView& mine) const {
    const TensorView& theirs = group_->published[static_cast<size_t>(r)][0].view;
    DI_CHECK(theirs.rows == mine.rows && theirs.cols == mine.cols && theirs.dtype == mine.dtype,
             "ranks {} and {} merge different shapes", r, rank_);
    return theirs;
  }

  static void copy_columns(const Gather& from, const Gather& to, int r) {
    DI_CHECK(from.view.rows == to.view.rows && from.view.cols == to.view.cols && from.view.dtype == to.view.dtype,
             "rank {} gathers another shape", r);
    int64_t begin = to.bounds[static_cast<size_t>(r)], count = to.bounds[static_cast<size_t>(r) + 1] - begin;
    if (count == 0) return;
    TensorView source = from.view.col_range(begin, count), target = to.view.col_range(begin, count);
    for (int64_t row = 0; row < target.rows; ++row)
      std::memcpy(target.row_range(row, 1).data, source.row_range(row, 1).data,
                  static_cast<size_t>(target.row_bytes()));
  }

  static void or_bytes(const TensorView& to, const TensorView& from) {
    auto* a = static_cast<unsigned char*>(to.data);
    const auto* b = static_cast<const unsigned char*>(from.data);
    for (int64_t i = 0; i < to.row_bytes(); ++i) a[i] |= b[i];
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int num_ranks) {
  auto group = std::make_shared<Group>(num_ranks);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int r = 0; r < num_ranks; ++r) out.push_back(std::make_unique<LocalCommunicator>(group, r));
  return out;
}

}  // namespace deepinfer::comm
