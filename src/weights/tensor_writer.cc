#include "weights/tensor_writer.h"

#include "base/check.h"

namespace deepinfer::weights {

void TensorWriter::declare(const std::string& name, StoredType type, std::vector<int64_t> shape) {
  TensorEntry entry{.name = name, .type = type, .shape = std::move(shape), .offset = payload_bytes_};
  entry.bytes = stored_type_bits(type) / 8;
  for (int64_t n : entry.shape) entry.bytes *= n;
  payload_bytes_ += entry.bytes;
  by_name_[name] = entries_.size();
  entries_.push_back(std::move(entry));
}

Result<void> TensorWriter::create(const std::string& path) {
  const std::string header = make_header(entries_);
  payload_begin_ = static_cast<int64_t>(header.size());
  DI_TRY(file_, OutputFile::create(path, payload_begin_ + payload_bytes_));
  return file_.write_at(0, std::as_bytes(std::span(header)));
}

Result<void> TensorWriter::write(const std::string& name, int64_t offset, std::span<const std::byte> bytes) const {
  const TensorEntry& entry = entries_[by_name_.at(name)];
  DI_CHECK(offset >= 0 && offset + static_cast<int64_t>(bytes.size()) <= entry.bytes, "{}: {} bytes at {} of {}", name,
           bytes.size(), offset, entry.bytes);
  return file_.write_at(payload_begin_ + entry.offset + offset, bytes);
}

}  // namespace deepinfer::weights
