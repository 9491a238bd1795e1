// The router's choice on its own, a warp a row; with few rows the plan of the expert layer makes it (moe.cu).
#include "kernels/cuda/smxx/route.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kRowsPerBlock = 4;

__global__ void __launch_bounds__(kRowsPerBlock* kWarp) route_kernel(RouteArgs p) {
  begin_kernel();
  __shared__ RoutePlaces places[kRowsPerBlock];
  const int row = threadIdx.x / kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + row;
  if (t < p.num_rows) route_row(p, t, places[row]);
}

}  // namespace

void launch_route(cudaStream_t stream, const RouteArgs& a) {
  const int blocks = (a.num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  start("route", route_kernel, blocks, kRowsPerBlock * kWarp, 0, stream, a);
}

}  // namespace deepinfer::kernels::cuda
