// The router's product and the choice of experts in one kernel, for at most eight tokens.
//
// A block has 64 experts and one part of their sums (gemm_parts, the same as in `linear`, with the same main loop), all
// of whose weights fit its shared memory: they are fetched while the kernel before runs. Blocks hand their parts to the
// first ones (exchange.cuh), one a token, which add them up in the order of their index, as linear_gemm.cu does. They
// may wait, since all blocks of the grid are resident together.
//
// Floor: the latency of one kernel and of an exchange through the L2 (3.9 MB of weights take 0.9 us of it).
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/exchange.cuh"
#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/linear_gemm.cuh"
#include "backends/cuda/route_choice.cuh"
#include "backends/cuda/route_few.cuh"
#include "backends/cuda/tensor_map.h"

namespace deepinfer::cuda {
namespace {

constexpr int kTokens = 8, kGroups = 1, kConsumers = 128 * kGroups;
// Warps that multiply, the producer's, and some that only help with the scores: one expert a thread, as released.
constexpr int kScorers = 384, kThreads = kScorers + 32;
constexpr int kStage = stage_bytes<kTokens, kGroups>(tile_bytes(WeightFormat::kBf16));
constexpr int kStages = 5;  // more do not fit beside another block
constexpr int kShared = kStages * kStage + 16 * kStages + static_cast<int>(sizeof(RouteScores));

struct Params {
  const std::byte* tiles;
  int num_k_tiles, row_tiles, num_parts, num_tokens, exponent;
  float scale;
  uint32_t* parts;  // parts_beside: [token][expert][kMaxParts]; otherwise [token][part][expert]
  bool parts_beside;
  RouteParams route;
  CUtensorMap tokens;

  __device__ int part_begin(int part) const { return part * num_k_tiles / num_parts; }
  __device__ uint32_t* at(int token, int part, int expert) const {
    return parts + (parts_beside ? (token * route.count + expert) * kMaxParts + part
                                 : (token * num_parts + part) * route.count + expert);
  }
};

// One thread. The weights do not depend on the kernel before.
__device__ __forceinline__ void produce(const Params& p, const Ring<kGroups>& ring, int row_tile, int first, int end) {
  constexpr int kTiles = kStageTiles<kTokens>;
  const uint64_t once = evict_first(), normal = evict_normal();
  constexpr int kBytes = tile_bytes(WeightFormat::kBf16);
  const int64_t row_bytes = static_cast<int64_t>(p.num_k_tiles) * kBytes;
  const WeightFill<kTokens, kGroups> fill{p.tiles + row_tile * row_bytes, row_bytes,
                                          min(kGroups, p.row_tiles - row_tile), kBytes};
  prefetch_map(&p.tokens);
  for (int k = first, stage = 0; k < end; k += kTiles, ++stage) {
    fill.copy(ring, stage, k, min(kTiles, end - k), once);
  }
  wait_for_kernel_before();
  for (int k = first, stage = 0; k < end; k += kTiles, ++stage) {
    copy_tokens<kTokens>(ring, &p.tokens, 0, stage, k, min(kTiles, end - k), normal);
  }
}

// A thread of a warpgroup has rows r and r + 8 of two tokens.
__device__ __forceinline__ void leave_part(const Params& p, int part, int row_tile, const float (&d)[kTokens / 2],
                                           int thread) {
  const int expert = row_tile * kTileRows + thread / 32 * 16 + thread % 32 / 4, token = thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = token + i % 2, e = expert + i / 2 * 8;
    if (t >= p.num_tokens || e >= p.route.count) continue;
    store_exchanged(p.at(t, part, e), to_exchanged(d[i]));
  }
}

template <bool kPartsBeside>
__device__ __forceinline__ float add_up(const Params& p, int token, int expert) {
  uint32_t x[kMaxParts];
  bool all_there;
  do {
    all_there = true;
#pragma unroll
    for (int i = 0; i < kMaxParts; ++i) {
      if (i >= p.num_parts) break;
      if constexpr (!kPartsBeside) {
        x[i] = load_exchanged(p.at(token, i, expert));
      } else if (i % 4 == 0) {
        const uint4 four = load_exchanged(reinterpret_cast<const uint4*>(p.at(token, i, expert)));
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kMaxParts; ++i) all_there &= i >= p.num_parts || is_there(x[i]);
  } while (!all_there);
  float sum = from_exchanged(x[0]);
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    if (i >= p.num_parts) break;
    if (i > 0) sum += from_exchanged(x[i]);
    if constexpr (!kPartsBeside) {
      store_exchanged(p.at(token, i, expert), 0);
    } else if (i % 4 == 0) {
      store_exchanged(reinterpret_cast<uint4*>(p.at(token, i, expert)), make_uint4(0, 0, 0, 0));
    }
  }
  return sum * p.scale;
}

__global__ void __launch_bounds__(kThreads, 2) route_few_kernel(const __grid_constant__ Params p) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  std::byte* barriers = shared + kStages * kStage;
  RouteScores& scores = *reinterpret_cast<RouteScores*>(barriers + 16 * kStages);
  const Ring<kGroups> ring{shared, shared_address(barriers), shared_address(barriers) + 8 * kStages, kStages, kStage};
  let_next_kernel_start();
  if (threadIdx.x == kConsumers) ring.init();
  start_after_warp(kConsumers / 32, kThreads);
  const int part = blockIdx.x % p.num_parts, row_tile = blockIdx.x / p.num_parts * kGroups;
  const int first = p.part_begin(part), end = p.part_begin(part + 1);
  if (threadIdx.x / 32 == kConsumers / 32) {
    if (threadIdx.x == kConsumers) produce(p, ring, row_tile, first, end);
    return;
  }
  const int scorer = threadIdx.x < kConsumers ? threadIdx.x : threadIdx.x - 32;
  const int token = blockIdx.x;  // that this block chooses for, if there are so many
  constexpr int kEach = (kMostRoutedExperts + kScorers - 1) / kScorers;
  float bias[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = scorer + i * kScorers;
    bias[i] = token < p.num_tokens && e < p.route.count ? p.route.bias[e] : 0.0f;
  }
  if (threadIdx.x < kConsumers) {
    const int consumer = threadIdx.x, group = consumer / 128;
    if (row_tile + group < p.row_tiles) {
      float d[kTokens / 2] = {};
      RingPosition at;
      multiply_tiles<WeightFormat::kBf16, kTokens, 1>(d, ring, at, end - first, group, consumer % 128, p.exponent);
      leave_part(p, part, row_tile + group, d, consumer % 128);
    }
  }
  if (token >= p.num_tokens) return;
  // Nobody looks for parts before the kernel before is over, whose exchange uses the same memory.
  sync_threads(2, kScorers);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = scorer + i * kScorers;
    if (e >= p.route.count) continue;
    const float logit = p.parts_beside ? add_up<true>(p, token, e) : add_up<false>(p, token, e);
    score_expert(scores, p.route, e, logit, bias[i]);
  }
  sync_threads(2, kScorers);
  if (threadIdx.x >= 32) return;
  if (p.route.count <= 384) return choose_experts<384 / 32>(scores, p.route, token);
  choose_experts<kMostRoutedExperts / 32>(scores, p.route, token);
#else
  __trap();
#endif
}

int64_t num_blocks(const ops::PackedWeight& gate) {
  return (row_tiles(gate) + kGroups - 1) / kGroups * gemm_parts(gate);
}

}  // namespace

// Requires of the last condition: whoever chooses has a block, and the grid is resident at once.
bool route_few_takes(const ops::RouteArgs& a) {
  if (a.in.rows < 1 || a.in.rows > kTokens || a.gate->format != WeightFormat::kBf16) return false;
  if (!gemm_supports(a.product())) return false;
  const int64_t parts = gemm_parts(*a.gate);
  const int64_t most_tiles = (column_tiles(*a.gate) + parts - 1) / parts;
  return most_tiles <= kStages * kStageTiles<kTokens> && num_blocks(*a.gate) >= kTokens && num_blocks(*a.gate) <= 132;
}

void route_few(CudaStream& stream, const ops::RouteArgs& a) {
  const ops::PackedWeight& gate = *a.gate;
  const PackedInfo info = packed_info(gate);
  Params p;
  p.tokens = token_map(a.in.data, a.in.rows, a.in.cols, a.in.stride, kTokens);
  p.tiles = gate.data.get();
  p.num_k_tiles = static_cast<int>(column_tiles(gate)), p.row_tiles = static_cast<int>(row_tiles(gate));
  p.num_parts = gemm_parts(gate);
  p.num_tokens = static_cast<int>(a.in.rows);
  p.exponent = info.scale_bias, p.scale = info.output_scale;
  // Beside each other they are few loads, but the stores touch more sectors: 5.3 us instead of 5.6 for one token, 6.4
  // instead of 6.3 for eight (H200).
  p.parts_beside = p.num_tokens <= 2;
  p.parts = static_cast<uint32_t*>(stream.exchange(p.num_tokens * kMaxParts * gate.rows * 4));
  p.route = route_params(a);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(route_few_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  DI_CUDA_CHECK(allowed);
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(num_blocks(gate))), kThreads, kShared, route_few_kernel, p);
}

}  // namespace deepinfer::cuda
