#include "device/device.h"

#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_stream.h"

namespace deepinfer {
namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

namespace {

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  void launch(Stream& stream) override { check(cudaGraphLaunch(graph_, handle_of(stream)), "graph launch"); }

 private:
  cudaGraphExec_t graph_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const cudaDeviceProp& properties) : properties_(properties) {}

  std::string description() const override {
    return fmt::format("{}, {} multiprocessors, {:.0f} GB", properties_.name, properties_.multiProcessorCount,
                       static_cast<double>(properties_.totalGlobalMem) / 1e9);
  }
  bool is_host() const override { return false; }
  int64_t free_memory() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory size");
    return static_cast<int64_t>(free);
  }

  Result<DeviceBuffer> allocate(int64_t bytes) override {
    if (bytes == 0) return DeviceBuffer();
    void* data = nullptr;
    if (cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess) {
      cudaGetLastError();  // clears it
      return fail(Code::kExhausted, "{} bytes of GPU memory needed, {} available", bytes, free_memory());
    }
    check(cudaMemset(data, 0, static_cast<size_t>(bytes)), "memory set");
    check(cudaDeviceSynchronize(), "memory set");
    return DeviceBuffer(data, bytes, [](void* p, int64_t) { cudaFree(p); });
  }

  Result<DeviceBuffer> allocate_host(int64_t bytes) override {
    if (bytes == 0) return DeviceBuffer();
    void* data = nullptr;
    if (cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();
      return fail(Code::kExhausted, "{} bytes of pinned host memory are not to be had", bytes);
    }
    return DeviceBuffer(data, bytes, [](void* p, int64_t) { cudaFreeHost(p); });
  }

  std::unique_ptr<Stream> create_stream(int num_threads) override { return std::make_unique<CudaStream>(num_threads); }

 private:
  cudaDeviceProp properties_;
};

}  // namespace

CudaStream::CudaStream(int num_threads) : pool_(num_threads > 0 ? num_threads : available_threads()) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  check(cudaHostAlloc(reinterpret_cast<void**>(&ring_), static_cast<size_t>(kPieces * kPieceBytes), 0), "pinned ring");
  for (cudaEvent_t& event : passed_) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    check(cudaEventRecord(event, stream_), "event");
  }
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  for (cudaEvent_t event : passed_) cudaEventDestroy(event);
  cudaFreeHost(ring_);
  cudaStreamDestroy(stream_);
}

// A copy of the source in the ring.
void* CudaStream::stage(const void* from, int64_t bytes) {
  if (used_ + bytes > kPieceBytes) {
    flush();
    check(cudaEventRecord(passed_[piece_], stream_), "event");
    piece_ = (piece_ + 1) % kPieces;
    used_ = 0;
    check(cudaEventSynchronize(passed_[piece_]), "event");
  }
  std::byte* at = ring_ + piece_ * kPieceBytes + used_;
  std::memcpy(at, from, static_cast<size_t>(bytes));
  used_ += round_up(bytes, 16);
  return at;
}

void CudaStream::flush() {
  if (collected_.count == 0) return;
  launch_uploads(stream_, collected_);
  collected_.count = 0;
}

void CudaStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  if (bytes <= kPieceBytes / 4) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, from), "pointer");
    if (attributes.type == cudaMemoryTypeUnregistered) {
      from = stage(from, bytes);
      cudaPointerAttributes target{};
      check(cudaPointerGetAttributes(&target, to), "pointer");
      if (bytes <= kMostCollected && target.type == cudaMemoryTypeDevice) {
        if (collected_.count == kMaxUploads) flush();
        collected_.list[collected_.count++] = {to, from, bytes};
        return;
      }
    }
  }
  flush();
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copy");
}

void CudaStream::fill(void* to, int value, int64_t bytes) {
  flush();
  if (bytes > 0) check(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream_), "fill");
}

void CudaStream::synchronize() {
  flush();
  check(cudaStreamSynchronize(stream_), "synchronize");
}

bool CudaStream::begin_capture() {
  flush();
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
  return true;
}

std::unique_ptr<Graph> CudaStream::end_capture() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph), "capture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "graph");
  return std::make_unique<CudaGraph>(ready);
}

}  // namespace cuda

Result<std::unique_ptr<Device>> make_cuda_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    return fail(Code::kNotFound, "no NVIDIA GPU was found: {}",
                status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  }
  cudaDeviceProp properties{};
  if (cudaSetDevice(0) != cudaSuccess || cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
    return fail(Code::kNotFound, "the NVIDIA GPU does not answer: {}", cudaGetErrorString(cudaGetLastError()));
  if (properties.major < 9)
    return fail(Code::kUnsupported, "{} has compute capability {}.{}; 9.0 or later is needed", properties.name,
                properties.major, properties.minor);
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(properties));
}

}  // namespace deepinfer
