// The kernel for few rows an expert: one persistent launch for w1 and w3 of all experts, one for w2.
//
// Floor of both: the bytes of the experts that have rows / memory bandwidth.
//
// An item is a WorkTile times 64 rows of w1 and the same 64 of w3, or 64 rows of w2 for every warpgroup of a block. Who
// computes an item has no part in its bits.
#pragma once

#include "backends/cuda/experts_epilogue.cuh"
#include "backends/cuda/experts_produce.cuh"

namespace deepinfer::cuda {

// What the blocks of a direct kernel keep of the plan in shared memory.
struct DirectRows {
  float weights[32];
  int tokens[32];
  int is_last;
};

template <class Kind>
constexpr int kSharedBytes = Kind::kStages* Kind::kStageBytes + Kind::kGroups* Kind::kStagedTokens* kStagedStride * 4 +
                             (16 + sizeof(Item)) * Kind::kStages + (Kind::kDirect ? sizeof(DirectRows) : 0);

template <class Kind, bool kGateUp, WeightFormat kFormat>
__device__ __forceinline__ void run_item(const FewParams& params, const Item& item, const ExpertsRing<Kind>& ring,
                                         RingPosition& at, float* staging, const DirectRows* direct, int consumer) {
  constexpr int kTokens = Kind::kStagedTokens, N = width<Kind>(kFormat);
  const int group = consumer / 128, thread = consumer % 128;
  const int row_tile = kGateUp ? item.part : Kind::kGroups * item.part + group;
  if (row_tile >= params.row_tiles) {
    skip_stages(ring, at, params.num_k_tiles, stage_tiles<Kind>(kFormat));
    return;
  }
  const int exponent = group == 0 ? item.exponents[0] : item.exponents[1];
  const float scale = group == 0 ? item.scales[0] : item.scales[1];
  float d[N / 2];
#pragma unroll
  for (float& x : d) x = 0;
  multiply_stages<Kind, kFormat, N>(d, ring, at, params.num_k_tiles, group, thread, exponent);
  if constexpr (kGateUp) {
    const auto about_row = [&](int i) -> AboutRow {
      const int row = item.first_row + i;
      if (item.shared) return {1.0f, i};
      if constexpr (Kind::kDirect) return {direct->weights[row], direct->tokens[row]};
      return {__ldcg(params.row_weight + row), params.all_tokens ? __ldcg(params.row_token + row) : i};
    };
    write_activation<kTokens, N>(params.out, d, scale, item.first_row, item.num_rows, row_tile * kTileRows, about_row,
                                 params.limit, params.quantise, staging, consumer);
  } else {
    write_products<kTokens, N>(params.out, d, scale, item.first_row, item.num_rows, row_tile * kTileRows,
                               staging + group * kTokens * kStagedStride, 2 + group, thread);
  }
}

// The sums of the tokens' rows, slots in order and then the shared expert's, of the outputs of item `part`.
template <class Kind>
__device__ __forceinline__ void sum_rows(const FewParams& params, const DirectPlan& plan, int part, int consumer) {
  constexpr int kLanes = Kind::kGroups * kTileRows / 4;  // that share a token
  const int column = (part * kLanes + consumer % kLanes) * 4, top_k = params.direct.top_k;
  const int num_tokens = params.direct.num_tokens;
  for (int first = consumer / 32 * (32 / kLanes); first < num_tokens; first += Kind::kConsumers / kLanes) {
    const int token = min(first + consumer % 32 / kLanes, num_tokens - 1);  // one twice does no harm
    float sum[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int slot = 0; slot <= top_k; ++slot) {
      const int row = slot < top_k ? plan.row_of(token * top_k + slot) : num_tokens * top_k + token;
      if (column >= params.out.num_outputs) continue;
      const uint2 bits = __ldcg(reinterpret_cast<const uint2*>(params.out.data + row * params.out.stride + column));
      sum[0] += low_bf16(bits.x), sum[1] += high_bf16(bits.x), sum[2] += low_bf16(bits.y), sum[3] += high_bf16(bits.y);
    }
    if (column >= params.out.num_outputs) continue;
    const uint2 rounded = {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3])};
    const int64_t at = token * params.sums_stride + column;
    if (params.sums_are_bf16) {
      *reinterpret_cast<uint2*>(params.sums + at * 2) = rounded;
    } else {
      *reinterpret_cast<float4*>(params.sums + at * 4) =
          make_float4(low_bf16(rounded.x), high_bf16(rounded.x), low_bf16(rounded.y), high_bf16(rounded.y));
    }
  }
}

template <class Kind, bool kGateUp>
__device__ __forceinline__ void consume(const FewParams& params, const ExpertsRing<Kind>& ring, float* staging,
                                        DirectRows* direct) {
  const int consumer = threadIdx.x;
  if constexpr (kGateUp) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  // The second product's kernel would not have started without the plan, or what it is made of.
  const PlanOf<Kind> plan(params);
  const int num_tiles = plan.num_tiles();
  if constexpr (kGateUp && Kind::kDirect) {
    const DirectShape& shape = params.direct;
    if (consumer < shape.num_tokens * shape.top_k) {
      direct->weights[plan.row()] = __ldcg(shape.weights.row(consumer / shape.top_k) + consumer % shape.top_k);
      direct->tokens[plan.row()] = consumer / shape.top_k;
    }
  }
  if constexpr (!kGateUp) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  if constexpr (kGateUp && Kind::kDirect) sync_threads(4, Kind::kConsumers);
  RingPosition at;
  while (true) {
    barrier_wait(ring.full(at.stage), at.use);
    const Item item = ring.items[at.stage];
    if (item.part < 0) break;
    if ((item.shared ? params.shared_format : params.routed_format) == WeightFormat::kMxfp4) {
      run_item<Kind, kGateUp, WeightFormat::kMxfp4>(params, item, ring, at, staging, direct, consumer);
    } else {
      run_item<Kind, kGateUp, WeightFormat::kF8Tile32>(params, item, ring, at, staging, direct, consumer);
    }
    if constexpr (!kGateUp && Kind::kDirect) {
      // Who finishes the last expert's rows of these outputs adds all of them up, in the order that any block would.
      sync_threads(4, Kind::kConsumers);
      if (consumer == 0)
        direct->is_last = count_arrival(params.arrivals + item.part) + 1 == static_cast<unsigned>(num_tiles);
      sync_threads(4, Kind::kConsumers);
      if (direct->is_last == 0) continue;
      sum_rows<Kind>(params, plan, item.part, consumer);
      if (consumer == 0) params.arrivals[item.part] = 0;
    }
  }
}

template <class Kind, bool kGateUp>
__global__ void __launch_bounds__(Kind::kThreads, Kind::kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ FewParams params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  float* staging = reinterpret_cast<float*>(shared + Kind::kStages * Kind::kStageBytes);
  const uint32_t barriers = shared_address(staging + Kind::kGroups * Kind::kStagedTokens * kStagedStride);
  const ExpertsRing<Kind> ring{
      shared, barriers,
      reinterpret_cast<Item*>(staging + Kind::kGroups * Kind::kStagedTokens * kStagedStride + 4 * Kind::kStages)};
  if (threadIdx.x == 0) ring.init();
  if (threadIdx.x == 32) prefetch_map(&params.routed_rows.map), prefetch_map(&params.shared_rows.map);
  __syncthreads();
  if (threadIdx.x >= Kind::kConsumers) {
    produce<Kind, kGateUp>(params, ring);
  } else {
    auto* direct =
        reinterpret_cast<DirectRows*>(shared + kSharedBytes<Kind> - (Kind::kDirect ? sizeof(DirectRows) : 0));
    consume<Kind, kGateUp>(params, ring, staging, direct);
  }
#else
  __trap();
#endif
}

}  // namespace deepinfer::cuda
