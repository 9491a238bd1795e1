// A folder of the service's own: for its user alone, and for one process at a time.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::serve {

// With the folders above it. Fails with the path and the reason.
Result<void> make_folder(const std::string& path);
// Names of the files in it, sorted, without those that were not finished.
Result<std::vector<std::string>> names_in(const std::string& path);

// Keeps other processes out of a folder while it lives; the system lets go of it when the process ends.
class FolderLock {
 public:
  // Fails if another process has it.
  static Result<FolderLock> take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace deepinfer::serve
