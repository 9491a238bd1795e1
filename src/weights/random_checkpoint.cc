#include "weights/random_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "weights/random_weights.h"
#include "weights/safetensors.h"

namespace deepinfer::weights {
namespace {

// Generated and written at a time by one thread.
constexpr int64_t kPieceBytes = 4 << 20;

// An output file, closed on destruction.
class Output {
 public:
  static Result<Output> create(const std::string& path, int64_t size) {
    Output o;
    o.path_ = path;
    o.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (o.fd_ < 0 || ::ftruncate(o.fd_, size) != 0)
      return fail(Code::kIo, "{}: cannot create: {}", path, std::strerror(errno));
    return o;
  }
  Output() = default;
  Output(Output&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  Output& operator=(Output&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
    return *this;
  }
  ~Output() {
    if (fd_ >= 0) ::close(fd_);
  }
  Result<void> write_at(int64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail(Code::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += n;
    }
    return {};
  }

 private:
  int fd_ = -1;
  std::string path_;
};

struct Shard {
  std::vector<const WeightSpec*> specs;
  std::vector<TensorEntry> entries;  // codes and scales of the specs in turn
  int64_t payload_bytes = 0;
};

std::vector<Shard> plan_shards(const std::vector<WeightSpec>& specs, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  auto add = [&](std::string name, StoredType type, std::vector<int64_t> shape, int64_t bytes) {
    Shard& s = shards.back();
    s.entries.push_back(
        {.name = std::move(name), .type = type, .shape = std::move(shape), .offset = s.payload_bytes, .bytes = bytes});
    s.payload_bytes += bytes;
  };
  for (const WeightSpec& w : specs) {
    if (shards.back().payload_bytes >= shard_bytes) shards.emplace_back();
    shards.back().specs.push_back(&w);
    add(w.name, w.stored_type(), w.stored_shape(), w.code_bytes());
    if (w.is_quantised()) add(w.scale_name(), StoredType::kE8M0, {w.scale_rows(), w.scale_cols()}, w.scale_bytes());
  }
  return shards;
}

// One piece of a tensor's bytes in the file.
struct Piece {
  const RandomTensor* tensor;
  bool is_scale;
  int64_t tensor_offset, file_offset, bytes;
};

Result<void> write_shard(const Shard& shard, const std::string& path, uint64_t seed, ThreadPool& pool) {
  const std::string header = make_header(shard.entries);
  const int64_t payload_begin = static_cast<int64_t>(header.size());
  DI_TRY(Output file, Output::create(path, payload_begin + shard.payload_bytes));
  DI_TRY_VOID(file.write_at(0, std::as_bytes(std::span(header))));
  std::vector<std::unique_ptr<RandomTensor>> tensors;
  std::vector<Piece> pieces;
  size_t entry = 0;
  for (const WeightSpec* spec : shard.specs) {
    tensors.push_back(std::make_unique<RandomTensor>(*spec, seed));
    for (bool is_scale : {false, true}) {
      if (is_scale && !spec->is_quantised()) continue;
      const TensorEntry& e = shard.entries[entry++];
      for (int64_t at = 0; at < e.bytes; at += kPieceBytes) {
        pieces.push_back(
            {tensors.back().get(), is_scale, at, payload_begin + e.offset + at, std::min(kPieceBytes, e.bytes - at)});
      }
    }
  }
  std::mutex mutex;  // guards `result`
  Result<void> result;
  pool.each(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& p = pieces[static_cast<size_t>(i)];
    std::vector<std::byte> bytes(static_cast<size_t>(p.bytes));
    if (p.is_scale) {
      p.tensor->scales(p.tensor_offset, bytes);
    } else {
      p.tensor->codes(p.tensor_offset, bytes);
    }
    Result<void> written = file.write_at(p.file_offset, bytes);
    if (written) return;
    std::lock_guard lock(mutex);
    result = std::move(written);
  });
  return result;
}

}  // namespace

Result<InventoryTotals> write_random_checkpoint(const ModelConfig& config, const std::string& directory,
                                                const RandomCheckpointOptions& options, ThreadPool& pool) {
  std::error_code ec;
  std::filesystem::create_directories(directory, ec);
  if (ec) return fail(Code::kIo, "{}: cannot create: {}", directory, ec.message());
  if (file_exists(directory + "/config.json")) return fail(Code::kInvalid, "{}: holds a checkpoint already", directory);
  const auto specs = inventory(config);
  const InventoryTotals sum = totals(specs);
  const auto space = std::filesystem::space(directory, ec);
  if (!ec && static_cast<int64_t>(space.available) < sum.num_bytes) {
    return fail(Code::kExhausted, "{}: {} bytes wanted, {} free", directory, sum.num_bytes, space.available);
  }
  const auto shards = plan_shards(specs, options.shard_bytes);
  std::string index = fmt::format("{{\"metadata\": {{\"total_size\": {}}}, \"weight_map\": {{", sum.num_bytes);
  const char* separator = "\n";
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards.size());
    DI_TRY_VOID(write_shard(shards[i], directory + "/" + name, options.seed, pool));
    for (const TensorEntry& e : shards[i].entries) {
      fmt::format_to(std::back_inserter(index), "{}\"{}\": \"{}\"", separator, e.name, name);
      separator = ",\n";
    }
  }
  DI_TRY_VOID(write_file(directory + "/model.safetensors.index.json", index + "\n}}\n"));
  DI_TRY_VOID(write_file(directory + "/config.json", config_json(config)));  // last: its presence says "complete"
  return sum;
}

}  // namespace deepinfer::weights
