// The products of the experts on the tensor cores: one persistent launch for w1 and w3 of all of them, one for w2.
//
// Floor of both: max(bytes of the experts that have rows / memory bandwidth, flops of the rows / BF16 rate).
//
// An item is a WorkTile times 64 rows of w1 and the same 64 of w3 (or 128 rows of w2); a cluster takes neighbouring
// rows of matrices and shares the tokens. Who computes an item, and with how many neighbours, has no part in its bits.
#include "backends/cuda/experts_gemm.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/experts_epilogue.cuh"
#include "backends/cuda/experts_mainloop.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/tensor_map.h"

namespace deepinfer::cuda {
namespace {

constexpr int kMaps = 128 / kRowUnit;

struct Params {
  // Box [i] has a block's part of (i + 1) * kRowUnit rows; with rows fetched one by one there is [0] alone.
  CUtensorMap routed_tokens[kMaps], shared_tokens[kMaps];
  const int* num_tiles;
  const WorkTile* tiles;
  const int32_t* row_token;  // rows of `routed_tokens` that the routed rows are, or null: in order
  const float* row_weight;   // null: w2
  int shared_first;          // the row that is row 0 of `shared_tokens`
  WeightFormat routed_format, shared_format;
  int num_k_tiles;
  int row_tiles;  // of 64, of a matrix
  int clusters_per_tile;
  RowsOut out;
  float limit;
  bool quantise;
  const std::byte* prefetch[2];  // matrices of so many bytes that every step reads
  int64_t prefetch_bytes;
};

template <class Kind>
constexpr int kSharedBytes =
    Kind::kStages* Kind::kStageBytes + 2 * Kind::kStagedTokens* kStagedStride * 4 + 16 * Kind::kStages;

// The item that cluster `cluster` of `clusters` takes in round `round`: back and forth, so that who got the longer
// items first gets the last ones last.
__device__ __forceinline__ int item_of(int round, int cluster, int clusters) {
  return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
}

template <bool kGateUp>
struct ItemMatrices {
  const std::byte* tiles[2];  // of the two warpgroups; null: no rows
};
template <bool kGateUp>
__device__ __forceinline__ ItemMatrices<kGateUp> matrices_of(const WorkTile& tile, int block, int row_tiles,
                                                             int64_t row_tile_bytes) {
  ItemMatrices<kGateUp> m;
  if constexpr (kGateUp) {
    const bool has = block < row_tiles;
    m.tiles[0] = has ? tile.expert.w1.tiles + block * row_tile_bytes : nullptr;
    m.tiles[1] = has ? tile.expert.w3.tiles + block * row_tile_bytes : nullptr;
  } else {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      m.tiles[g] = 2 * block + g < row_tiles ? tile.expert.w2.tiles + (2 * block + g) * row_tile_bytes : nullptr;
    }
  }
  return m;
}

__device__ __forceinline__ WorkTile load_tile(const WorkTile* tile) {
  WorkTile result;
  auto* to = reinterpret_cast<uint4*>(&result);
  const auto* from = reinterpret_cast<const uint4*>(tile);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(WorkTile) / 16); ++i) to[i] = __ldcg(from + i);
  return result;
}

// What the producer knows of an item.
template <class Kind, bool kGateUp>
struct Source {
  ItemMatrices<kGateUp> matrices;
  const CUtensorMap* map;
  int n, stage_tiles, bytes_of_tile, groups;
  int first_row;  // of the map
  int own_row;    // the row that this lane fetches, if it fetches one
  int num_rows;   // that are fetched

  __device__ __forceinline__ Source(const Params& params, int index, int rank, int lane) {
    const WorkTile tile = load_tile(params.tiles + index / params.clusters_per_tile);
    const WeightFormat format = tile.shared ? params.shared_format : params.routed_format;
    n = instruction_rows<Kind>(tile.num_rows), stage_tiles = cuda::stage_tiles<Kind>(format, n);
    bytes_of_tile = tile_bytes(format);
    matrices = matrices_of<kGateUp>(tile, index % params.clusters_per_tile * Kind::kCluster + rank, params.row_tiles,
                                    int64_t{params.num_k_tiles} * bytes_of_tile);
    groups = (matrices.tiles[0] != nullptr) + (matrices.tiles[1] != nullptr);
    map = &(tile.shared ? params.shared_tokens : params.routed_tokens)[Kind::kGathers ? 0 : n / kRowUnit - 1];
    first_row = tile.first_row - (tile.shared ? params.shared_first : 0);
    own_row = first_row + lane;
    num_rows = Kind::kGathers ? tile.num_rows : n;
    if (Kind::kGathers && params.row_token != nullptr && !tile.shared && lane < num_rows) {
      own_row = __ldcg(params.row_token + own_row);
    }
  }
  // By one lane.
  __device__ __forceinline__ void copy_weights(uint32_t stage, uint32_t barrier, int k, int count,
                                               uint64_t policy) const {
    barrier_expect(barrier, count * (num_rows * 128 + groups * bytes_of_tile));
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (matrices.tiles[g] == nullptr) continue;
      copy_bulk(stage + stage_tiles * (n * 128 + g * bytes_of_tile),
                matrices.tiles[g] + static_cast<int64_t>(k) * bytes_of_tile, count * bytes_of_tile, barrier, policy);
    }
  }
  // By a warp: rows of tokens one a lane, or this block's part of them by one lane for the whole cluster.
  __device__ __forceinline__ void copy_tokens(uint32_t stage, uint32_t barrier, int k, int count, uint64_t policy,
                                              int rank, int lane) const {
    for (int j = 0; j < count; ++j) {
      const int x = (k + j) * kTileCols;
      if constexpr (Kind::kGathers) {
        if (lane < num_rows) copy_box(stage + (j * n + lane) * 128, map, x, own_row, barrier, policy);
      } else if (lane == 0) {
        const int row = rank * (n / Kind::kCluster);
        copy_box_to_cluster(stage + (j * n + row) * 128, map, x, first_row + row, barrier, policy,
                            (1u << Kind::kCluster) - 1);
      }
    }
  }
};

// While the plan is being made: the shared expert's matrices on their way to the L2.
__device__ __forceinline__ void prefetch_shared(const Params& params, int lane) {
  constexpr int64_t kPiece = 8192;
  const int64_t pieces = params.prefetch_bytes / kPiece;
  for (int64_t i = blockIdx.x * 32 + lane; i < 2 * pieces; i += gridDim.x * 32) {
    prefetch_bulk(params.prefetch[i % 2] + i / 2 * kPiece, kPiece);
  }
}

// All stages of this block's items, in order. One warp. In the second product the weights of the first stages are
// fetched before the first product is complete: the plan is, or this kernel would not have started.
template <class Kind, bool kGateUp>
__device__ __forceinline__ void produce(const Params& params, const ExpertsRing<Kind>& ring) {
  constexpr int kCluster = Kind::kCluster;
  const int lane = threadIdx.x % 32;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  const uint64_t once = evict_first(), keep = Kind::kGathers ? evict_last() : evict_normal();
  const uint32_t stages = shared_address(ring.stages);
  const int clusters = gridDim.x / kCluster, cluster = blockIdx.x / kCluster;
  if constexpr (kGateUp) prefetch_shared(params, lane);
  int early = 0;  // stages whose weights are on their way
  for (int pass = kGateUp ? 1 : 0; pass < 2; ++pass) {
    if (pass == 1) {
      wait_for_kernel_before();
      let_next_kernel_start();
    }
    const int num_items = __ldcg(params.num_tiles) * params.clusters_per_tile;
    RingPosition at;
    int used = 0;
    for (int round = 0; round * clusters < num_items && (pass == 1 || used < Kind::kStages); ++round) {
      const int index = item_of(round, cluster, clusters);
      if (index >= num_items) continue;
      const Source<Kind, kGateUp> source(params, index, rank, lane);
      for (int k = 0; k < params.num_k_tiles; k += source.stage_tiles) {
        if (pass == 0 && used == Kind::kStages) break;
        const int count = min(source.stage_tiles, params.num_k_tiles - k);
        const uint32_t barrier = ring.full(at.stage), stage = stages + at.stage * Kind::kStageBytes;
        if (pass == 1) barrier_wait(ring.empty(at.stage), at.use ^ 1);
        if (used >= early && lane == 0) source.copy_weights(stage, barrier, k, count, once);
        __syncwarp();
        if (pass == 1) source.copy_tokens(stage, barrier, k, count, keep, rank, lane);
        ++used;
        at.advance(Kind::kStages);
      }
    }
    early = pass == 0 ? used : early;
  }
}

template <class Kind, bool kGateUp, WeightFormat kFormat>
__device__ __forceinline__ void run_item(const Params& params, const WorkTile& tile, int block,
                                         const ExpertsRing<Kind>& ring, RingPosition& at, float* staging,
                                         int consumer) {
  constexpr int kTokens = Kind::kStagedTokens, N = Kind::kMost;
  const int group = consumer / 128, thread = consumer % 128, n = instruction_rows<Kind>(tile.num_rows);
  const int row_tile = kGateUp ? block : 2 * block + group;
  if (row_tile >= params.row_tiles) {
    skip_stages(ring, at, params.num_k_tiles, stage_tiles<Kind>(kFormat, n));
    return;
  }
  const ExpertMatrix& matrix = !kGateUp ? tile.expert.w2 : group == 0 ? tile.expert.w1 : tile.expert.w3;
  const int exponent = matrix.exponent;
  const float scale = matrix.scale;
  float d[N / 2];
#pragma unroll
  for (float& x : d) x = 0;
  if constexpr (Kind::kGathers) {
    multiply_stages<Kind, kFormat, N>(d, ring, at, params.num_k_tiles, group, thread, exponent);
  } else {
    multiply_stages<Kind, kFormat>(d, n, ring, at, params.num_k_tiles, group, thread, exponent);
  }
  if constexpr (kGateUp) {
    write_activation<kTokens, N>(params.out, d, scale, tile.first_row, tile.num_rows, row_tile * kTileRows,
                                 tile.shared ? nullptr : params.row_weight, params.limit, params.quantise, staging,
                                 consumer);
  } else {
    write_products<kTokens, N>(params.out, d, scale, tile.first_row, tile.num_rows, row_tile * kTileRows,
                               staging + group * kTokens * kStagedStride, 2 + group, thread);
  }
}

template <class Kind, bool kGateUp>
__device__ __forceinline__ void consume(const Params& params, const ExpertsRing<Kind>& ring, float* staging) {
  constexpr int kCluster = Kind::kCluster;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  wait_for_kernel_before();
  let_next_kernel_start();
  const int num_items = __ldcg(params.num_tiles) * params.clusters_per_tile;
  const int clusters = gridDim.x / kCluster, cluster = blockIdx.x / kCluster;
  RingPosition at;
  for (int round = 0; round * clusters < num_items; ++round) {
    const int index = item_of(round, cluster, clusters);
    if (index >= num_items) continue;
    const WorkTile tile = load_tile(params.tiles + index / params.clusters_per_tile);
    const int block = index % params.clusters_per_tile * kCluster + rank;
    if ((tile.shared ? params.shared_format : params.routed_format) == WeightFormat::kMxfp4) {
      run_item<Kind, kGateUp, WeightFormat::kMxfp4>(params, tile, block, ring, at, staging, threadIdx.x);
    } else {
      run_item<Kind, kGateUp, WeightFormat::kF8Tile32>(params, tile, block, ring, at, staging, threadIdx.x);
    }
  }
}

template <class Kind, bool kGateUp>
__global__ void __launch_bounds__(Kind::kThreads, Kind::kBlocksPerSm)
    experts_kernel(const __grid_constant__ Params params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  float* staging = reinterpret_cast<float*>(shared + Kind::kStages * Kind::kStageBytes);
  const uint32_t barriers = shared_address(staging + 2 * Kind::kStagedTokens * kStagedStride);
  const ExpertsRing<Kind> ring{shared, barriers};
  if (threadIdx.x == 0) ring.init();
  if (threadIdx.x == 32) prefetch_map(params.routed_tokens), prefetch_map(params.shared_tokens);
  if constexpr (Kind::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
  if (threadIdx.x >= kExpertsConsumers) {
    if constexpr (Kind::kMovesRegisters) give_registers<56>();
    if (threadIdx.x < kExpertsConsumers + 32) {
      produce<Kind, kGateUp>(params, ring);
    }
  } else {
    if constexpr (Kind::kMovesRegisters) take_registers<224>();
    consume<Kind, kGateUp>(params, ring, staging);
  }
  // No block leaves while another may still write to it.
  if constexpr (Kind::kCluster > 1) {
    __syncwarp();
    sync_cluster();
  }
#else
  __trap();
#endif
}

// --- host ----------------------------------------------------------------------------------------------------------

void set_maps(const ExpertsVariant& variant, CUtensorMap (&maps)[kMaps], const std::byte* data, int64_t rows,
              int64_t cols, int64_t stride) {
  for (int i = 0; i < (variant.gathers ? 1 : kMaps); ++i) {
    maps[i] = token_map(data, rows, cols, stride, variant.gathers ? 1 : (i + 1) * kRowUnit / ManyRows::kCluster);
  }
}

template <class Kind, bool kGateUp>
void launch_products(CudaStream& stream, const PlanShape& shape, Params& params) {
  auto* kernel = experts_kernel<Kind, kGateUp>;
  static_assert(kSharedBytes<Kind> <= 227 * 1024 / Kind::kBlocksPerSm - (Kind::kBlocksPerSm - 1) * 512);
  const int rows_of_cluster = Kind::kCluster * (kGateUp ? 1 : 2);
  params.clusters_per_tile = (params.row_tiles + rows_of_cluster - 1) / rows_of_cluster;
  DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Kind>));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(Kind::kCluster), 1, 1};
  cudaLaunchConfig_t config = {};
  const int64_t most = int64_t{shape.most_tiles()} * params.clusters_per_tile;
  const int64_t clusters = std::min<int64_t>(most, stream.num_sms() * Kind::kBlocksPerSm / Kind::kCluster);
  config.gridDim = dim3(static_cast<unsigned>(clusters * Kind::kCluster));
  config.blockDim = dim3(Kind::kThreads);
  config.dynamicSmemBytes = kSharedBytes<Kind>;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = Kind::kCluster > 1 ? 2 : 1;
  DI_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

Params common_params(const PreparedExperts& bank, const ExpertsPlan& plan, int rows, int cols) {
  Params p;
  p.num_tiles = plan.num_tiles;
  p.tiles = plan.tiles;
  p.row_token = nullptr;
  p.row_weight = nullptr;
  p.shared_first = 0;
  p.routed_format = bank.routed_format;
  p.shared_format = bank.shared_format;
  p.num_k_tiles = (cols + kTileCols - 1) / kTileCols;
  p.row_tiles = (rows + kTileRows - 1) / kTileRows;
  p.limit = 0;
  p.quantise = false;
  p.prefetch[0] = p.prefetch[1] = nullptr, p.prefetch_bytes = 0;
  return p;
}

}  // namespace

ExpertsVariant choose_variant(int num_tokens, int top_k, int num_experts) {
  const int64_t rows = int64_t{num_tokens} * top_k, experts = num_experts;
  if (rows <= 20) return {8, true, true};
  if (2 * rows <= 9 * experts) return {8, true, false};
  if (rows <= 12 * experts) return {16, true, false};
  return {ManyRows::kMost, false, false};
}

namespace {

template <bool kGateUp>
void launch_variant(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape, Params& params) {
  if (!variant.gathers) return launch_products<ManyRows, kGateUp>(stream, shape, params);
  if (variant.few_items) return launch_products<FewRows<8, 2>, kGateUp>(stream, shape, params);
  if (variant.tile_rows == 8) return launch_products<FewRows<8, 3>, kGateUp>(stream, shape, params);
  launch_products<FewRows<16, 3>, kGateUp>(stream, shape, params);
}

}  // namespace

void multiply_gate_up(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                      const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                      const ExpertsMemory& memory) {
  Params p = common_params(bank, plan, bank.inner, bank.hidden);
  set_maps(variant, p.shared_tokens, args.in.data, args.in.rows, bank.hidden, args.in.stride);
  if (variant.gathers) {
    p.routed_tokens[0] = p.shared_tokens[0];
  } else {
    set_maps(variant, p.routed_tokens, memory.in_rows, shape.num_rows(), bank.hidden, bank.hidden);
  }
  p.row_token = variant.gathers ? plan.row_token : nullptr;
  p.row_weight = plan.row_weight;
  p.shared_first = shape.num_rows();
  p.out = {reinterpret_cast<__nv_bfloat16*>(memory.activated), bank.inner, bank.inner};
  p.limit = args.swiglu_limit;
  p.quantise = args.quantise;
  p.prefetch[0] = args.bank->shared.w1.data.get(), p.prefetch[1] = args.bank->shared.w3.data.get();
  p.prefetch_bytes = variant.gathers ? args.bank->shared.w1.bytes : 0;
  launch_variant<true>(stream, variant, shape, p);
}

void multiply_down(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                   const PreparedExperts& bank, const ExpertsPlan& plan, const ExpertsMemory& memory) {
  Params p = common_params(bank, plan, bank.hidden, bank.inner);
  set_maps(variant, p.shared_tokens, memory.activated, shape.num_rows() + shape.num_tokens, bank.inner, bank.inner);
  std::copy(std::begin(p.shared_tokens), std::end(p.shared_tokens), p.routed_tokens);
  p.out = {reinterpret_cast<__nv_bfloat16*>(memory.out_rows), bank.hidden, bank.hidden};
  launch_variant<false>(stream, variant, shape, p);
}

}  // namespace deepinfer::cuda
