// Routing of tokens to experts: ops/moe.h, route. With few tokens the router's product and the choice are one kernel
// (route_few.cu); with many, the product is an ordinary one and a block a token chooses. Both have the same bits. Floor
// of the choice: the latency of one kernel (1.5 KB of logits).
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/route_choice.cuh"
#include "backends/cuda/route_few.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 384;  // one an expert, as released: a score in double takes long

template <int kEach>
__global__ void route_kernel(const RouteParams p, const float* logits, int64_t stride) {
  __shared__ RouteScores shared;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  for (int e = threadIdx.x; e < p.count; e += kThreads) {
    score_expert(shared, p, e, logits[t * stride + e], p.bias[e]);
  }
  __syncthreads();
  if (threadIdx.x < 32) choose_experts<kEach>(shared, p, t);
}

}  // namespace

void route(Stream& stream, const ops::RouteArgs& a) {
  DI_CHECK(a.logits.cols <= kMostRoutedExperts && a.experts.cols <= kMostChosenExperts,
           "{} of {} experts: at most {} of {}", a.experts.cols, a.logits.cols, kMostChosenExperts, kMostRoutedExperts);
  if (a.gate != nullptr) {
    if (route_few_takes(a)) return route_few(cuda_stream(stream), a);
    const ops::LinearTask product = a.product();
    linear(stream, {&product, 1});
  }
  const auto kernel = a.logits.cols <= 384 ? route_kernel<384 / 32> : route_kernel<kMostRoutedExperts / 32>;
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(a.logits.rows)), kThreads, 0, kernel, route_params(a),
         a.logits.data, a.logits.stride);
}

}  // namespace deepinfer::cuda
