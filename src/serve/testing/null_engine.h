// An engine without a model, for tests and for measuring what the service itself costs: every request is answered with
// the text that a function makes of its prompt, one token a step for all requests together.
//
// Thread-safe like the real one; events come from its own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "deepinfer/engine.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer::serve {

class NullEngine final : public Engine {
 public:
  struct Options {
    std::function<std::string(const Request&)> answer = [](const Request&) { return std::string("Hello."); };
    std::chrono::microseconds step{0};
    int64_t max_model_len = 4096;
    bool ends_by_itself = true;  // false: goes on until max_tokens, repeating the answer
    Usage usage;                 // of every choice, but for its numbers of tokens
    EngineStats stats;           // but for what it knows itself
  };

  NullEngine(const text::Tokenizer& tokenizer, Options options)
      : tokenizer_(tokenizer), options_(std::move(options)), thread_([this] { loop(); }) {}
  ~NullEngine() override {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Outcome<uint64_t> submit(Request request, Sink sink) override {
    if (auto failure = check(request.sampling)) return *failure;
    Stream s{.request = std::move(request), .sink = std::move(sink)};
    tokenizer_.encode(options_.answer(s.request), s.answer);
    std::lock_guard lock(mutex_);
    s.ended.resize(static_cast<std::size_t>(s.request.sampling.n));
    for (int i = 0; i < s.request.sampling.n; ++i) s.detokenizers.emplace_back(tokenizer_);
    uint64_t id = next_++;
    streams_.emplace(id, std::move(s));
    changed_.notify_all();
    return id;
  }

  void cancel(uint64_t request, int choice) override {
    std::lock_guard lock(mutex_);
    cancels_.emplace_back(request, choice);
    changed_.notify_all();
  }
  void limit_crowded_drafts(int num_drafts) override { crowded_drafts = num_drafts; }
  std::optional<Failure> check(const SamplingParams& p) const override {
    if (p.so_args) return Failure{true, "so_args: this engine has no grammars"};
    return std::nullopt;
  }
  std::vector<RequestOutput> generate(std::vector<Request>, std::function<bool(int64_t)>) override { return {}; }
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids;
    tokenizer_.encode(text, ids);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override { return tokenizer_.decode(ids); }
  int64_t max_model_len() const override { return options_.max_model_len; }
  int32_t eos_token_id() const override { return 1; }
  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats s = options_.stats;
    s.num_running = static_cast<int64_t>(streams_.size());
    return s;
  }
  std::vector<StepRecord> recent_steps() const override { return {}; }
  std::string description() const override { return "no model\n"; }

  std::atomic<int> crowded_drafts = -1;  // as it was last told; -1: never

 private:
  struct Stream {
    Request request;
    Sink sink;
    std::vector<int32_t> answer;
    std::vector<text::Detokenizer> detokenizers;
    std::vector<bool> ended;
    int64_t position = 0;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_stopping_ || !streams_.empty() || !cancels_.empty(); });
      if (is_stopping_) return;
      apply_cancels();
      for (auto it = streams_.begin(); it != streams_.end();)
        it = step(it->first, it->second) ? streams_.erase(it) : ++it;
      if (options_.step.count() == 0) continue;
      lock.unlock();
      std::this_thread::sleep_for(options_.step);
      lock.lock();
    }
  }

  void apply_cancels() {
    for (auto [id, choice] : std::exchange(cancels_, {})) {
      auto it = streams_.find(id);
      if (it == streams_.end()) continue;
      Stream& s = it->second;
      for (std::size_t i = 0; i < s.ended.size(); ++i) {
        if (choice == kAllChoices || choice == static_cast<int>(i)) end(id, s, i, FinishReason::kCancelled, -1, "");
      }
    }
  }

  // One token for every choice; true if the stream is over.
  bool step(uint64_t id, Stream& s) {
    bool is_over = true;
    for (std::size_t i = 0; i < s.ended.size(); ++i) {
      if (s.ended[i]) continue;
      auto at = static_cast<std::size_t>(s.position);
      if (at >= s.answer.size() && options_.ends_by_itself) {
        end(id, s, i, FinishReason::kStop, eos_token_id(), "");
        continue;
      }
      int32_t token = s.answer.empty() ? eos_token_id() : s.answer[at % s.answer.size()];
      std::string text;
      s.detokenizers[i].push(token, text);
      if (s.position + 1 >= s.request.sampling.max_tokens) {
        end(id, s, i, FinishReason::kLength, token, text);
        continue;
      }
      TokenEvent e{.request = id, .choice = static_cast<int>(i), .token = token, .text = text};
      if (s.request.sampling.logprobs) e.logprob = -0.5f;
      s.sink(e);
      is_over = false;
    }
    ++s.position;
    return is_over;
  }

  void end(uint64_t id, Stream& s, std::size_t i, FinishReason reason, int32_t token, const std::string& text) {
    if (s.ended[i]) return;
    s.ended[i] = true;
    Usage usage = options_.usage;
    usage.prompt_tokens = static_cast<int64_t>(s.request.prompt.size());
    usage.completion_tokens = s.position + 1;
    s.sink({.request = id,
            .choice = static_cast<int>(i),
            .token = token,
            .text = text,
            .finish_reason = reason,
            .usage = usage});
  }

  const text::Tokenizer& tokenizer_;
  Options options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<uint64_t, Stream> streams_;
  std::vector<std::pair<uint64_t, int>> cancels_;
  uint64_t next_ = 1;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::serve
