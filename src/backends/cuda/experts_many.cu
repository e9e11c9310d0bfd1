// The products of experts that have many rows each: one persistent launch for w1 and w3 of all of them, one for w2.
//
// Floor of both: max(bytes of the experts that have rows / memory bandwidth, flops of the rows / BF16 rate).
//
// An item is a WorkTile times 128 rows of w1 and the same 128 of w3, or 256 rows of w2. Who computes an item, and with
// how many neighbours, has no part in its bits.
#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/experts_gemm.cuh"
#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/experts_many.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/tensor_map.h"

namespace deepinfer::cuda {
namespace {

constexpr int kMaps = 5;  // boxes of 8, 16, ... rows
static_assert(kRowUnit << kMaps > ManyRows::kMost);

struct ManyParams : ItemParams {
  CUtensorMap routed_rows[kMaps], shared_rows[kMaps];
  __nv_bfloat16* out;
  int num_outputs;  // and the stride
};

__device__ __forceinline__ int rows_of_instruction(int rows) {
  return max((rows + kRowUnit - 1) / kRowUnit, 1) * kRowUnit;
}

// The tile of 64 rows that warpgroup `group` multiplies of part `part` of a matrix.
template <bool kGateUp>
__device__ __forceinline__ int row_tile_of(int part, int group) {
  return kGateUp ? part * (ManyRows::kGroups / 2) + group / 2 : part * ManyRows::kGroups + group;
}
template <bool kGateUp>
__device__ __forceinline__ ExpertMatrix matrix_of(const ExpertMatrices& expert, int group) {
  if constexpr (!kGateUp) return expert.w2;
  const bool up = group % 2 != 0;
  return {up ? expert.w3.tiles : expert.w1.tiles, up ? expert.w3.exponent : expert.w1.exponent,
          up ? expert.w3.scale : expert.w1.scale};
}

// All stages of this block's items, in order; another one is taken when one has been fetched. One warp: lanes 0, 1, ...
// fetch a warpgroup's weights each; lanes 8, 9,
// ... boxes of 8, 16, ... rows, those that make up the item's number of rows.
template <bool kGateUp>
__device__ __forceinline__ void produce(const ManyParams& params, const ManyRing& ring) {
  const int lane = threadIdx.x % 32, bit = max(lane - 8, 0);
  const uint64_t policy = lane < 8 ? evict_first() : evict_normal();
  const uint32_t stages = shared_address(ring.stages);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int num_items = __ldcg(params.num_tiles) * params.items_per_tile, blocks = gridDim.x;
  RingPosition at;
  for (int index = blockIdx.x; index < num_items;) {
    // Known when this item has been fetched.
    const int next = lane == 0 ? blocks + atomicAdd(params.claims, 1) : 0;
    const WorkTile tile = load_tile(params.tiles + index / params.items_per_tile);
    const int part = index % params.items_per_tile, n = rows_of_instruction(tile.num_rows), units = n / kRowUnit;
    const int bytes_of_tile = tile_bytes(tile.shared ? params.shared_format : params.routed_format);
    int groups = 0;
#pragma unroll
    for (int g = 0; g < ManyRows::kGroups; ++g) groups += row_tile_of<kGateUp>(part, g) < params.row_tiles;
    const uint32_t bytes = n * 128 + groups * bytes_of_tile;
    const int row_tile = row_tile_of<kGateUp>(part, lane % ManyRows::kGroups);
    const bool weights = lane < ManyRows::kGroups && row_tile < params.row_tiles;
    const std::byte* from = matrix_of<kGateUp>(tile.expert, lane).tiles +
                            static_cast<int64_t>(row_tile) * params.num_k_tiles * bytes_of_tile;
    const bool rows = lane >= 8 && lane < 8 + kMaps && (units >> bit & 1) != 0;
    const int row = (units >> (bit + 1) << (bit + 1)) * kRowUnit;  // after the larger boxes
    const int map_row = tile.first_row - (tile.shared ? params.shared_first : 0) + row;
    const CUtensorMap* map = &(tile.shared ? params.shared_rows : params.routed_rows)[min(bit, kMaps - 1)];
    const uint32_t to = weights ? n * 128 + lane * bytes_of_tile : row * 128;
    for (int k = 0; k < params.num_k_tiles; ++k) {
      const uint32_t barrier = ring.full(at.stage), stage = stages + at.stage * ManyRows::kStageBytes;
      barrier_wait(ring.empty(at.stage), at.use ^ 1);
      if (lane == 0) {
        if (k == 0) ring.items[at.stage] = index;
        barrier_expect(barrier, bytes);
      }
      __syncwarp();
      if (weights) {
        copy_bulk(stage + to, from, bytes_of_tile, barrier, policy);
        from += bytes_of_tile;
      } else if (rows) {
        copy_box(stage + to, map, k * kTileCols, map_row, barrier, policy);
      }
      at.advance(ManyRows::kStages);
    }
    index = __shfl_sync(0xFFFFFFFFu, next, 0);
  }
  barrier_wait(ring.empty(at.stage), at.use ^ 1);
  if (lane == 0) {
    ring.items[at.stage] = -1;
    barrier_arrive(ring.full(at.stage));
  }
}

// From staged products to rows in memory, by both warpgroups of a gate and its up, or by one. `staging`: the gate's;
// the up's follows.
template <bool kGateUp>
__device__ __forceinline__ void write_rows(const ManyParams& params, const WorkTile& tile, int row_tile,
                                           const std::byte* staging, int thread) {
  constexpr int kThreads = kGateUp ? 256 : 128;
  const int unit = thread % 8, output = row_tile * kTileRows + unit * 8;
#pragma unroll 1
  for (int i = thread / 8; i < (tile.num_rows + 3) / 4 * 4; i += kThreads / 8) {  // by whole warps: four rows each
    const int row = tile.first_row + i;
    uint4 bits = staged(staging, i, unit);
    if constexpr (kGateUp) {
      float gate[8], up[8];
      unpack8(bits, gate);
      unpack8(staged(staging + ManyRows::kStagingBytes, i, unit), up);
      const float weight = !tile.shared && i < tile.num_rows ? __ldcg(params.row_weight + row) : 1.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[j] = activate(gate[j], up[j], weight, params.limit);
      if (params.quantise) fake_quantise8<E4m3Group32>(gate);
      bits = pack8(gate);
    }
    if (i < tile.num_rows && output < params.num_outputs) {
      *reinterpret_cast<uint4*>(params.out + int64_t{row} * params.num_outputs + output) = bits;
    }
  }
}

template <bool kGateUp>
__device__ __forceinline__ void consume(const ManyParams& params, const ManyRing& ring, std::byte* staging) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  // Who read the staging together.
  const int first_group = kGateUp ? group / 2 * 2 : group, barrier = 1 + first_group, threads = kGateUp ? 256 : 128;
  wait_for_kernel_before();
  let_next_kernel_start();
  RingPosition at;
  while (true) {
    barrier_wait(ring.full(at.stage), at.use);
    const int index = ring.items[at.stage];
    if (index < 0) break;
    const WorkTile tile = load_tile(params.tiles + index / params.items_per_tile);
    const int row_tile = row_tile_of<kGateUp>(index % params.items_per_tile, group);
    if (row_tile >= params.row_tiles) {
      skip_many(ring, at, params.num_k_tiles);
      continue;
    }
    const int n = rows_of_instruction(tile.num_rows);
    const ExpertMatrix matrix = matrix_of<kGateUp>(tile.expert, group);
    const WeightFormat format = tile.shared ? params.shared_format : params.routed_format;
    float d[ManyRows::kMost / 2];
#pragma unroll
    for (float& x : d) x = 0;
    multiply_many(d, n, format == WeightFormat::kMxfp4, ring.stages + n * 128 + group * tile_bytes(format), ring, at,
                  params.num_k_tiles, thread, matrix.exponent);
    sync_threads(barrier, threads);  // the item before has been read
    stage_rounded(shared_address(staging) + group * ManyRows::kStagingBytes, d, tile.num_rows, matrix.scale, thread);
    sync_threads(barrier, threads);
    write_rows<kGateUp>(params, tile, row_tile, staging + first_group * ManyRows::kStagingBytes,
                        kGateUp ? threadIdx.x % 256 : thread);
  }
}

template <bool kGateUp>
__global__ void __launch_bounds__(ManyRows::kThreads, 1) many_rows_kernel(const __grid_constant__ ManyParams params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  std::byte* const staging = shared + ManyRows::kStages * ManyRows::kStageBytes;
  std::byte* const barriers = staging + ManyRows::kGroups * ManyRows::kStagingBytes;
  const ManyRing ring{shared, shared_address(barriers), reinterpret_cast<int*>(barriers + 16 * ManyRows::kStages)};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  // Together what 640 threads of 96 registers have.
  if (threadIdx.x >= ManyRows::kConsumers) {
    give_registers<32>();
    if (threadIdx.x < ManyRows::kConsumers + 32) produce<kGateUp>(params, ring);
  } else {
    take_registers<112>();
    consume<kGateUp>(params, ring, staging);
  }
#else
  __trap();
#endif
}

// --- host ----------------------------------------------------------------------------------------------------------

void set_maps(CUtensorMap (&maps)[kMaps], const std::byte* data, int64_t rows, int64_t cols, int64_t stride) {
  for (int i = 0; i < kMaps; ++i) maps[i] = token_map(data, rows, cols, stride, kRowUnit << i);
}

template <bool kGateUp>
void launch_many(CudaStream& stream, const PlanShape& shape, ManyParams& params) {
  auto* kernel = many_rows_kernel<kGateUp>;
  const int row_tiles_of_item = ManyRows::kGroups / (kGateUp ? 2 : 1);
  params.items_per_tile = (params.row_tiles + row_tiles_of_item - 1) / row_tiles_of_item;
  DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ManyRows::kSharedBytes));
  const int64_t most = int64_t{shape.most_tiles()} * params.items_per_tile;
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(std::min<int64_t>(most, stream.num_sms()))),
         ManyRows::kThreads, ManyRows::kSharedBytes, kernel, params);
}

}  // namespace

int most_rows_of_item(WeightFormat format) {
  const int fit = (ManyRows::kStageBytes - ManyRows::kGroups * tile_bytes(format)) / 128 / kRowUnit * kRowUnit;
  return std::min(ManyRows::kMost, fit);
}

void multiply_gate_up_many(CudaStream& stream, const PlanShape& shape, const PreparedExperts& bank,
                           const ops::ExpertsArgs& args, const ExpertsPlan& plan, const ExpertsMemory& memory) {
  ManyParams p;
  set_product(p, bank, plan, bank.inner, bank.hidden);
  set_activation(p, shape, plan, args);
  set_maps(p.shared_rows, args.in.data, args.in.rows, bank.hidden, args.in.stride);
  set_maps(p.routed_rows, memory.in_rows, shape.num_rows(), bank.hidden, bank.hidden);
  p.out = reinterpret_cast<__nv_bfloat16*>(memory.activated);
  p.num_outputs = bank.inner;
  launch_many<true>(stream, shape, p);
}

void multiply_down_many(CudaStream& stream, const PlanShape& shape, const PreparedExperts& bank,
                        const ExpertsPlan& plan, const ExpertsMemory& memory) {
  ManyParams p;
  set_product(p, bank, plan, bank.hidden, bank.inner);
  set_maps(p.shared_rows, memory.activated, shape.num_rows() + shape.num_tokens, bank.inner, bank.inner);
  std::copy(std::begin(p.shared_rows), std::end(p.shared_rows), p.routed_rows);
  p.out = reinterpret_cast<__nv_bfloat16*>(memory.out_rows);
  p.num_outputs = bank.hidden;
  launch_many<false>(stream, shape, p);
}

}  // namespace deepinfer::cuda
