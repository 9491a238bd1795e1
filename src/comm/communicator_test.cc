#include "comm/communicator.h"

#include <array>
#include <thread>

#include <gtest/gtest.h>

#include "device/cpu/cpu_stream.h"

namespace deepinfer::comm {
namespace {

// Calls f(communicator, stream) on a thread for each rank.
template <typename F>
void on_ranks(int num_ranks, F&& f) {
  auto comms = num_ranks == 1 ? std::vector<std::unique_ptr<Communicator>>() : make_local_communicators(num_ranks);
  if (num_ranks == 1) comms.push_back(make_single_communicator());
  std::vector<std::thread> threads;
  for (auto& comm : comms) {
    threads.emplace_back([&f, &comm] {
      CpuStream stream(1);
      f(*comm, stream);
    });
  }
  for (auto& t : threads) t.join();
}

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, GatherUnevenColumnsOfStridedViews) {
  const int n = GetParam();
  std::vector<int64_t> bounds = {0};
  for (int r = 0; r < n; ++r) bounds.push_back(bounds.back() + (r * 5 + 3) % 7);  // one of four ranks has none
  const int64_t cols = bounds.back(), rows = 3, stride = cols + 2;
  on_ranks(n, [&](Communicator& comm, Stream& stream) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> a(static_cast<size_t>(rows * stride), -1.f);
      TensorView view{a.data(), DType::kF32, rows, cols, stride};
      auto value = [&](int64_t t, int64_t c) { return static_cast<float>(1000 * round + 100 * t + c); };
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t c = bounds[static_cast<size_t>(comm.rank())]; c < bounds[static_cast<size_t>(comm.rank()) + 1];
             ++c)
          view.f32(t)[c] = value(t, c);
      }
      comm.all_gather(stream, {view, bounds});
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(view.f32(t)[c], value(t, c));
        ASSERT_EQ(a[static_cast<size_t>(t * stride + cols)], -1.f);
      }
    }
  });
}

TEST_P(Collectives, MergeKeepsTheSignOfZero) {
  const int n = GetParam();
  on_ranks(n, [&](Communicator& comm, Stream& stream) {
    for (int64_t rows : {1, 2, 9}) {
      std::vector<float> a(static_cast<size_t>(rows * 4), 0.f);
      const TensorView view = TensorView::make(a.data(), DType::kF32, rows, 4);
      for (int64_t t = comm.rank(); t < rows; t += n)
        view.f32(t)[0] = -0.f, view.f32(t)[1] = 1.5f, view.f32(t)[3] = static_cast<float>(t);
      comm.merge(stream, view);
      for (int64_t t = 0; t < rows; ++t) {
        ASSERT_TRUE(std::signbit(view.f32(t)[0]));
        ASSERT_EQ(view.f32(t)[1], 1.5f);
        ASSERT_EQ(view.f32(t)[3], static_cast<float>(t));
      }
      comm.barrier(stream);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

}  // namespace
}  // namespace deepinfer::comm
