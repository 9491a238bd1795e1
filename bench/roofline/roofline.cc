#include "bench/roofline/roofline.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <numeric>

#include <fmt/format.h>
#include <time.h>

#include "bench/roofline/peaks.h"
#include "device/device.h"

namespace deepinfer::bench {
namespace {

double clock_seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Limit summarise(const char* name, const char* unit, int threads, std::vector<double> rates, double share) {
  std::sort(rates.begin(), rates.end());
  return {name, unit, threads, rates[rates.size() / 2], rates.front(), rates.back(), share};
}

// `units(thread)`: does a piece of work and says how much it was.
Limit limit(const char* name, const char* unit, ThreadPool& pool, int repetitions,
            const std::function<double(int)>& units) {
  std::vector<double> rates;
  double share = 0;
  std::vector<double> done(static_cast<size_t>(pool.size()));
  for (int i = 0; i < repetitions; ++i) {
    const Reading r =
        measure(pool, [&] { pool.run([&](int thread) { done[static_cast<size_t>(thread)] = units(thread); }); });
    rates.push_back(std::accumulate(done.begin(), done.end(), 0.0) / r.seconds / 1e9);
    share += r.share / repetitions;
  }
  return summarise(name, unit, pool.size(), rates, share);
}

}  // namespace

Reading measure(ThreadPool& pool, const std::function<void()>& work, int tries) {
  Reading best;
  for (int i = 0; i < tries && best.share < kFullShare; ++i) {
    const double wall = clock_seconds(CLOCK_MONOTONIC), cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    work();
    const double seconds = clock_seconds(CLOCK_MONOTONIC) - wall;
    const double share = (clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (seconds * pool.size());
    if (share > best.share) best = {seconds, share};
  }
  return best;
}

std::vector<Limit> measure_limits(ThreadPool& pool, const RooflineOptions& options) {
  auto device = make_cpu_device();
  auto buffer = device->allocate(options.read_bytes);
  std::vector<Limit> limits;
  const int threads = pool.size(), n = options.repetitions;
  if (buffer) {
    float* data = static_cast<float*>(buffer->data());
    const size_t count = static_cast<size_t>(options.read_bytes) / 4;
    pool.split(static_cast<int64_t>(count), 1024,
               [&](int64_t begin, int64_t end) { std::fill(data + begin, data + end, 1.f); });
    // Pieces of 4 MiB a thread, walking through the buffer, so that a reading is short and never finds its data cached.
    const size_t piece = size_t{1} << 20, per_thread = count / static_cast<size_t>(threads) / piece * piece;
    std::vector<size_t> at(static_cast<size_t>(threads));
    limits.push_back(limit("read", "GB/s", pool, 3 * n, [&](int t) {
      size_t& next = at[static_cast<size_t>(t)];
      const double bytes = read_bytes(data + static_cast<size_t>(t) * per_thread + next, piece);
      next = (next + piece) % per_thread;
      return bytes;
    }));
    limits.push_back(limit("read_l2", "GB/s", pool, n, [&](int t) {
      double bytes = 0;  // half of the smallest second-level cache in use
      for (int k = 0; k < 16; ++k)
        bytes += read_bytes(data + static_cast<size_t>(t) * per_thread, (size_t{256} << 10) / 4);
      return bytes;
    }));
  }
  limits.push_back(limit("fma_f32", "GOP/s", pool, n, [](int) { return fma_f32(); }));
  limits.push_back(limit("int8", "GOP/s", pool, n, [](int) { return dot_int8(); }));
  limits.push_back(limit("int16", "GOP/s", pool, n, [](int) { return dot_int16(); }));
  limits.push_back(limit("bf16", "GOP/s", pool, n, [](int) { return dot_bf16(); }));
  return limits;
}

double limit_of(const std::vector<Limit>& limits, const std::string& name) {
  for (const Limit& l : limits) {
    if (l.name == name) return l.median;
  }
  return 0;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string to_json(const std::vector<Limit>& limits) {
  std::string out;
  for (const Limit& l : limits) {
    out += fmt::format(
        "{}{{\"name\": \"{}\", \"unit\": \"{}\", \"threads\": {}, \"median\": {:.2f}, \"min\": {:.2f}, \"max\": "
        "{:.2f}, "
        "\"cpu_share\": {:.3f}}}",
        out.empty() ? "" : ",\n  ", l.name, l.unit, l.threads, l.median, l.least, l.most, l.share);
  }
  return fmt::format("{{\"processor\": \"{}\", \"limits\": [\n  {}\n]}}\n", processor_name(), out);
}

std::string to_table(const std::vector<Limit>& limits) {
  std::string out = fmt::format("{:<10} {:>7} {:>10} {:>10} {:>10}  {:<6} {:>9}\n", "limit", "threads", "median", "min",
                                "max", "unit", "cpu share");
  for (const Limit& l : limits) {
    out += fmt::format("{:<10} {:>7} {:>10.1f} {:>10.1f} {:>10.1f}  {:<6} {:>9.2f}\n", l.name, l.threads, l.median,
                       l.least, l.most, l.unit, l.share);
  }
  return out;
}

}  // namespace deepinfer::bench
