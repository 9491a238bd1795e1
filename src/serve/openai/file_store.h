// Files of the API: what batches read and write.
//
//   Kept in memory; with a folder they are there as well and outlive the process:
//     FOLDER/ID     a line of JSON that says whose it is and what it is called, then the bytes
//   Nothing is pushed out by what comes later: a file that does not fit is refused. A file goes when it is deleted or
//   when its time is over, which the file's `expires_s` tells. Output of batches is work that is done, so it is taken
//   even beyond the limit.
//
// Each file belongs to a tenant; another tenant does not find it. Thread-safe: workers read while the loop writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/api_error.h"

namespace deepinfer::serve::openai {

inline constexpr std::string_view kBatchOutput = "batch_output";  // a purpose

struct File {
  std::string id, name, purpose, data;
  int64_t created_s = 0, expires_s = 0;  // Unix time
};
// Shared by the store, answers that are being sent and batches that read it.
using FilePtr = std::shared_ptr<const File>;

class FileStore {
 public:
  // `folder` empty: memory alone.
  FileStore(std::string folder, std::chrono::seconds keep, int64_t max_bytes)
      : folder_(std::move(folder)), keep_(keep), max_bytes_(max_bytes) {}

  // Makes the folder and reads what an earlier process left in it. A damaged file is named in the log and left out.
  Result<void> load();

  // Gives the file its id and times. Fails if it does not fit or cannot be written; output that cannot be written is
  // kept in memory.
  ApiResult<FilePtr> add(const std::string& tenant, File file);
  FilePtr get(const std::string& tenant, const std::string& id);  // nullptr: there is none
  bool remove(const std::string& tenant, const std::string& id);
  std::vector<FilePtr> list(const std::string& tenant);  // the newest first

 private:
  struct Entry {
    std::string tenant;
    FilePtr file;
    int64_t order;  // in which they came
  };
  using Entries = std::map<std::string, Entry>;

  Result<void> write(const Entry& entry) const;
  std::string path_of(const std::string& id) const { return folder_ + "/" + id; }
  void insert(Entry entry);
  Entries::iterator erase(Entries::iterator it);
  void drop_old();

  const std::string folder_;
  const std::chrono::seconds keep_;
  const int64_t max_bytes_;
  std::mutex mutex_;  // guards what follows
  Entries entries_;   // by id
  int64_t bytes_ = 0, next_order_ = 0;
};

}  // namespace deepinfer::serve::openai
