// Writes one safetensors file piece by piece, in any order: shapes are declared first, values come as they are made.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "weights/safetensors.h"

namespace deepinfer::weights {

class TensorWriter {
 public:
  // Lays out a tensor; before create.
  void declare(const std::string& name, StoredType type, std::vector<int64_t> shape);
  Result<void> create(const std::string& path);
  // Bytes of `name` from byte `offset` on. Bytes never written are zero.
  Result<void> write(const std::string& name, int64_t offset, std::span<const std::byte> bytes) const;
  Result<void> finish() { return file_.finish(); }

 private:
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
  int64_t payload_begin_ = 0, payload_bytes_ = 0;
  OutputFile file_;
};

}  // namespace deepinfer::weights
