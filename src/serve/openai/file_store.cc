#include "serve/openai/file_store.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "serve/fields.h"
#include "serve/folder.h"
#include "serve/ids.h"
#include "serve/json_writer.h"

namespace deepinfer::serve::openai {
namespace {

int64_t bytes_of(const File& file) {
  return static_cast<int64_t>(file.data.size() + file.name.size());
}

std::string head_of(const std::string& tenant, int64_t order, const File& file) {
  JsonWriter w;
  w.begin_object().field("tenant", tenant).field("order", order).field("name", file.name);
  w.field("purpose", file.purpose);
  return w.field("created_at", file.created_s).field("bytes", file.data.size()).end_object().take() + "\n";
}

struct OwnedFile {
  std::string tenant;
  int64_t order = 0;
  File file;
};

// Nothing if the text is not what write() makes of a file.
std::optional<OwnedFile> parse_file(std::string text) {
  std::size_t end = text.find('\n');
  if (end == text.npos) return std::nullopt;
  auto tree = text::JsonTree::parse(text.substr(0, end));
  if (!tree || !tree->root().find("tenant").is_string()) return std::nullopt;
  auto string = [&](const char* name) { return std::string(tree->root().find(name).text()); };
  auto number = [&](const char* name) { return integer_or(tree->root().find(name), -1); };
  OwnedFile owned{.tenant = string("tenant"),
                  .order = number("order"),
                  .file = {.name = string("name"), .purpose = string("purpose"), .created_s = number("created_at")}};
  owned.file.data = std::move(text).substr(end + 1);
  if (number("bytes") != static_cast<int64_t>(owned.file.data.size())) return std::nullopt;
  return owned;
}

}  // namespace

Result<void> FileStore::load() {
  if (folder_.empty()) return {};
  DI_TRY_VOID(make_folder(folder_));
  DI_TRY(std::vector<std::string> names, names_in(folder_));
  std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    DI_TRY(std::string text, read_file(path_of(name)));
    auto owned = parse_file(std::move(text));
    if (!owned) {
      spdlog::warn("{} is not a whole file of this service and is left out", path_of(name));
      continue;
    }
    owned->file.id = name;
    owned->file.expires_s = owned->file.created_s + keep_.count();
    next_order_ = std::max(next_order_, owned->order + 1);
    insert({owned->tenant, std::make_shared<const File>(std::move(owned->file)), owned->order});
  }
  drop_old();
  return {};
}

Result<void> FileStore::write(const Entry& entry) const {
  if (folder_.empty()) return {};
  const File& file = *entry.file;
  return write_file(path_of(file.id), head_of(entry.tenant, entry.order, file) + file.data);
}

ApiResult<FilePtr> FileStore::add(const std::string& tenant, File file) {
  file.id = new_id("file-");
  file.created_s = unix_seconds();
  file.expires_s = file.created_s + keep_.count();
  bool is_output = file.purpose == kBatchOutput;
  int64_t bytes = bytes_of(file);
  // Shared: FilePtr.
  Entry entry{tenant, std::make_shared<const File>(std::move(file)), 0};
  {
    std::lock_guard lock(mutex_);
    drop_old();
    if (!is_output && bytes_ + bytes > max_bytes_)
      return tl::unexpected(ApiError{
          .status = 413,
          .message = fmt::format("file has {} bytes; all files together have {} and may have {}: delete some (DELETE "
                                 "/v1/files/ID)",
                                 bytes, bytes_, max_bytes_),
          .param = "file",
          .code = "storage_full"});
    bytes_ += bytes;  // taken before it is written
    entry.order = next_order_++;
  }
  auto written = write(entry);
  if (!written) spdlog::error("a file could not be written: {}", written.error().message);
  std::lock_guard lock(mutex_);
  bytes_ -= bytes;
  if (!written && !is_output)
    return api_fail(500, "storage_failed", "the file could not be stored: " + written.error().message);
  FilePtr kept = entry.file;
  insert(std::move(entry));
  return kept;
}

void FileStore::insert(Entry entry) {
  bytes_ += bytes_of(*entry.file);
  std::string id = entry.file->id;
  entries_.insert_or_assign(std::move(id), std::move(entry));
}

FilePtr FileStore::get(const std::string& tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  drop_old();
  auto it = entries_.find(id);
  return it != entries_.end() && it->second.tenant == tenant ? it->second.file : nullptr;
}

bool FileStore::remove(const std::string& tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.tenant != tenant) return false;
  erase(it);
  return true;
}

std::vector<FilePtr> FileStore::list(const std::string& tenant) {
  std::lock_guard lock(mutex_);
  drop_old();
  std::vector<const Entry*> own;
  for (const auto& [id, entry] : entries_) {
    if (entry.tenant == tenant) own.push_back(&entry);
  }
  std::ranges::sort(own, std::ranges::greater(), &Entry::order);
  std::vector<FilePtr> files;
  for (const Entry* entry : own) files.push_back(entry->file);
  return files;
}

FileStore::Entries::iterator FileStore::erase(Entries::iterator it) {
  bytes_ -= bytes_of(*it->second.file);
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove(path_of(it->first), ignored);
  return entries_.erase(it);
}

void FileStore::drop_old() {
  int64_t now = unix_seconds();
  for (auto it = entries_.begin(); it != entries_.end();) it = it->second.file->expires_s <= now ? erase(it) : ++it;
}

}  // namespace deepinfer::serve::openai
