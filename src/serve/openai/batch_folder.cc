#include "serve/openai/batch_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/log.h"
#include "serve/fields.h"
#include "serve/folder.h"
#include "serve/json_writer.h"

namespace deepinfer::serve::openai {
namespace {

// Up to the last line's end; what is behind it is cut off, so that lines can be appended.
Result<std::string> whole_lines(const std::string& path) {
  if (!file_exists(path)) return std::string();
  DI_TRY(std::string text, read_file(path));
  text.resize(text.rfind('\n') + 1);  // none: -1 + 1
  std::error_code ec;
  std::filesystem::resize_file(path, text.size(), ec);
  if (ec) return fail(Code::kIo, "{}: {}", path, ec.message());
  return text;
}

}  // namespace

Result<std::vector<SavedBatch>> BatchFolder::load() {
  std::vector<SavedBatch> batches;
  if (folder_.empty()) return batches;
  DI_TRY_VOID(make_folder(folder_));
  DI_TRY(std::vector<std::string> names, names_in(folder_));
  for (const std::string& name : names) {
    if (name.find('.') != name.npos) continue;
    DI_TRY(std::string text, read_file(path_of(name)));
    auto tree = text::JsonTree::parse(std::move(text));
    if (!tree || !tree->root().find("batch").is_object()) {
      spdlog::warn("{} is not a batch of this service and is left out", path_of(name));
      continue;
    }
    SavedBatch batch{.id = name,
                     .tenant = std::string(tree->root().find("tenant").text()),
                     .order = integer_or(tree->root().find("order"), 0)};
    text::append_json(tree->root().find("batch"), text::JsonStyle::kCompact, batch.object);
    DI_TRY(batch.output, whole_lines(path_of(name + ".output")));
    DI_TRY(batch.errors, whole_lines(path_of(name + ".errors")));
    batches.push_back(std::move(batch));
  }
  std::ranges::sort(batches, {}, &SavedBatch::order);
  return batches;
}

void BatchFolder::save(const std::string& id, const std::string& tenant, int64_t order,
                       const std::string& object) const {
  if (folder_.empty()) return;
  JsonWriter w;
  w.begin_object().field("tenant", tenant).field("order", order).key("batch").raw(object).end_object();
  auto done = write_file(path_of(id), w.text());
  if (!done) spdlog::error("a batch could not be saved: {}", done.error().message);
}

void BatchFolder::append(const std::string& name, std::string_view line) const {
  if (folder_.empty()) return;
  std::ofstream file(path_of(name), std::ios::app);
  file << line << std::flush;
  if (!file) spdlog::error("{} could not be written", path_of(name));
}

void BatchFolder::remove_lines(const std::string& id) const {
  std::error_code ignored;
  if (folder_.empty()) return;
  for (const char* kind : {".output", ".errors"}) std::filesystem::remove(path_of(id + kind), ignored);
}

void BatchFolder::remove(const std::string& id) const {
  std::error_code ignored;
  if (folder_.empty()) return;
  remove_lines(id);
  std::filesystem::remove(path_of(id), ignored);
}

}  // namespace deepinfer::serve::openai
