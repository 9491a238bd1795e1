#include "device/device.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include <sys/mman.h>

#include "device/cpu/cpu_stream.h"

namespace deepinfer {
namespace {

// MemAvailable of the host, cut by the memory limit of the control group.
int64_t available_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    if (int64_t kib = 0; key == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    meminfo.ignore(256, '\n');
  }
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), current_file("/sys/fs/cgroup/memory.current");
  int64_t limit = 0, current = 0;
  if (limit_file >> limit && current_file >> current) available = std::min(available, limit - current);
  return available;
}

class CpuDevice final : public Device {
 public:
  std::string description() const override { return fmt::format("cpu, {} threads", available_threads()); }
  bool is_host() const override { return true; }
  int64_t free_memory() const override { return available_memory(); }
  Result<DeviceBuffer> allocate_host(int64_t bytes) override { return allocate(bytes); }

  Result<DeviceBuffer> allocate(int64_t bytes) override {
    int64_t available = available_memory();
    if (bytes > available) return fail(Code::kExhausted, "{} bytes of memory needed, {} available", bytes, available);
    if (bytes == 0) return DeviceBuffer();
    void* p = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return fail(Code::kExhausted, "cannot map {} bytes of memory", bytes);
    ::madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return DeviceBuffer(p, bytes, [](void* data, int64_t size) { ::munmap(data, static_cast<size_t>(size)); });
  }

  std::unique_ptr<Stream> create_stream(int num_threads) override { return std::make_unique<CpuStream>(num_threads); }
};

}  // namespace

void CpuStream::copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void CpuStream::fill(void* to, int value, int64_t bytes) {
  std::memset(to, value, static_cast<size_t>(bytes));
}

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace deepinfer
