// Attention of few tokens at 64 heads of 512 channels: eight multiprocessors a token, the bits of attention_tiled.cu.
//
// Floor: the latency of the chain index, block, row, scores, weights, sum. Of 640 keys a block of the cluster converts
// 80 whole rows and has their scores; of the sum it has 64 channels, for which it converts that part of all rows.
// Between the two every block sends the largest scores of its keys to all, then their weights: few numbers straight
// into the others' shared memory, the weights through device memory by one copy that reaches all. Keys, sums over
// columns and sums over keys go in the same order through the same instructions as in one block a token, whose scores
// and sums only are wider.
#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/attention_steps.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kCluster = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kPieceKeys = 16;  // keys go to blocks of the cluster by fives of these
constexpr int kPieces = kMaxKeys / kPieceKeys;
constexpr int kOwnPieces = kPieces / kCluster;
constexpr int kOwnKeys = kMaxKeys / kCluster;
constexpr int kOwnTileBytes = kOwnKeys * 128;
constexpr int kMaxBlocks = kMaxKeys / kKeysPerBlock;
constexpr int kPieceBytes = kHeads * kPieceKeys * 2;  // of weights
constexpr int kValueWarps = kWarps - 4;               // that convert values; the first four have scores to do
constexpr int kQueryRead = 1, kWeightsWritten = 2;    // named barrier

struct Shared {
  std::byte q_then_values[kMaxKeys * 128];      // 8 tiles of 64 heads; one tile of all keys
  std::byte keys_then_weights[kMaxKeys * 128];  // 8 tiles of the own keys; a piece after the other, 64 heads each
  float largest[kPieces][kHeads];               // score
  float sums[kPieces][kHeads];                  // of weights
  float decay[kMaxBlocks][kHeads];
  float factor[kHeads];
  uint64_t weights_there;  // those of all blocks
  const std::byte* rows[kMaxKeys];
};

// A load that is not put off until its first use.
template <typename T>
__device__ __forceinline__ T load_now(const T* p) {
  T x;
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(p));
  } else {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));
  }
  return x;
}

// The places of all keys; false: a padding row. Three loads deep: what the token is, its blocks, its rows.
__device__ bool list_rows(const AttentionParams& p, int token, int t, KeyList& keys, const std::byte** rows) {
  static_assert(kThreads >= kMaxSelected);
  const int64_t position = load_now(p.positions + token);
  const int64_t first = p.first_window_row == nullptr ? 0 : load_now(p.first_window_row + token);
  const auto* window =
      reinterpret_cast<const std::byte* const*>(load_now(reinterpret_cast<const int64_t*>(p.window.blocks + token)));
  const std::byte* const* compressed = nullptr;
  int num_selected = 0, row = 0;
  if (p.compressed.blocks != nullptr) {
    num_selected = load_now(p.num_selected + token);
    compressed = reinterpret_cast<const std::byte* const*>(
        load_now(reinterpret_cast<const int64_t*>(p.compressed.blocks + token)));
    if (t < p.num_selectable) row = load_now(p.selected + token * p.selected_stride + t);
  }
  if (position < 0) return false;
  keys = make_key_list(position, first, num_selected, p.window_size);
  if (t < num_selected) {
    const int mask = (1 << p.compressed.block_shift) - 1;
    rows[keys.num_window + t] =
        compressed[row >> p.compressed.block_shift] + p.compressed.offset + (row & mask) * p.compressed_row_bytes;
  }
  if (t < keys.num_window) {
    const int64_t window_row = keys.first_window_row + t;
    const int mask = (1 << p.window.block_shift) - 1;
    rows[t] = window[window_row >> p.window.block_shift] + p.window.offset + (window_row & mask) * p.window_row_bytes;
  }
  return true;
}

// 32 columns of a row on their way through a thread.
struct Item {
  uint4 x, y;
  uint32_t scale;
  RowKind kind;

  // The same loads for both kinds, from other places: no load is waited for at the end of a branch.
  __device__ __forceinline__ void load(RowKind row_kind, const std::byte* row, int chunk) {
    kind = row_kind;
    const bool wide = kind == RowKind::kE4m3;
    const std::byte* codes = row + chunk * (wide ? 32 : 16);
    const std::byte* scales = row + (wide ? kDim + (chunk & ~1) : kDim / 2 + chunk * 2);
    x = y = {};
    scale = 0;
    if (kind == RowKind::kNone) return;
    x = load_row16(codes);
    scale = __ldg(reinterpret_cast<const uint16_t*>(scales));
    if (wide) y = load_row16(codes + 16);
  }
  __device__ __forceinline__ void convert(uint32_t tile, int row, int unit, int chunk) const {
    uint4 a = {}, b = {}, c = {}, d = {};
    if (kind == RowKind::kE4m3) {
      const uint32_t factor = (scale >> (chunk & 1) * 8 & 0xFF) * 0x00800080u;
      a = E4m3Half::convert8(x.x, x.y, factor);
      b = E4m3Half::convert8(x.z, x.w, factor);
      c = E4m3Half::convert8(y.x, y.y, factor);
      d = E4m3Half::convert8(y.z, y.w, factor);
    } else if (kind == RowKind::kE2m1) {
      uint32_t first, second;
      E2m1Half::factors(scale, first, second);
      a = E2m1Half::convert8(x.x, first);
      b = E2m1Half::convert8(x.y, first);
      c = E2m1Half::convert8(x.z, second);
      d = E2m1Half::convert8(x.w, second);
    }
    store_unit(unit_address(tile, row, unit), a);
    store_unit(unit_address(tile, row, unit + 1), b);
    store_unit(unit_address(tile, row, unit + 2), c);
    store_unit(unit_address(tile, row, unit + 3), d);
  }
};

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in another block of the cluster.
__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void send(uint32_t to, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

// Where a piece's 8 keys of a head's weights lie. Rows of 32 bytes: units alternate so that eight rows meet all banks.
__device__ __forceinline__ uint32_t weights_address(uint32_t weights, int piece, int head, int half) {
  return weights + piece * kPieceBytes + head * 32 + ((half ^ (head >> 2 & 1)) << 4);
}

// The scores of the own keys: what the largest of each piece and the weights come from.
__device__ void own_scores(Shared& s, float (&w)[40]) {
  const uint32_t q = shared_address(s.q_then_values), keys = shared_address(s.keys_then_weights);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    mma_scores(w, columns_descriptor(q + i / 4 * kTileBytes) + i % 4 * 2,
               columns_descriptor(keys + i / 4 * kOwnTileBytes) + i % 4 * 2, i > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(w);
}

__device__ void send_largest(Shared& s, const float (&w)[40], int rank, const int (&heads)[2], int c) {
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = 8 * i + 2 * r;
      float most = fmaxf(fmaxf(w[at], w[at + 1]), fmaxf(w[at + 4], w[at + 5]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const uint32_t place = shared_address(&s.largest[rank * kOwnPieces + i][heads[r]]);
      send(in_block(place, 2 * c), most);
      send(in_block(place, 2 * c + 1), most);
    }
  }
}

__device__ __forceinline__ float block_largest(const Shared& s, int block, int head) {
  return fmaxf(fmaxf(s.largest[4 * block][head], s.largest[4 * block + 1][head]),
               fmaxf(s.largest[4 * block + 2][head], s.largest[4 * block + 3][head]));
}

__device__ void send_weights(Shared& s, float (&w)[40], int rank, const int (&heads)[2], int c, std::byte* scratch) {
  // The own keys belong to two blocks of 64, from first_block on.
  const int first_piece = rank * kOwnPieces, first_block = first_piece / 4;
  float running[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = kNoScore;
    for (int block = 0; block <= first_block; ++block) most = fmaxf(most, block_largest(s, block, heads[r]));
    running[0][r] = most;
    running[1][r] = fmaxf(most, block_largest(s, first_block + 1, heads[r]));
  }
  const uint32_t weights = shared_address(s.keys_then_weights);
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    const int piece = first_piece + i;
    uint32_t words[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = piece / 4 == first_block ? running[0][r] : running[1][r];
      float e[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) e[k] = exp2_fast((w[8 * i + 2 * r + k / 2 * 4 + k % 2] - most) * kScoreScale);
      words[r] = pack_bf16(e[0], e[1]);
      words[2 + r] = pack_bf16(e[2], e[3]);
      float sum = thread_sum(e[0], e[1], e[2], e[3]);
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const uint32_t place = shared_address(&s.sums[piece][heads[r]]);
      send(in_block(place, 2 * c), sum);
      send(in_block(place, 2 * c + 1), sum);
    }
    // Thread c of the quad: half c / 2 of head c % 2.
    const uint4 unit = transpose_quad(words[0], words[1], words[2], words[3], c);
    *reinterpret_cast<uint4*>(scratch + weights_address(0, piece, heads[0] + c % 2 * 8, c / 2)) = unit;
  }
  // From device memory one copy reaches all: eight times the bytes would take the stores' way far longer.
  __threadfence();
  asm volatile("fence.proxy.async;" ::: "memory");
  sync_threads(kWeightsWritten, 128);
  if (threadIdx.x == 0) {
    constexpr uint32_t kBytes = kOwnPieces * kPieceBytes;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(weights + rank * kBytes),
        "l"(scratch + rank * kBytes), "r"(kBytes), "r"(shared_address(&s.weights_there)),
        "h"(static_cast<uint16_t>((1 << kCluster) - 1))
        : "memory");
  }
}

// Decays of all blocks; later, the factor of the result. One thread a head.
__device__ void note_decays(const AttentionParams& p, Shared& s, int num_blocks, int head, float& largest) {
  largest = kNoScore;
  for (int block = 0; block < num_blocks; ++block) {
    const float most = fmaxf(largest, block_largest(s, block, head));
    s.decay[block][head] = exp2_fast((largest - most) * kScoreScale);
    largest = most;
  }
}
__device__ void note_factor(const AttentionParams& p, Shared& s, int num_blocks, int head, float largest) {
  float total = 0;
#pragma unroll
  for (int block = 0; block < kMaxBlocks; ++block) {
    if (block >= num_blocks) break;
    const float sum = (s.sums[4 * block][head] + s.sums[4 * block + 1][head]) +
                      (s.sums[4 * block + 2][head] + s.sums[4 * block + 3][head]);
    total = add_block(total, s.decay[block][head], sum);
  }
  s.factor[head] = head_factor(total, largest, p.sink[head]);
}

__device__ __forceinline__ void load_block_weights(uint32_t (&a)[4][4], const Shared& s, int block, int warp,
                                                   int lane) {
  const int head = 16 * (warp % 4) + lane % 16;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[step][0]), "=r"(a[step][1]), "=r"(a[step][2]), "=r"(a[step][3])
                 : "r"(weights_address(shared_address(s.keys_then_weights), 4 * block + step, head, lane / 16))
                 : "memory");
  }
}

// The 16 channels of a warpgroup.
__device__ void sum_values(const Shared& s, float (&sums)[8], int num_blocks, int warp, int lane,
                           const int (&heads)[2]) {
  const uint64_t values = rows_descriptor(shared_address(s.q_then_values)) + warp / 4 * 2;
  uint32_t weights[4][4], next[4][4];
  load_block_weights(weights, s, 0, warp, lane);
  float decay0 = 0, decay1 = 0;
  for (int block = 0; block < num_blocks; ++block) {
    if (block > 0) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
        sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
      }
    }
    wgmma_hold(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      mma_values(sums, weights[step], values + (4 * block + step) * 128, block + step > 0);
    }
    wgmma_commit();
    const int after = min(block + 1, num_blocks - 1);
    load_block_weights(next, s, after, warp, lane);
    decay0 = s.decay[after][heads[0]];
    decay1 = s.decay[after][heads[1]];
    wgmma_wait<0>();
    wgmma_hold(sums);
#pragma unroll
    for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = next[i / 4][i % 4];
  }
}

template <RowKind kCompressed>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    cluster_kernel(const __grid_constant__ AttentionParams p, std::byte* scratch) {
#ifdef DI_SM90A
  extern __shared__ std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023));
  const int t = threadIdx.x, lane = t % 32, warp = __shfl_sync(~0u, t / 32, 0), c = lane % 4;
  const int rank = blockIdx.x % kCluster, token = blockIdx.x / kCluster;
  wait_for_kernel_before();
  let_next_kernel_start();
  if (t == 0) {
    barrier_init(shared_address(&s.weights_there), 1);
    fence_barrier_init();
    barrier_expect(shared_address(&s.weights_there), kPieces * kPieceBytes);
  }
  KeyList keys;
  if (!list_rows(p, token, t, keys, s.rows)) return;  // all blocks of the cluster alike
  cluster_arrive();                                   // nobody writes into another block before that has started
  const int num_blocks = (keys.num_keys + kKeysPerBlock - 1) / kKeysPerBlock;
  const std::byte* q = p.q + (token * p.q_stride + t / 8 * kDim) * 2 + t % 8 * 16;
  const uint32_t q_tiles = shared_address(s.q_then_values);
#pragma unroll
  for (int tile = 0; tile < 8; ++tile)
    copy_unit(unit_address(q_tiles + tile * kTileBytes, t / 8, t % 8), q + tile * 128);
  __syncthreads();

  Item own[3], values[4];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int group = i * kWarps + warp, key = rank * kOwnKeys + group % 10 * 8 + lane % 8;
    const RowKind kind = group < 40 ? row_kind(keys, key, kCompressed) : RowKind::kNone;
    own[i].load(kind, kind == RowKind::kNone ? nullptr : s.rows[key], group / 10 * 4 + lane / 8);
  }
  const int value_row = lane % 8 + lane / 16 * 8, value_chunk = lane / 8 % 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int group = i * kValueWarps + warp - 4, key = group * 16 + value_row;
    const RowKind kind = warp >= 4 && group < 40 ? row_kind(keys, key, kCompressed) : RowKind::kNone;
    values[i].load(kind, kind == RowKind::kNone ? nullptr : s.rows[key], rank * 2 + value_chunk);
  }
  float cosine[4] = {}, sine[4] = {};
  if (p.num_pairs != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cosine[i] = p.cosine[token * p.cosine_stride + t % 8 * 4 + i];
      sine[i] = p.sine[token * p.sine_stride + t % 8 * 4 + i];
    }
  }
  wait_for_copies();
  if (p.num_pairs != 0) rotate_unit(unit_address(q_tiles + 7 * kTileBytes, t / 8, t % 8), cosine, sine);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int group = i * kWarps + warp, chunk = group / 10 * 4 + lane / 8;
    if (group >= 40) break;
    own[i].convert(shared_address(s.keys_then_weights) + chunk / 2 * kOwnTileBytes, group % 10 * 8 + lane % 8,
                   chunk % 2 * 4, chunk);
  }
  fence_async_proxy();
  __syncthreads();

  const int heads[2] = {16 * (warp % 4) + lane / 4, 16 * (warp % 4) + lane / 4 + 8};
  const int noting = t - 4 * 32;  // the head whose decays the thread notes
  float largest = kNoScore;
  if (warp < 4) {
    float w[40];
    own_scores(s, w);
    asm volatile("bar.arrive %0, %1;" ::"n"(kQueryRead), "n"(kThreads) : "memory");
#pragma unroll
    for (int j = 0; j < 10; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (rank * kOwnKeys + 8 * j + 2 * c + e % 2 >= keys.num_keys) w[4 * j + e] = -INFINITY;
      }
    }
    cluster_wait();  // all blocks have started
    send_largest(s, w, rank, heads, c);
    cluster_arrive();
    cluster_wait();  // all blocks have read their keys and sent their largest scores
    send_weights(s, w, rank, heads, c, scratch + token * int64_t{kPieces * kPieceBytes});
    cluster_arrive();
  } else {
    sync_threads(kQueryRead, kThreads);
    cluster_wait();
    cluster_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = i * kValueWarps + warp - 4;
      if (group < 40) values[i].convert(q_tiles, group * 16 + value_row, value_chunk * 4, value_chunk);
    }
    fence_async_proxy();
    cluster_wait();
    if (noting < kHeads) note_decays(p, s, num_blocks, noting, largest);
    cluster_arrive();
  }
  cluster_wait();  // all weights are everywhere, and the own values are
  barrier_wait(shared_address(&s.weights_there), 0);
  if (noting >= 0 && noting < kHeads) note_factor(p, s, num_blocks, noting, largest);
  float sums[8];
  sum_values(s, sums, num_blocks, warp, lane, heads);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float factor = s.factor[heads[r]];
    std::byte* out = p.out + (token * p.out_stride + heads[r] * kDim + rank * 64 + warp / 4 * 16) * 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t pair = pack_bf16(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor);
      if (rank == kCluster - 1 && p.num_pairs != 0) {
        const int at = warp / 4 * 8 + 4 * j + c;
        pair = rotate(pair, p.cosine[token * p.cosine_stride + at], -p.sine[token * p.sine_stride + at]);
      }
      reinterpret_cast<uint32_t*>(out)[4 * j + c] = pair;
    }
  }
#else
  __trap();
#endif
}

template <RowKind kCompressed>
void launch_cluster(Stream& stream, const AttentionParams& p) {
  constexpr size_t kBytes = sizeof(Shared) + 1024;
  static const bool once = [] {
    DI_CUDA_CHECK(
        cudaFuncSetAttribute(cluster_kernel<kCompressed>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)once;
  void* scratch = cuda_stream(stream).scratch(p.num_tokens * int64_t{kPieces * kPieceBytes});
  launch(stream, Start::kEarly, dim3(p.num_tokens * kCluster), kThreads, kBytes, cluster_kernel<kCompressed>, p,
         static_cast<std::byte*>(scratch));
}

}  // namespace

void attention_cluster(Stream& stream, const ops::AttentionArgs& args) {
  const AttentionParams p = params_of(args);
  if (args.compressed.blocks != nullptr && args.compressed.type == ops::RowType::kE4m3Group32) {
    launch_cluster<RowKind::kE4m3>(stream, p);
  } else {
    launch_cluster<RowKind::kE2m1>(stream, p);
  }
}

}  // namespace deepinfer::cuda
