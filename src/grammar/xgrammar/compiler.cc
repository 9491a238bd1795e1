#include "grammar/compiler.h"

#include <algorithm>
#include <exception>

#include "grammar/limits.h"
#include "grammar/xgrammar/compiled.h"
#include "grammar/xgrammar/library_log.h"

namespace deepinfer::grammar {
namespace {

tl::unexpected<Error> too_late() {
  return fail(Code::kDeadline, "so_args.schema: the grammar was not compiled in time");
}

std::string name_of(const StructuralTag& tag) {
  return (tag.has_controls ? "c" : "p") + tag.json;
}

// No cache inside: what is compiled is kept here, where it is counted.
xgrammar::GrammarCompiler make_library_compiler(const std::vector<std::string>& bytes, int32_t eos_id) {
  xgrammar::TokenizerInfo info(bytes, xgrammar::VocabType::RAW, static_cast<int>(bytes.size()),
                               std::vector<int32_t>{eos_id});
  return xgrammar::GrammarCompiler(info, 1, false);
}

}  // namespace

// One compiler without control tokens, and one that knows how they are spelled.
struct Compiler::Library {
  explicit Library(Vocabulary v) : plain(make_library_compiler(v.bytes, v.eos_id)), controls(add_controls(v)) {
    vocab = static_cast<int>(v.bytes.size());
  }
  static xgrammar::GrammarCompiler add_controls(Vocabulary& v) {
    for (auto& [id, text] : v.controls) v.bytes[static_cast<std::size_t>(id)] = text;
    return make_library_compiler(v.bytes, v.eos_id);
  }

  xgrammar::GrammarCompiler plain, controls;
  int vocab = 0;
};

Compiler::Compiler(std::function<Vocabulary()> vocabulary, Options options)
    : make_vocabulary_(std::move(vocabulary)), options_(options) {}

Compiler::~Compiler() {
  std::vector<Waiter> waiters;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [name, job] : jobs_) std::move(job.waiters.begin(), job.waiters.end(), std::back_inserter(waiters));
    jobs_.clear();
    queue_.clear();
  }
  work_.notify_all();
  watch_.notify_all();
  for (Waiter& w : waiters) w.done(fail(Code::kCancelled, "the engine was closed"));
  for (std::thread& t : threads_) t.join();
}

void Compiler::compile(const StructuralTag& tag, Clock::time_point deadline, Done done) {
  auto timeout = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_s));
  deadline = std::min(deadline, Clock::now() + timeout);
  std::string name = name_of(tag);
  std::shared_ptr<const Grammar> cached;
  bool is_late = false;
  {
    std::lock_guard lock(mutex_);
    if (auto it = cache_.find(name); it != cache_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, it->second.used);
      cached = it->second.grammar;
    } else if (is_late = Clock::now() >= deadline; !is_late) {
      start_threads();
      auto [job, is_new] = jobs_.try_emplace(name, Job{.tag = tag});
      job->second.waiters.push_back({deadline, std::move(done)});
      if (is_new) queue_.push_back(name);
    }
  }
  if (cached) return done(std::move(cached));
  if (is_late) return done(too_late());
  work_.notify_one();
  watch_.notify_one();
}

int64_t Compiler::cached_bytes() const {
  std::lock_guard lock(mutex_);
  return cached_bytes_;
}

void Compiler::start_threads() {
  if (!threads_.empty()) return;
  for (int i = 0; i < std::max(1, options_.num_threads); ++i) threads_.emplace_back([this] { work(); });
  threads_.emplace_back([this] { watch(); });
}

// ---- compile threads ----------------------------------------------------------------------------------------------

void Compiler::work() {
  while (true) {
    StructuralTag tag;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      auto it = jobs_.find(queue_.front());
      queue_.pop_front();
      if (it == jobs_.end() || it->second.is_running) continue;  // nobody waits any more, or it was queued twice
      it->second.is_running = true;
      tag = it->second.tag;
    }
    auto built = build(tag);
    std::vector<Waiter> waiters;
    {
      std::lock_guard lock(mutex_);
      if (built) keep(name_of(tag), *built);
      if (auto it = jobs_.find(name_of(tag)); it != jobs_.end()) {
        waiters = std::move(it->second.waiters);
        jobs_.erase(it);
      }
    }
    for (Waiter& w : waiters) w.done(built);
  }
}

Compiler::Library& Compiler::library() {
  std::call_once(library_once_, [this] { library_ = std::make_unique<Library>(make_vocabulary_()); });
  return *library_;
}

Result<std::shared_ptr<const Grammar>> Compiler::build(const StructuralTag& tag) {
  try {
    Library& lib = library();
    WarningCollector warnings;
    auto compiled = (tag.has_controls ? lib.controls : lib.plain).CompileStructuralTag(tag.json);
    if (!warnings.first().empty()) return fail(Code::kUnsupported, "so_args.schema: {}", warnings.first());
    auto bytes = static_cast<int64_t>(compiled.MemorySizeBytes());
    std::unique_ptr<Grammar::Compiled> owned(new Grammar::Compiled{std::move(compiled)});
    return std::make_shared<const Grammar>(std::move(owned), lib.vocab, bytes);
  } catch (const std::exception& e) {
    return fail(Code::kInvalid, "so_args.schema: {}", e.what());
  }
}

void Compiler::keep(const std::string& name, const std::shared_ptr<const Grammar>& grammar) {
  if (stopping_ || cache_.contains(name)) return;
  if (options_.cache_bytes > 0 && grammar->bytes() > options_.cache_bytes) return;
  by_use_.push_front(name);
  cache_.emplace(name, Cached{grammar, by_use_.begin()});
  cached_bytes_ += grammar->bytes();
  while (options_.cache_bytes > 0 && cached_bytes_ > options_.cache_bytes) {
    auto oldest = cache_.find(by_use_.back());
    cached_bytes_ -= oldest->second.grammar->bytes();
    cache_.erase(oldest);
    by_use_.pop_back();
  }
}

// ---- deadlines ----------------------------------------------------------------------------------------------------

void Compiler::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto next = Clock::time_point::max();
    for (auto& [name, job] : jobs_) {
      for (const Waiter& w : job.waiters) next = std::min(next, w.deadline);
    }
    if (next == Clock::time_point::max()) {
      watch_.wait(lock);
    } else {
      watch_.wait_until(lock, next);
    }
    std::vector<Waiter> late = take_late(Clock::now());
    if (late.empty()) continue;
    lock.unlock();
    for (Waiter& w : late) w.done(too_late());
    lock.lock();
  }
}

std::vector<Compiler::Waiter> Compiler::take_late(Clock::time_point now) {
  std::vector<Waiter> late;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    std::vector<Waiter>& waiters = it->second.waiters;
    auto first =
        std::stable_partition(waiters.begin(), waiters.end(), [&](const Waiter& w) { return w.deadline > now; });
    std::move(first, waiters.end(), std::back_inserter(late));
    waiters.erase(first, waiters.end());
    it = waiters.empty() && !it->second.is_running ? jobs_.erase(it) : std::next(it);
  }
  return late;
}

// ---- the result ---------------------------------------------------------------------------------------------------

Grammar::Grammar(std::unique_ptr<Compiled> compiled, int vocab, int64_t bytes)
    : compiled_(std::move(compiled)), vocab_(vocab), bytes_(bytes) {}

Grammar::~Grammar() = default;

}  // namespace deepinfer::grammar
