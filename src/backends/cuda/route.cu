// Routing of tokens to experts: kernel of ops/moe.h, route. One block a token: every thread scores some experts in
// double, then one warp picks the best top_k one after another. Floor: the latency of one kernel (1.5 KB of logits).
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 384;       // one an expert, as released: a score in double takes long
constexpr int kMostExperts = 1024;  // for whose scores a block has room
constexpr int kMostChosen = 32;     // one a lane

// In double, where the logarithm is exact enough to round to the same float nearly everywhere.
__device__ inline float sqrt_softplus(float x) {
  const double y = x > 20.0f ? static_cast<double>(x) : log1p(exp(static_cast<double>(x)));
  return static_cast<float>(sqrt(y));
}

// Compares as the floats do. 0 is below every number's key.
__device__ inline uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 equals +0
  return max(1u, bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

// kEach: experts that a lane of the choosing warp looks after, lane, lane + 32, ...
template <int kEach>
__global__ void route_kernel(MatrixView<int32_t> experts, MatrixView<float> weights, MatrixView<const float> logits,
                             const float* bias, float temperature, bool normalise, float scaling) {
  __shared__ float scores[kMostExperts];
  __shared__ uint32_t keys[kMostExperts];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  const int count = static_cast<int>(logits.cols), top_k = static_cast<int>(experts.cols);
  for (int e = threadIdx.x; e < count; e += kThreads) {
    scores[e] = sqrt_softplus(logits.data[t * logits.stride + e] / temperature);
    keys[e] = key_of(scores[e] + bias[e]);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;

  const int lane = threadIdx.x;
  uint32_t mine[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) mine[k] = lane + 32 * k < count ? keys[lane + 32 * k] : 0;
  int chosen = kMostExperts;  // of the lane whose turn it was
  for (int i = 0; i < top_k; ++i) {
    uint32_t best = 0;
    int best_k = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (mine[k] > best) best = mine[k], best_k = k;  // the first of equals, which is the lowest
    }
    const uint32_t best_of_all = __reduce_max_sync(0xFFFFFFFFu, best);
    const int expert = lane + 32 * best_k;
    const int winner = __reduce_min_sync(0xFFFFFFFFu, best == best_of_all ? expert : kMostExperts);
    if (lane == i) chosen = winner;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (lane + 32 * k == winner) mine[k] = 0;
    }
  }
  // Ascending experts: a lane's place is how many others chose a lower one.
  int place = 0;
  float sum = 0;
  for (int i = 0; i < top_k; ++i) place += __shfl_sync(0xFFFFFFFFu, chosen, i) < chosen;
  for (int i = 0; i < top_k; ++i) {
    const uint32_t who = __ballot_sync(0xFFFFFFFFu, lane < top_k && place == i);
    sum += scores[__shfl_sync(0xFFFFFFFFu, chosen, __ffs(who) - 1)];
  }
  if (lane >= top_k) return;
  const float divisor = normalise ? sum + 1e-20f : 1.0f;
  experts.data[t * experts.stride + place] = chosen;
  weights.data[t * weights.stride + place] = scores[chosen] / divisor * scaling;
}

}  // namespace

void route(Stream& stream, const ops::RouteArgs& a) {
  DI_CHECK(a.logits.cols <= kMostExperts && a.experts.cols <= kMostChosen, "{} of {} experts: at most {} of {}",
           a.experts.cols, a.logits.cols, kMostChosen, kMostExperts);
  const auto kernel = a.logits.cols <= 384 ? route_kernel<384 / 32> : route_kernel<kMostExperts / 32>;
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(a.logits.rows)), kThreads, 0, kernel, a.experts, a.weights,
         a.logits, a.bias, a.temperature, a.normalise, a.scaling);
}

}  // namespace deepinfer::cuda
