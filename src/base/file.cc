#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deepinfer {
namespace {

auto io_error(const std::string& path, const char* what) {
  Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
  return fail(code, "{}: cannot {}: {}", path, what, std::strerror(errno));
}

}  // namespace

Result<File> File::open_read(const std::string& path) {
  File f;
  f.path_ = path;
  f.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (f.fd_ < 0) return io_error(path, "open");
  struct stat st{};
  if (::fstat(f.fd_, &st) != 0) return io_error(path, "stat");
  if (!S_ISREG(st.st_mode)) return fail(Code::kIo, "{}: not a regular file", path);
  f.size_ = st.st_size;
  return f;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> File::read_at(int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path_, "read");
    if (n == 0)
      return fail(Code::kCorrupt, "{}: ends at byte {}, {} bytes wanted at {}", path_, size_, out.size(), offset);
    done += static_cast<std::size_t>(n);
  }
  return {};
}

namespace {

std::string temporary_name(const std::string& path) {
  return path + ".tmp";
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path, int64_t size) {
  OutputFile f;
  f.path_ = path;
  f.fd_ = ::open(temporary_name(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (f.fd_ < 0) return io_error(temporary_name(path), "create");
  if (::ftruncate(f.fd_, size) != 0) return io_error(temporary_name(path), "extend");
  return f;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_name(path_).c_str());
}

Result<void> OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(temporary_name(path_), "write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
  return {};
}

Result<void> OutputFile::finish() {
  if (::close(std::exchange(fd_, -1)) != 0) return io_error(temporary_name(path_), "close");
  if (::rename(temporary_name(path_).c_str(), path_.c_str()) != 0) return io_error(path_, "rename");
  return {};
}

Result<std::string> read_file(const std::string& path) {
  DI_TRY(File f, File::open_read(path));
  std::string text(static_cast<std::size_t>(f.size()), '\0');
  DI_TRY_VOID(f.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<void> write_file(const std::string& path, std::string_view bytes) {
  std::string temporary = temporary_name(path);
  int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(temporary, "create");
  std::size_t done = 0;
  while (done < bytes.size()) {
    ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      ::close(fd);
      return io_error(temporary, "write");
    }
    done += static_cast<std::size_t>(n);
  }
  ::close(fd);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error(path, "rename");
  return {};
}

bool file_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

Result<int64_t> file_size(const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return io_error(path, "stat");
  return st.st_size;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  DI_TRY(File f, File::open_read(path));
  MappedFile m;
  m.size_ = static_cast<std::size_t>(f.size());
  if (m.size_ == 0) return m;
  void* p = ::mmap(nullptr, m.size_, PROT_READ, MAP_SHARED, f.descriptor(), 0);
  if (p == MAP_FAILED) return io_error(path, "map");
  m.data_ = static_cast<const std::byte*>(p);
  return m;
}

void advise(const void* data, int64_t bytes, MappedAccess access) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes);
  ::madvise(reinterpret_cast<void*>(begin), end - begin, access == MappedAccess::kSoon ? MADV_WILLNEED : MADV_RANDOM);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace deepinfer
