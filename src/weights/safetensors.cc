#include "weights/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "weights/json_scanner.h"

namespace deepinfer::weights {
namespace {

// The format's own limit on headers.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;

struct TypeInfo {
  const char* name;
  int bits;
};
constexpr std::array<TypeInfo, 20> kTypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8},
     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16}, {"BF16", 16}, {"I32", 32},
     {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64}, {"U64", 64}}};

std::string_view bare_name(std::string_view name) {
  return name.starts_with("model.") ? name.substr(6) : name;
}

// Bytes of a tensor, or -1 if the count overflows or does not end on a byte.
int64_t stored_bytes(StoredType type, const std::vector<int64_t>& shape) {
  int64_t bits = stored_type_bits(type);
  for (int64_t n : shape) {
    if (__builtin_mul_overflow(bits, n, &bits)) return -1;
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// One entry's object: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}.
bool scan_entry(JsonScanner& in, TensorEntry& entry) {
  bool has_type = false, has_shape = false, has_offsets = false;
  bool ok = in.object([&](const std::string& key) {
    if (key == "dtype") {
      std::string name;
      if (!in.string(name)) return false;
      auto it = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& t) { return name == t.name; });
      if (it == kTypes.end()) return in.fail(fmt::format("tensor {} has unknown dtype '{}'", entry.name, name));
      entry.type = static_cast<StoredType>(it - kTypes.begin());
      has_type = true;
      return true;
    }
    if (key == "shape") {
      entry.shape.clear();
      has_shape = true;
      return in.array([&] {
        int64_t n = 0;
        if (!in.integer(n)) return false;
        if (n < 0) return in.fail(fmt::format("tensor {} has negative size {}", entry.name, n));
        if (entry.shape.size() == kMaxRank)
          return in.fail(fmt::format("tensor {} has more than {} dimensions", entry.name, kMaxRank));
        entry.shape.push_back(n);
        return true;
      });
    }
    if (key == "data_offsets") {
      std::array<int64_t, 2> offsets{};
      std::size_t count = 0;
      if (!in.array([&] {
            int64_t n = 0;
            if (!in.integer(n)) return false;
            if (count == 2) return in.fail(fmt::format("tensor {} has more than two offsets", entry.name));
            offsets[count++] = n;
            return true;
          })) {
        return false;
      }
      if (count != 2) return in.fail(fmt::format("tensor {} has {} offsets, not 2", entry.name, count));
      if (offsets[0] < 0 || offsets[1] < offsets[0]) {
        return in.fail(fmt::format("tensor {} has data_offsets [{}, {}]", entry.name, offsets[0], offsets[1]));
      }
      entry.offset = offsets[0];
      entry.bytes = offsets[1] - offsets[0];
      has_offsets = true;
      return true;
    }
    return in.skip_value();
  });
  if (!ok) return false;
  if (!has_type || !has_shape || !has_offsets)
    return in.fail(fmt::format("tensor {} lacks dtype, shape or data_offsets", entry.name));
  return true;
}

// The payload must be covered exactly, piece after piece.
Result<void> check_layout(const std::vector<TensorEntry>& entries, int64_t payload_bytes) {
  std::vector<int> order(entries.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const auto &x = entries[static_cast<std::size_t>(a)], &y = entries[static_cast<std::size_t>(b)];
    return x.offset != y.offset ? x.offset < y.offset : x.bytes < y.bytes;
  });
  int64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (int i : order) {
    const TensorEntry& e = entries[static_cast<std::size_t>(i)];
    if (e.offset < covered) {
      return fail(Code::kCorrupt, "tensors {} and {} overlap at payload byte {}", previous->name, e.name, e.offset);
    }
    if (e.offset > covered)
      return fail(Code::kCorrupt, "payload bytes {}..{} before tensor {} belong to nothing", covered, e.offset, e.name);
    covered = e.offset + e.bytes;
    previous = &e;
  }
  if (covered > payload_bytes) {
    return fail(Code::kCorrupt,
                "the file is cut: its header describes {} payload bytes, {} are there (tensor {} is incomplete)",
                covered, payload_bytes, previous->name);
  }
  if (covered < payload_bytes)
    return fail(Code::kCorrupt, "{} bytes at the end of the file belong to no tensor", payload_bytes - covered);
  return {};
}

}  // namespace

const char* stored_type_name(StoredType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}
int stored_type_bits(StoredType type) {
  return kTypes[static_cast<std::size_t>(type)].bits;
}

Result<std::vector<TensorEntry>> parse_header(std::string_view header, int64_t payload_begin, int64_t payload_bytes) {
  std::vector<TensorEntry> entries;
  entries.reserve(header.size() / 128);
  JsonScanner in(header);
  bool ok = in.object([&](const std::string& key) {
    if (key == "__metadata__") return in.skip_value();
    TensorEntry& entry = entries.emplace_back();
    entry.name = bare_name(key);
    return scan_entry(in, entry);
  });
  if (!ok) return fail(Code::kCorrupt, "header: {}", in.error());
  if (!in.at_end()) return fail(Code::kCorrupt, "header: text after the object");
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const TensorEntry& e : entries) {
    if (!names.insert(e.name).second) return fail(Code::kCorrupt, "header: tensor {} is given twice", e.name);
    if (stored_bytes(e.type, e.shape) != e.bytes) {
      return fail(Code::kCorrupt, "tensor {} is {} {}, its data_offsets span {} bytes", e.name,
                  stored_type_name(e.type), shape_text(e.shape), e.bytes);
    }
  }
  DI_TRY_VOID(check_layout(entries, payload_bytes));
  for (TensorEntry& e : entries) e.offset += payload_begin;
  return entries;
}

Result<std::vector<TensorEntry>> read_header(const File& file) {
  if (file.size() < 8) return fail(Code::kCorrupt, "not a safetensors file: {} bytes", file.size());
  uint64_t word = 0;
  DI_TRY_VOID(file.read_at(0, std::as_writable_bytes(std::span(&word, 1))));
  const int64_t rest = file.size() - 8;
  if (word > static_cast<uint64_t>(rest)) {
    return fail(Code::kCorrupt, "header of {} bytes is larger than the file, which has {} after the length", word,
                rest);
  }
  const int64_t length = static_cast<int64_t>(word);
  if (length > kMaxHeaderBytes)
    return fail(Code::kCorrupt, "header of {} bytes exceeds the format's limit {}", length, kMaxHeaderBytes);
  std::string header(static_cast<std::size_t>(length), '\0');
  DI_TRY_VOID(file.read_at(8, std::as_writable_bytes(std::span(header))));
  return parse_header(header, 8 + length, rest - length);
}

std::string make_header(const std::vector<TensorEntry>& entries) {
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  for (const TensorEntry& e : entries) {
    fmt::format_to(std::back_inserter(json), ",\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                   e.name, stored_type_name(e.type), fmt::join(e.shape, ","), e.offset, e.offset + e.bytes);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json;
}

}  // namespace deepinfer::weights
