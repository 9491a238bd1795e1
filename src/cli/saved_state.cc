#include "cli/saved_state.h"

#include <algorithm>

#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"

namespace deepinfer {
namespace {

using cache::kBlockPositions;

std::string state_path(const std::string& directory, int index) {
  return fmt::format("{}/{}.state", directory, index);
}
std::string block_path(const std::string& directory, int index, int64_t block) {
  return fmt::format("{}/{}.{}.block", directory, index, block);
}

Result<void> write_bytes(const std::string& path, const std::vector<std::byte>& bytes) {
  return write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

cache::Digest state_namespace(const ModelConfig& config, kernels::RecordFormat format) {
  const std::string text = config_json(config) + fmt::format("|{}", static_cast<int>(format));
  const Sha256 hash = sha256(std::as_bytes(std::span(text)));
  cache::Digest out;
  std::copy_n(hash.begin(), out.size(), out.begin());
  return out;
}

Result<void> save_sequence(const std::string& directory, model::Rank& rank, const SavedSequence& s) {
  const auto end = static_cast<int64_t>(s.ids.size());
  cache::PackedHeader header;
  header.name_space = state_namespace(rank.model->config(), rank.states.plan().format);
  header.end_pos = end;
  header.num_ids = static_cast<int32_t>(s.context.size());
  std::copy(s.context.begin(), s.context.end(), header.ids.begin());
  DI_TRY_VOID(write_bytes(state_path(directory, s.index), rank.states.export_state(*rank.stream, s.slot, header)));
  for (int64_t b = 0; b * kBlockPositions < end; ++b) {
    const auto ids = s.ids.subspan(static_cast<size_t>(b * kBlockPositions));
    header.num_ids = static_cast<int32_t>(std::min<size_t>(ids.size(), kBlockPositions));
    header.end_pos = b * kBlockPositions + header.num_ids;
    header.ids.fill(0);
    std::copy_n(ids.begin(), header.num_ids, header.ids.begin());
    DI_TRY_VOID(write_bytes(block_path(directory, s.index, b),
                            rank.global.export_block(*rank.stream, s.blocks[static_cast<size_t>(b)], header)));
  }
  return {};
}

Result<LoadedState> load_state(const std::string& directory, int index, const cache::Digest& name_space,
                               std::span<const int32_t> ids) {
  LoadedState out;
  DI_TRY(out.bytes, read_file(state_path(directory, index)));
  DI_TRY(out.view, cache::parse_packed(std::as_bytes(std::span(out.bytes))));
  const cache::PackedHeader& h = out.view.header;
  if (h.name_space != name_space)
    return fail(Code::kInvalid, "{}: saved by another model or numerics", state_path(directory, index));
  if (h.end_pos >= static_cast<int64_t>(ids.size()))
    return fail(Code::kInvalid, "sequence {}: {} tokens, but the saved state already holds {}", index, ids.size(),
                h.end_pos);
  out.context.assign(h.ids.begin(), h.ids.begin() + h.num_ids);
  return out;
}

Result<void> restore(const std::string& directory, int index, const LoadedState& state, model::Rank& rank,
                     std::span<const int32_t> ids, std::span<const int32_t> blocks, int32_t slot) {
  DI_TRY_VOID(rank.states.import_state(*rank.stream, slot, state.view));
  for (int64_t b = 0; b * kBlockPositions < state.view.header.end_pos; ++b) {
    DI_TRY(std::string bytes, read_file(block_path(directory, index, b)));
    DI_TRY(cache::PackedView view, cache::parse_packed(std::as_bytes(std::span(bytes))));
    const auto count = std::min<int64_t>(kBlockPositions, state.view.header.end_pos - b * kBlockPositions);
    if (view.header.num_ids != count ||
        !std::equal(view.header.ids.begin(), view.header.ids.begin() + count, ids.begin() + b * kBlockPositions))
      return fail(Code::kInvalid, "sequence {}: block {} was saved for other tokens", index, b);
    DI_TRY_VOID(rank.global.import_block(*rank.stream, blocks[static_cast<size_t>(b)], view));
  }
  return {};
}

}  // namespace deepinfer
