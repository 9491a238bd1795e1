// What is kept of batches on disk, so that they outlive the process.
//
//   FOLDER/ID          whose it is and how it stands, written anew when that changes: the object of the API inside
//   FOLDER/ID.output   the lines that were answered, appended one by one
//   FOLDER/ID.errors   those that failed
//   A line that was cut, as by a kill, counts as not answered. Without a folder nothing is kept.
//
// What cannot be written is named in the log: the batch goes on, and after a restart its last lines run again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::serve::openai {

struct SavedBatch {
  std::string id, tenant;
  int64_t order = 0;           // in which they came
  std::string object;          // JSON, as the API shows it
  std::string output, errors;  // whole lines
};

class BatchFolder {
 public:
  explicit BatchFolder(std::string folder) : folder_(std::move(folder)) {}  // empty: none

  // Makes the folder; gives what an earlier process left, in the order in which they came.
  Result<std::vector<SavedBatch>> load();
  void save(const std::string& id, const std::string& tenant, int64_t order, const std::string& object) const;
  void append_output(const std::string& id, std::string_view line) const { append(id + ".output", line); }
  void append_error(const std::string& id, std::string_view line) const { append(id + ".errors", line); }
  // The lines are in files of the API now, or the batch is forgotten altogether.
  void remove_lines(const std::string& id) const;
  void remove(const std::string& id) const;

 private:
  void append(const std::string& name, std::string_view line) const;
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

}  // namespace deepinfer::serve::openai
