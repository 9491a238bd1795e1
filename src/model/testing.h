// What the tests of the model share: golden tensors, a model over the random-small checkpoint, sequences that step
// through it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/math.h"
#include "device/host_copy.h"
#include "model/ranks.h"
#include "weights/safetensors.h"

namespace deepinfer::model {

inline constexpr double kTolerance = 2e-4;  // of fp32 and qat against the golden files (validation.md 5)

inline std::string random_small(const std::string& path) {
  return std::string(DI_SOURCE_DIR) + "/tests/golden/random-small/" + path;
}

// Tensors of a golden file, converted as asked.
class Golden {
 public:
  explicit Golden(const std::string& name)
      : files_(weights::open_tensor_files(random_small("golden/" + name + ".safetensors")).value()),
        file_(File::open_read(files_.paths[0]).value()) {}

  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<int64_t> integers(const std::string& name) const { return read<int64_t>(name); }
  std::vector<uint8_t> mask(const std::string& name) const { return read<uint8_t>(name); }
  std::vector<int32_t> ids(const std::string& name) const {
    const std::vector<int64_t> wide = integers(name);
    return {wide.begin(), wide.end()};
  }
  int64_t cols(const std::string& name) const { return files_.find(name)->shape.back(); }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const weights::TensorEntry* entry = files_.find(name);
    DI_CHECK(entry != nullptr && entry->bytes % static_cast<int64_t>(sizeof(T)) == 0, "golden tensor {}", name);
    std::vector<T> out(static_cast<size_t>(entry->bytes) / sizeof(T));
    DI_CHECK(file_.read_at(entry->offset, std::as_writable_bytes(std::span(out))).has_value(), "golden tensor {}",
             name);
    return out;
  }
  weights::TensorFiles files_;
  File file_;
};

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return 1e30;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return 1e30;
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return worst;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

struct TestSequence {
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_image;  // empty: all text
  int32_t slot = 0;
  std::vector<int32_t> blocks;
};

// Rows [begin, end) of a sequence, as a step runs them.
struct TestRun {
  const TestSequence* sequence = nullptr;
  int64_t begin = 0, end = 0;
  int64_t window_floor = 0, write_floor = 0, keep_from = 0;
  bool is_masked = false;   // rows below keep_from are computed by all layers
  int64_t logits_from = 0;  // kept rows below it ask for no logits
};

struct Proposal {
  std::vector<int32_t> tokens;
  std::vector<float> logits, confidence;
};

// The random-small checkpoint with other draft targets, in a folder that is removed at the end.
class OtherTargets {
 public:
  explicit OtherTargets(const std::string& targets) {  // "7, 8, 9"
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("di_targets_{}_{}", ::getpid(), count++);
    std::filesystem::create_directories(path_);
    for (const auto& entry : std::filesystem::directory_iterator(random_small("checkpoint")))
      std::filesystem::create_symlink(entry.path(), path_ / entry.path().filename());
    const std::string config = read_file(random_small("checkpoint/config.json")).value();
    const size_t key = config.find("dspark_target_layer_ids"), open = config.find('[', key),
                 close = config.find(']', open);
    std::filesystem::remove(path_ / "config.json");
    DI_CHECK(
        write_file(path() + "/config.json", config.substr(0, open + 1) + targets + config.substr(close)).has_value());
  }
  ~OtherTargets() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct TestOptions {
  kernels::Numerics numerics = kernels::Numerics::kQat;
  int ranks = 1, threads = 1;
  int64_t max_rows = 512;
  int num_slots = 4;
  bool with_draft = true;
  std::string checkpoint = random_small("checkpoint");
  std::function<std::unique_ptr<kernels::Ops>()> make_ops;       // empty: cpu for fast, else ref
  std::function<Result<std::unique_ptr<Device>>()> make_device;  // empty: the CPU
};

class TestModel {
 public:
  explicit TestModel(TestOptions options = {})
      : checkpoint_(weights::Checkpoint::open(options.checkpoint).value()),
        compressed_(Golden("common").ids("token_map")) {
    if (!options.make_ops) {
      options.make_ops = [n = options.numerics] {
        return n == kernels::Numerics::kFast ? kernels::make_cpu_ops() : kernels::make_ref_ops(n);
      };
    }
    const Limits limits{.max_rows = options.max_rows, .max_sequences = options.num_slots, .max_positions = 2048};
    auto made = Ranks::create(
        checkpoint_, {.plan = parallel::ParallelPlan::tensor(options.ranks),
                      .make_ops = options.make_ops,
                      .make_device = options.make_device,
                      .threads = options.threads,
                      .num_blocks = kBlocks,
                      .num_slots = options.num_slots,
                      .model = {.limits = limits, .with_draft = options.with_draft, .compressed_ids = compressed_}});
    DI_CHECK(made.has_value(), "{}", made.error().message);
    ranks_ = std::move(*made);
  }

  const ModelConfig& config() const { return checkpoint_.config(); }
  Ranks& ranks() { return *ranks_; }
  Rank& rank() { return (*ranks_)[0]; }

  // A sequence with a slot and blocks of its own.
  TestSequence sequence(std::vector<int32_t> ids, std::vector<uint8_t> is_image = {}) {
    TestSequence s{.ids = std::move(ids), .is_image = std::move(is_image), .slot = next_slot_++, .blocks = {}};
    DI_CHECK(s.slot < rank().states.num_slots(), "no slot left");
    for (size_t b = 0; b * 128 < s.ids.size() + 32; ++b) s.blocks.push_back(next_block_++);
    ranks_->run([&](Rank& r) { r.states.hand_out(*r.stream, s.slot); });
    return s;
  }
  // Forgets all sequences.
  void restart() { next_slot_ = 0, next_block_ = 1; }

  // Logits of the kept rows of all runs, those from logits_from on, in order; of `rank`.
  std::vector<float> forward(const std::vector<TestRun>& runs, Observer* observer = nullptr, int rank = 0,
                             bool by_regions = false) {
    std::vector<int32_t> ids, logit_rows;
    std::vector<uint8_t> images;
    std::vector<std::vector<int32_t>> contexts;
    std::vector<SequenceRows> sequences;
    for (const TestRun& run : runs) contexts.push_back(context(*run.sequence, run.begin));
    for (size_t i = 0; i < runs.size(); ++i) {
      const TestRun& run = runs[i];
      const TestSequence& s = *run.sequence;
      for (int64_t p = run.begin; p < run.end; ++p) {
        if (p >= std::max(run.keep_from, run.logits_from)) logit_rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(s.ids[static_cast<size_t>(p)]);
        images.push_back(s.is_image.empty() ? uint8_t{0} : s.is_image[static_cast<size_t>(p)]);
      }
      sequences.push_back({.slot = s.slot,
                           .block_table = s.blocks.data(),
                           .first_pos = run.begin,
                           .num_rows = static_cast<int32_t>(run.end - run.begin),
                           .window_floor = run.window_floor,
                           .write_floor = run.write_floor,
                           .keep_from = run.is_masked ? 0 : run.keep_from,
                           .consumer_floor = run.keep_from,
                           .context = contexts[i]});
    }
    ForwardBatch batch{.sequences = sequences, .ids = ids, .given = {}, .is_image = images, .logit_rows = logit_rows};
    const auto vocab = static_cast<int64_t>(config().vocab_size), rows = static_cast<int64_t>(logit_rows.size());
    std::vector<std::vector<float>> logits(static_cast<size_t>(ranks_->size()));
    for (auto& l : logits) l.resize(static_cast<size_t>(std::max<int64_t>(rows, 1) * vocab));
    ranks_->run([&](Rank& r) {
      ForwardBatch mine = batch;
      if (r.id == 0) mine.observer = observer;
      const DeviceBuffer memory = r.device->allocate(std::max<int64_t>(rows, 1) * vocab * 4).value();
      const TensorView out = TensorView::make(memory.data(), DType::kF32, rows, vocab);
      if (by_regions) {
        r.model->producer(mine);
        r.model->consumer(mine, out);
      } else {
        r.model->forward(mine, out);
      }
      r.stream->copy(logits[static_cast<size_t>(r.id)].data(), out.data, rows * out.row_bytes());
      r.stream->synchronize();
    });
    logits[static_cast<size_t>(rank)].resize(static_cast<size_t>(rows * vocab));
    return logits[static_cast<size_t>(rank)];
  }

  // The whole sequence in chunks of `chunk` rows (0: one) from `begin` on.
  std::vector<float> prefill(const TestSequence& s, int64_t chunk = 0, int64_t begin = 0) {
    std::vector<float> out;
    const auto length = static_cast<int64_t>(s.ids.size());
    for (int64_t at = begin; at < length;) {
      const int64_t end = chunk == 0 ? length : std::min(length, at + chunk);
      const std::vector<float> part = forward({{.sequence = &s, .begin = at, .end = end}});
      out.insert(out.end(), part.begin(), part.end());
      at = end;
    }
    return out;
  }

  std::vector<Proposal> propose(const std::vector<DraftSequence>& sequences) {
    const auto n = static_cast<int64_t>(config().dspark_block_size), count = static_cast<int64_t>(sequences.size()),
               vocab = static_cast<int64_t>(config().vocab_size);
    const auto num_ranks = static_cast<size_t>(ranks_->size());
    std::vector<std::vector<float>> logits(num_ranks), confidence(num_ranks);
    std::vector<std::vector<int32_t>> tokens(num_ranks);
    ranks_->run([&](Rank& r) {
      const auto id = static_cast<size_t>(r.id);
      logits[id].resize(static_cast<size_t>(count * n * vocab));
      confidence[id].resize(static_cast<size_t>(count * n));
      tokens[id].resize(static_cast<size_t>(count * n));
      DeviceBuffer memory[] = {r.device->allocate(count * n * vocab * 4).value(),
                               r.device->allocate(count * n * 4).value(), r.device->allocate(count * n * 4).value()};
      const DraftOutput out{.logits = TensorView::make(memory[0].data(), DType::kF32, count * n, vocab),
                            .tokens = TensorView::make(memory[1].data(), DType::kI32, n, count),
                            .confidence = TensorView::make(memory[2].data(), DType::kF32, count, n)};
      auto pick = [&r](int, const TensorView& device_logits, int32_t* device_picked) {
        const HostCopy copy(*r.device, *r.stream, device_logits);
        const TensorView& l = copy.view();
        std::vector<int32_t> picked;
        for (int64_t s = 0; s < l.rows; ++s)
          picked.push_back(static_cast<int32_t>(std::max_element(l.f32(s), l.f32(s) + l.cols) - l.f32(s)));
        r.stream->copy(device_picked, picked.data(), l.rows * 4);
      };
      r.model->propose(sequences, pick, out);
      r.stream->copy(logits[id].data(), out.logits.data, memory[0].bytes());
      r.stream->copy(tokens[id].data(), out.tokens.data, memory[1].bytes());
      r.stream->copy(confidence[id].data(), out.confidence.data, memory[2].bytes());
      r.stream->synchronize();
    });
    std::vector<Proposal> out(static_cast<size_t>(count));
    for (int64_t s = 0; s < count; ++s) {
      auto& p = out[static_cast<size_t>(s)];
      for (int64_t k = 0; k < n; ++k) p.tokens.push_back(tokens[0][static_cast<size_t>(k * count + s)]);
      p.logits.assign(logits[0].begin() + s * n * vocab, logits[0].begin() + (s + 1) * n * vocab);
      p.confidence.assign(confidence[0].begin() + s * n, confidence[0].begin() + (s + 1) * n);
    }
    return out;
  }

  int32_t greedy(std::span<const float> logits) const {
    const auto last = logits.last(static_cast<size_t>(config().vocab_size));
    return static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
  }

  std::vector<int32_t> context(const TestSequence& s, int64_t pos) const {
    std::vector<int32_t> out;
    for (int64_t p = std::max<int64_t>(0, pos - config().engram_max_ngram_size + 1); p < pos; ++p) {
      const auto i = static_cast<size_t>(p);
      const bool is_dead = !s.is_image.empty() && s.is_image[i] != 0;
      out.push_back(is_dead ? kEngramDead : compressed_[static_cast<size_t>(s.ids[i])]);
    }
    return out;
  }

 private:
  static constexpr int64_t kBlocks = 32;
  weights::Checkpoint checkpoint_;
  std::vector<int32_t> compressed_;
  std::unique_ptr<Ranks> ranks_;
  int32_t next_slot_ = 0, next_block_ = 1;
};

}  // namespace deepinfer::model
