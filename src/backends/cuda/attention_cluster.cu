// Attention of few tokens at 64 heads of 512 channels: eight multiprocessors a token, the bits of attention_tiled.cu.
//
// Floor: the latency of the chain index, block, row, scores, weights, sum. Of 640 keys a block of the cluster converts
// 80 whole rows and has their scores: one warpgroup multiplies the first columns while the others convert the next. Of
// the sum it has 64 channels, for which it converts that part of all rows. Between the two every block sends the
// largest scores of its keys to all, then their weights: few numbers straight into the others' shared memory, the
// weights through device memory by one copy that reaches all. Keys, sums over columns and sums over keys go in the same
// order through the same instructions as in one block a token, of other widths. Every block counts what comes at
// barriers of its own: barriers of the cluster would wait for all memory.
#include "backends/cuda/attention_cluster_rows.cuh"
#include "backends/cuda/attention_cluster_weights.cuh"
#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kValueItems = 4;  // of a thread

// The 64 channels, by one warpgroup: more would each read all weights.
__device__ void sum_values(const ClusterShared& s, float (&sums)[32], int num_blocks, const int (&heads)[2]) {
  const uint64_t values = rows_descriptor(shared_address(s.q_then_values));
  const uint64_t weights = piece_descriptor(shared_address(s.keys_then_weights));
  float decay0 = 0, decay1 = 0;
  for (int block = 0; block < num_blocks; ++block) {
    if (block > 0) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
        sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
      }
    }
    wgmma_hold(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int piece = 4 * block + step;
      mma_values(sums, weights + piece * (kPieceBytes / 16), values + piece * 128, block + step > 0);
    }
    wgmma_commit();
    const int next = min(block + 1, kMaxBlocks - 1);
    decay0 = s.decay[next][heads[0]], decay1 = s.decay[next][heads[1]];
    wgmma_wait<0>();
    wgmma_hold(sums);
  }
}

// The angles of a thread's pairs of channels, loaded before they are needed. Of the last block of a cluster.
struct OutAngles {
  float cosine[8], sine[8];

  __device__ __forceinline__ OutAngles(const AttentionParams& p, int token, int rank, int c) {
    if (rank != kCluster - 1 || p.num_pairs == 0) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      cosine[j] = p.cosine[token * p.cosine_stride + 4 * j + c];
      sine[j] = -p.sine[token * p.sine_stride + 4 * j + c];
    }
  }
};

template <RowKind kWindow, RowKind kCompressed>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kClusterThreads, 1)
    cluster_kernel(const __grid_constant__ AttentionParams p, std::byte* scratch) {
#ifdef DI_SM90A
  extern __shared__ std::byte memory[];
  ClusterShared& s = *reinterpret_cast<ClusterShared*>(memory + (-shared_address(memory) & 1023));
  const int t = threadIdx.x, lane = t % 32, warp = __shfl_sync(~0u, t / 32, 0), c = lane % 4;
  const int rank = blockIdx.x % kCluster, token = blockIdx.x / kCluster;
  if (t == 0) {
    for (uint64_t* barrier : {&s.largest_there, &s.sums_there, &s.weights_there}) {
      barrier_init(shared_address(barrier), 1);
    }
    fence_barrier_init();
    barrier_expect(shared_address(&s.largest_there), kLargestBytes);
    barrier_expect(shared_address(&s.sums_there), kSumsBytes);
    barrier_expect(shared_address(&s.weights_there), kPieces * kPieceBytes);
  }
  // Has the token's first inputs near, and with them the parameters: the kernel before may still write them.
  if (t < 4) {
    const void* first[4] = {p.positions + token, p.window.blocks + token, p.q + token * p.q_stride * 2,
                            p.compressed.blocks + token};
    const void* at = t == 0                                     ? first[0]
                     : t == 1                                   ? first[1]
                     : t == 2 || p.compressed.blocks == nullptr ? first[2]
                                                                : first[3];
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  const RowLister lister(p, token, t);
  const std::byte* q = p.q + (token * p.q_stride + t / 8 * kDim) * 2 + t % 8 * 16;
  const uint32_t q_tiles = shared_address(s.q_then_values);
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    copy_unit(unit_address(q_tiles + tile * kTileBytes, t / 8, t % 8), q + tile * 128);
  }
  float cosine[4] = {}, sine[4] = {};
  if (p.num_pairs != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cosine[i] = p.cosine[token * p.cosine_stride + t % 8 * 4 + i];
      sine[i] = p.sine[token * p.sine_stride + t % 8 * 4 + i];
    }
  }
  KeyList keys;
  if (!lister.list(p, t, keys, s.rows)) {  // all blocks of the cluster alike
    wait_for_copies();
    return;
  }
  arrive_started();  // nobody writes into another block before that has started
  const int num_blocks = (keys.num_keys + kKeysPerBlock - 1) / kKeysPerBlock;
  __syncthreads();

  const int heads[2] = {16 * (warp % 4) + lane / 4, 16 * (warp % 4) + lane / 4 + 8};
  const int noting = t - 4 * 32;  // the head whose decays the thread notes
  const auto finish_query = [&] {
    wait_for_copies();
    if (p.num_pairs != 0) rotate_unit(unit_address(q_tiles + 7 * kTileBytes, t / 8, t % 8), cosine, sine);
  };
  if (warp < 4) {
    finish_query();
    float w[40];
    own_scores(s, w);
    asm volatile("bar.arrive %0, %1;" ::"n"(kQueryRead), "n"(kClusterThreads) : "memory");
#pragma unroll
    for (int j = 0; j < 10; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (rank * kOwnKeys + 8 * j + 2 * c + e % 2 >= keys.num_keys) w[4 * j + e] = -INFINITY;
      }
    }
    wait_started();
    send_largest(s, w, rank, heads, c);
    barrier_wait(shared_address(&s.largest_there), 0);  // so all blocks have read their keys, too
    send_weights<kWindow>(s, w, rank, heads, c, scratch + token * int64_t{kPieces * kPieceBytes});
    sync_threads(kValuesThere, kClusterThreads);
  } else {
    // A warp has eight of the own keys, two warps have none.
    Item<kWindow> own[kStages], values[kValueItems];
    const int row = (warp - 4) * 8 + lane % 8, key = rank * kOwnKeys + row;
    const RowKind kind = row < kOwnKeys ? row_kind<kWindow, kCompressed>(keys, key) : RowKind::kNone;
    const std::byte* from = kind == RowKind::kNone ? nullptr : s.rows[key];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) own[stage].load(kind, from, stage * 4 + lane / 8);
    const int value_row = lane % 8 + lane / 16 * 8, value_chunk = lane / 8 % 2;
    const auto load_values = [&] {
#pragma unroll
      for (int i = 0; i < kValueItems; ++i) {
        const int group = i * kValueWarps + warp - 4, value = group * 16 + value_row;
        const RowKind kind = group < 40 ? row_kind<kWindow, kCompressed>(keys, value) : RowKind::kNone;
        values[i].load(kind, kind == RowKind::kNone ? nullptr : s.rows[value], rank * 2 + value_chunk);
      }
    };
    finish_query();
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      if (row < kOwnKeys) {
        own[stage].convert(shared_address(s.keys_then_weights) + (stage * 2 + lane / 16) * kOwnTileBytes, row,
                           lane / 8 % 2 * 4, lane / 8);
      }
      asm volatile("bar.arrive %0, %1;" ::"r"(kColumnsThere + stage), "n"(kClusterThreads) : "memory");
    }
    load_values();  // only now: loads queue
    wait_started();
    sync_threads(kQueryRead, kClusterThreads);
#pragma unroll
    for (int i = 0; i < kValueItems; ++i) {
      const int group = i * kValueWarps + warp - 4;
      if (group < 40) values[i].convert(q_tiles, group * 16 + value_row, value_chunk * 4, value_chunk);
    }
    fence_async_proxy();
    float largest = kNoScore;
    if (noting < kHeads) {
      barrier_wait(shared_address(&s.largest_there), 0);
      note_decays<kWindow>(s, noting, largest);
    }
    asm volatile("bar.arrive %0, %1;" ::"n"(kValuesThere), "n"(kClusterThreads) : "memory");
    if (noting < kHeads) {
      const float sink = p.sink[noting];
      barrier_wait(shared_address(&s.sums_there), 0);
      note_factor<kWindow>(s, num_blocks, noting, largest, sink);
    }
  }
  if (warp >= 4) {
    asm volatile("bar.arrive %0, %1;" ::"n"(kFactorThere), "n"(kClusterThreads) : "memory");
    return;
  }
  const OutAngles angles(p, token, rank, c);
  barrier_wait(shared_address(&s.weights_there), 0);
  float sums[32];
  sum_values(s, sums, num_blocks, heads);
  sync_threads(kFactorThere, kClusterThreads);
  const float factor[2] = {s.factor[heads[0]], s.factor[heads[1]]};
  const auto turn = [&](uint32_t pair, int j) {
    return rank != kCluster - 1 || p.num_pairs == 0 ? pair : rotate(pair, angles.cosine[j], angles.sine[j]);
  };
  write_out(p, token, rank * 64, sums, factor, heads, c, turn);
#else
  __trap();
#endif
}

template <RowKind kWindow, RowKind kCompressed>
void launch_cluster(Stream& stream, const AttentionParams& p) {
  constexpr size_t kBytes = sizeof(ClusterShared) + 1024;
  static const bool once = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(cluster_kernel<kWindow, kCompressed>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)once;
  void* scratch = cuda_stream(stream).scratch(p.num_tokens * int64_t{kPieces * kPieceBytes});
  launch(stream, Start::kEarly, dim3(p.num_tokens * kCluster), kClusterThreads, kBytes,
         cluster_kernel<kWindow, kCompressed>, p, static_cast<std::byte*>(scratch));
}

}  // namespace

void attention_cluster(Stream& stream, const ops::AttentionArgs& args) {
  using enum RowKind;
  const AttentionParams p = params_of(args);
  if (args.window.type == ops::RowType::kBf16) {
    launch_cluster<kBf16, kBf16>(stream, p);
  } else if (args.compressed.blocks != nullptr && args.compressed.type == ops::RowType::kE4m3Group32) {
    launch_cluster<kE4m3, kE4m3>(stream, p);
  } else {
    launch_cluster<kE4m3, kE2m1>(stream, p);
  }
}

}  // namespace deepinfer::cuda
