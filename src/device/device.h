// What the engine knows of a machine's compute device: memory, and streams of ordered work.
//
// device/cpu and device/cuda implement these with the same file names. A CPU stream runs each call to its end before it
// returns; a CUDA stream queues it. Code above this line treats both as queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/result.h"

namespace deepinfer {

class ThreadPool;

// The device failed (launch, out of memory). Thrown by wrappers, caught once, in the engine's step loop.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Stream;

// Recorded work that a stream repeats with one call.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;  // host and device pointers alike
  virtual void fill(void* to, int value, int64_t bytes) = 0;
  virtual void synchronize() = 0;
  // Threads of the host that work for this stream: a CPU's kernels, or what is left to the host beside a GPU.
  virtual ThreadPool& pool() = 0;
  // Between the two calls work is recorded instead of done. False: this device cannot, nothing was started.
  virtual bool begin_capture() { return false; }
  virtual std::unique_ptr<Graph> end_capture() { return nullptr; }
};

// Memory of a device, returned on destruction.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(void* data, int64_t bytes, void (*release)(void*, int64_t))
      : data_(data), bytes_(bytes), release_(release) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) release_(data_, bytes_);
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void (*release_)(void*, int64_t) = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;
  virtual bool is_host() const = 0;                          // kernels work on host memory as it lies
  virtual int64_t free_memory() const = 0;                   // bytes available to this process now
  virtual Result<DeviceBuffer> allocate(int64_t bytes) = 0;  // zeroed; kExhausted with both numbers if it does not fit
  // Memory of the host that the device's kernels can read where it lies, under the same address.
  virtual Result<DeviceBuffer> allocate_host(int64_t bytes) = 0;
  virtual std::unique_ptr<Stream> create_stream(int num_threads) = 0;  // threads of its pool, 0 = all available
};

std::unique_ptr<Device> make_cpu_device();
// The first NVIDIA GPU. kUnsupported: this program was built without CUDA; kNotFound: there is no GPU or no driver.
Result<std::unique_ptr<Device>> make_cuda_device();

}  // namespace deepinfer
