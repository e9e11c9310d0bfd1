// Routing of tokens to experts: kernel of ops/moe.h, route. One block a token: every thread scores some experts in
// double, then one warp picks the best top_k one after another. Floor: the latency of one kernel (1.5 KB of logits).
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostExperts = 1024;  // for whose scores a block has room
constexpr int kMostChosen = 32;     // one a lane

// In double, where the logarithm is exact enough to round to the same float nearly everywhere.
__device__ inline float sqrt_softplus(float x) {
  const double y = x > 20.0f ? static_cast<double>(x) : log1p(exp(static_cast<double>(x)));
  return static_cast<float>(sqrt(y));
}

// Compares as the floats do, then lower experts first. 0 is below every expert's key.
__device__ inline uint64_t key_of(float score, int expert) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 equals +0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(0x7FFFFFFF - expert);
}

__global__ void route_kernel(MatrixView<int32_t> experts, MatrixView<float> weights, MatrixView<const float> logits,
                             const float* bias, float temperature, bool normalise, float scaling) {
  __shared__ float scores[kMostExperts];
  __shared__ uint64_t keys[kMostExperts];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  const int count = static_cast<int>(logits.cols), top_k = static_cast<int>(experts.cols);
  for (int e = threadIdx.x; e < count; e += kThreads) {
    scores[e] = sqrt_softplus(logits.data[t * logits.stride + e] / temperature);
    keys[e] = key_of(scores[e] + bias[e], e);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;

  // A lane knows the best of its own experts (lane, lane + 32, ...) and looks for the next when that is taken.
  const int lane = threadIdx.x;
  const auto best_below = [&](uint64_t bound) {
    uint64_t best = 0;
    for (int e = lane; e < count; e += 32) {
      const uint64_t key = keys[e];
      if (key < bound && key > best) best = key;
    }
    return best;
  };
  uint64_t mine = best_below(~uint64_t{0});
  int chosen = kMostExperts;  // of the lane whose turn it was
  for (int i = 0; i < top_k; ++i) {
    uint64_t best = mine;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
      if (other > best) best = other;
    }
    if (lane == i) chosen = 0x7FFFFFFF - static_cast<int>(static_cast<uint32_t>(best));
    if (mine == best) mine = best_below(best);
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
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(a.logits.rows)), kThreads, 0, route_kernel, a.experts,
         a.weights, a.logits, a.bias, a.temperature, a.normalise, a.scaling);
}

}  // namespace deepinfer::cuda
