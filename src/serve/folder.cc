#include "serve/folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace deepinfer::serve {
namespace fs = std::filesystem;

Result<void> make_folder(const std::string& path) {
  std::error_code ec;
  if (fs::create_directories(path, ec)) fs::permissions(path, fs::perms::owner_all, ec);
  if (ec) return fail(Code::kIo, "{}: {}", path, ec.message());
  if (::access(path.c_str(), W_OK | X_OK) != 0) return fail(Code::kIo, "{}: {}", path, std::strerror(errno));
  return {};
}

Result<std::vector<std::string>> names_in(const std::string& path) {
  std::error_code ec;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_regular_file() && it->path().extension() != ".tmp") names.push_back(it->path().filename().string());
  }
  if (ec) return fail(Code::kIo, "{}: {}", path, ec.message());
  std::ranges::sort(names);
  return names;
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  std::string path = folder + "/lock";
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return fail(Code::kIo, "{}: {}", path, std::strerror(errno));
  FolderLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return fail(Code::kIo, "{} is in use by another process", folder);
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace deepinfer::serve
