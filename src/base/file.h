// Whole files, read-only mappings, positioned reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace deepinfer {

Result<std::string> read_file(const std::string& path);
Result<void> write_file(const std::string& path, std::string_view bytes);  // via a temporary name, then renamed
bool file_exists(const std::string& path);
Result<int64_t> file_size(const std::string& path);

// An open file descriptor, closed on destruction.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  static Result<File> open_read(const std::string& path);
  int64_t size() const { return size_; }
  int descriptor() const { return fd_; }
  // Reads exactly `out.size()` bytes at `offset` (safe from several threads); a short file is an error.
  Result<void> read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  int fd_ = -1;
  int64_t size_ = 0;
  std::string path_;
};

// A file written at positions under a temporary name; finish() gives it its own. Dropped unfinished, it is removed.
class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  static Result<OutputFile> create(const std::string& path, int64_t size);
  Result<void> write_at(int64_t offset, std::span<const std::byte> bytes) const;
  Result<void> finish();

 private:
  int fd_ = -1;
  std::string path_;
};

// Tells the system how part of a mapping will be read; only a hint.
enum class MappedAccess {
  kSoon,    // start reading these pages now
  kRandom,  // read single pages, nothing around them
};
void advise(const void* data, int64_t bytes, MappedAccess access);

// A whole file mapped read-only and shared; pages come in on first touch.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  static Result<MappedFile> open(const std::string& path);
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace deepinfer
