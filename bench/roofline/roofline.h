// The machine's own limits, and readings that other processes did not disturb.
//
//   A reading is a short piece of work by all threads of a pool: wall time and the share of it that the process spent
//   on the processors (threads x wall = 1; workers that wait spin, so waiting counts as running). A reading below
//   kFullShare was disturbed: it is taken again, up to a limit, and the least disturbed one counts. Results are medians
//   of several.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace deepinfer::bench {

constexpr double kFullShare = 0.97;

struct Reading {
  double seconds = 0;
  double share = 0;  // of the threads' time spent on processors
};

// One undisturbed execution of `work`, or the best of `tries`.
Reading measure(ThreadPool& pool, const std::function<void()>& work, int tries = 20);

struct Limit {
  std::string name;  // read, read_l2, fma_f32, int8, int16, bf16
  std::string unit;  // GB/s or GOP/s
  int threads = 0;
  double median = 0, least = 0, most = 0;
  double share = 0;
};

struct RooflineOptions {
  int64_t read_bytes = int64_t{768} << 20;  // far beyond the caches
  int repetitions = 7;
};
// All limits for a pool, read once a process.
std::vector<Limit> measure_limits(ThreadPool& pool, const RooflineOptions& options = {});
double limit_of(const std::vector<Limit>& limits, const std::string& name);

std::string processor_name();
std::string to_json(const std::vector<Limit>& limits);
std::string to_table(const std::vector<Limit>& limits);

}  // namespace deepinfer::bench
