// Finds the files of a checkpoint and joins their headers.
//
//   DIR/model.safetensors.index.json   {"metadata": {...}, "weight_map": {"name": "shard file", ...}}, or
//   DIR/model.safetensors              alone.

#include <filesystem>
#include <unordered_set>

#include "weights/json_scanner.h"
#include "weights/safetensors.h"

namespace deepinfer::weights {
namespace {

struct Index {
  std::vector<std::string> shards;
  std::vector<std::pair<std::string, int>> names;  // name without prefix, shard
};

Result<Index> read_index(const std::string& path) {
  DI_TRY(std::string text, read_file(path));
  Index index;
  std::unordered_map<std::string, int> shard_ids;
  JsonScanner in(text);
  bool has_map = false;
  std::string file;
  bool ok = in.object([&](const std::string& key) {
    if (key != "weight_map") return in.skip_value();
    has_map = true;
    return in.object([&](const std::string& name) {
      if (!in.string(file)) return false;
      // A shard lies beside its index.
      if (file.empty() || file.find('/') != std::string::npos || file.find('\0') != std::string::npos) {
        return in.fail(fmt::format("tensor {} names the shard '{}', allowed are plain file names", name, file));
      }
      auto [it, is_new] = shard_ids.try_emplace(file, static_cast<int>(index.shards.size()));
      if (is_new) index.shards.push_back(file);
      std::string_view bare = name;
      if (bare.starts_with("model.")) bare.remove_prefix(6);
      index.names.emplace_back(bare, it->second);
      return true;
    });
  });
  if (!ok) return fail(Code::kCorrupt, "{}: {}", path, in.error());
  if (!in.at_end()) return fail(Code::kCorrupt, "{}: text after the object", path);
  if (!has_map || index.names.empty()) return fail(Code::kCorrupt, "{}: weight_map is missing or empty", path);
  return index;
}

Result<void> add_shard(TensorFiles& out, const std::string& path) {
  DI_TRY(File file, File::open_read(path));
  auto entries = read_header(file);
  if (!entries) return fail(entries.error().code, "{}: {}", path, entries.error().message);
  const int shard = static_cast<int>(out.paths.size());
  out.paths.push_back(path);
  out.entries.reserve(out.entries.size() + entries->size());
  for (TensorEntry& e : *entries) {
    e.shard = shard;
    out.entries.push_back(std::move(e));
  }
  return {};
}

Result<void> index_names(TensorFiles& files) {
  files.by_name.reserve(files.entries.size());
  for (std::size_t i = 0; i < files.entries.size(); ++i) {
    const TensorEntry& e = files.entries[i];
    auto [it, is_new] = files.by_name.try_emplace(e.name, static_cast<int>(i));
    if (is_new) continue;
    const TensorEntry& first = files.entries[static_cast<std::size_t>(it->second)];
    return fail(Code::kCorrupt, "tensor {} is in {} and again in {}", e.name,
                files.paths[static_cast<std::size_t>(first.shard)], files.paths[static_cast<std::size_t>(e.shard)]);
  }
  return {};
}

Result<TensorFiles> open_sharded(const std::string& directory, const std::string& index_path) {
  DI_TRY(Index index, read_index(index_path));
  TensorFiles files;
  for (std::size_t s = 0; s < index.shards.size(); ++s) {
    const std::string path = directory + "/" + index.shards[s];
    if (!file_exists(path)) {
      return fail(Code::kNotFound, "{}: shard {} of {} named by the index is missing", path, s + 1,
                  index.shards.size());
    }
    DI_TRY_VOID(add_shard(files, path));
  }
  DI_TRY_VOID(index_names(files));
  std::unordered_set<std::string_view> listed;
  listed.reserve(index.names.size());
  for (const auto& [name, shard] : index.names) {
    if (!listed.insert(name).second) return fail(Code::kCorrupt, "{}: tensor {} is given twice", index_path, name);
    const TensorEntry* e = files.find(name);
    if (e == nullptr || e->shard != shard) {
      return fail(Code::kCorrupt, "{}: tensor {} is not in {}, where the index puts it", index_path, name,
                  index.shards[static_cast<std::size_t>(shard)]);
    }
  }
  for (const TensorEntry& e : files.entries) {
    if (!listed.contains(e.name)) files.unlisted.push_back(e.name);
  }
  return files;
}

}  // namespace

const TensorEntry* TensorFiles::find(std::string_view name) const {
  auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : &entries[static_cast<std::size_t>(it->second)];
}

Result<TensorFiles> open_tensor_files(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    const std::string index_path = path + "/model.safetensors.index.json";
    if (file_exists(index_path)) return open_sharded(path, index_path);
  }
  const std::string single = std::filesystem::is_directory(path, ec) ? path + "/model.safetensors" : path;
  if (!file_exists(single)) {
    return fail(Code::kNotFound, "{}: no model.safetensors.index.json and no model.safetensors there", path);
  }
  TensorFiles files;
  DI_TRY_VOID(add_shard(files, single));
  DI_TRY_VOID(index_names(files));
  return files;
}

}  // namespace deepinfer::weights
