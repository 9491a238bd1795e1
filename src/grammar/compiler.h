// Compiles structural tags in the background and keeps what was compiled.
//
//   compile() --cached--> done, at once
//       \--> queue --> compile threads (started with the first request) --> done
//                \--> watch thread: deadlines --> done with kDeadline
//
//   Equal tags in flight are compiled once. `done` is called exactly once for each request, from the caller's thread or
//   from one of the threads here, never with a lock held. A compilation that is given up runs to its end on its thread,
//   bounded by the limits of limits.h, and is then cached like any other.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/structural_tag.h"

namespace deepinfer::grammar {

class Compiler {
 public:
  struct Options {
    int num_threads = 4;
    int64_t cache_bytes = int64_t{1} << 30;  // <= 0: unbounded
    double timeout_s = 20;
  };
  using Clock = std::chrono::steady_clock;
  using Done = std::function<void(Result<std::shared_ptr<const Grammar>>)>;

  // `vocabulary` is called once, on a compile thread, when it is first needed.
  Compiler(std::function<Vocabulary()> vocabulary, Options options);
  // Requests that are not done end with kCancelled; waits for compilations that run.
  ~Compiler();

  // Fails with kInvalid or kUnsupported (the compiler's message), or with kDeadline at the earlier of `deadline` and
  // the time-out.
  void compile(const StructuralTag& tag, Clock::time_point deadline, Done done);

  int64_t cached_bytes() const;

 private:
  struct Library;
  struct Waiter {
    Clock::time_point deadline;
    Done done;
  };
  struct Job {
    StructuralTag tag;
    std::vector<Waiter> waiters;
    bool is_running = false;
  };
  struct Cached {
    std::shared_ptr<const Grammar> grammar;
    std::list<std::string>::iterator used;
  };

  void start_threads();
  void work();
  void watch();
  Result<std::shared_ptr<const Grammar>> build(const StructuralTag& tag);
  Library& library();
  void keep(const std::string& name, const std::shared_ptr<const Grammar>& grammar);
  std::vector<Waiter> take_late(Clock::time_point now);

  std::function<Vocabulary()> make_vocabulary_;
  Options options_;
  std::once_flag library_once_;
  std::unique_ptr<Library> library_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_, watch_;
  std::unordered_map<std::string, Job> jobs_;  // by name_of(tag)
  std::deque<std::string> queue_;
  std::unordered_map<std::string, Cached> cache_;
  std::list<std::string> by_use_;  // newest first
  int64_t cached_bytes_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer::grammar
