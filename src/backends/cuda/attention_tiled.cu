// Attention of 64 heads of 512 channels on the tensor cores: BF16 rows in shared memory, fp32 sums.
//
// Floor: 4 * 64 * 512 flops a key at the BF16 rate; bytes (288 or 528 a key) matter less from one token up.
//
// A thread block takes token after token. Its four warpgroups are a pipeline over blocks of 64 keys, two of which are
// in shared memory: rows to tiles (attention_convert.cuh); scores and weights; the weighted sum of the left and of the
// right half of the channels. All heads are one tile of 64 rows, so nothing but the query's own keys enters its sums.
#include <algorithm>
#include <cmath>

#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/attention_steps.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kThreads = 4 * kWarpgroup;
constexpr int kMatrixBytes = 8 * kTileBytes;  // 64 rows of 512 columns
constexpr int kHalfBytes = kMatrixBytes / 2;
constexpr int kFinderSync = 1, kScoreSync = 2;  // named barriers

struct Shared {
  std::byte q[kMatrixBytes];
  std::byte keys[2][kMatrixBytes];
  std::byte weights[2][kTileBytes];
  int32_t selected[2][kMaxSelected];           // of a token and the next
  float decay[2][kHeads];                      // of what was summed before the block
  float factor[2][kHeads];                     // with a token's last block: 1 / sum of the weights
  uint64_t listed[2];                          // selected is
  uint64_t keys_full[2][2], keys_empty[2][2];  // [buffer][half]
  uint64_t weights_full[2], weights_empty[2];
};

// A token of this thread block.
struct Work {
  int token = 0;
  int num_blocks = 0;  // 0: there is none
  KeyList keys;
};

// The first real token from `token` on.
__device__ Work next_work(const AttentionParams& p, int token) {
  Work work;
  for (; token < p.num_tokens; token += gridDim.x) {
    work.keys = key_list(p, token);
    if (work.keys.num_keys == 0) continue;
    work.token = token;
    work.num_blocks = (work.keys.num_keys + kKeysPerBlock - 1) / kKeysPerBlock;
    break;
  }
  return work;
}

// ---- rows to tiles

// The warp's part of a tile is written.
__device__ __forceinline__ void announce(uint64_t* full, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(full));
}

// A thread's row in a block to come.
struct RowAhead {
  const std::byte* row = nullptr;
  RowKind kind = RowKind::kNone;
  bool there = false;  // the block
};

// Finds a thread's row in one block after the other, three blocks before it is converted, without waiting for loads:
// find() starts the load of the address of the row's block and returns what it started the time before. The lists of
// selected rows come by bulk copy, a token ahead. All threads of the warpgroup call it equally often.
template <RowKind kCompressed>
struct RowFinder {
  const AttentionParams& p;
  Shared& s;
  int at;  // the row's place in its block
  // The token that find() is in, and its number among those of the thread block.
  int number = -1, block = 0, num_blocks = 0;
  KeyList keys;
  const std::byte *const *window = nullptr, *const *compressed = nullptr;
  // The token after it, as loaded.
  int next_token;
  int64_t next_position = -1, next_first = 0;
  int next_selected = 0;
  const std::byte *const *next_window = nullptr, *const *next_compressed = nullptr;
  // What was started.
  const std::byte* place = nullptr;
  int32_t row_in_block = 0;
  bool in_window = false;
  RowAhead started;

  __device__ RowFinder(const AttentionParams& params, Shared& shared, int place_in_block)
      : p(params), s(shared), at(place_in_block), next_token(blockIdx.x) {
    load_next();
    load_list(0);
  }
  __device__ __forceinline__ void load_next() {
    if (next_token >= p.num_tokens) return;
    next_position = p.positions[next_token];
    next_first = p.first_window_row == nullptr ? 0 : p.first_window_row[next_token];
    next_window = p.window.blocks[next_token];
    if (p.compressed.blocks == nullptr) return;
    next_selected = p.num_selected[next_token];
    next_compressed = p.compressed.blocks[next_token];
  }
  __device__ __forceinline__ void load_list(int list) {
    if (threadIdx.x % kWarpgroup != 0 || next_token >= p.num_tokens || p.compressed.blocks == nullptr) return;
    const uint32_t bytes = p.num_selectable * 4, barrier = shared_address(&s.listed[list]);
    barrier_expect(barrier, bytes);
    copy_bulk(shared_address(s.selected[list]), p.selected + next_token * p.selected_stride, bytes, barrier,
              evict_first());
  }
  __device__ __forceinline__ void enter_next() {
    block = num_blocks = 0;
    if (next_token >= p.num_tokens) return;
    ++number;
    if (p.compressed.blocks != nullptr) barrier_wait(shared_address(&s.listed[number & 1]), number >> 1 & 1);
    if (next_position >= 0) {
      keys = make_key_list(next_position, next_first, next_selected, p.window_size);
      num_blocks = (keys.num_keys + kKeysPerBlock - 1) / kKeysPerBlock;
    }
    window = next_window;
    compressed = next_compressed;
    next_token += gridDim.x;
    load_next();
    sync_threads(kFinderSync, kWarpgroup);  // no warp reads the list of the token before any more
    load_list(number + 1 & 1);
  }
  __device__ __forceinline__ RowAhead find() {
    RowAhead found = started;
    if (found.kind != RowKind::kNone) {
      found.row = place + (in_window ? p.window.offset + row_in_block * p.window_row_bytes
                                     : p.compressed.offset + row_in_block * p.compressed_row_bytes);
    }
    start();
    return found;
  }
  __device__ __forceinline__ void start() {
    while (block == num_blocks && next_token < p.num_tokens) enter_next();
    started = RowAhead();
    if (block == num_blocks) return;
    const int key = block * kKeysPerBlock + at;
    started.there = true;
    started.kind = row_kind(keys, key, kCompressed);
    in_window = key < keys.num_window;
    if (in_window) {
      const auto row = static_cast<int32_t>(keys.first_window_row) + key;
      place = window[row >> p.window.block_shift];
      row_in_block = row & ((1 << p.window.block_shift) - 1);
    } else if (key < keys.num_keys) {
      const int32_t row = s.selected[number & 1][key - keys.num_window];
      place = compressed[row >> p.compressed.block_shift];
      row_in_block = row & ((1 << p.compressed.block_shift) - 1);
    }
    ++block;
  }
};

template <RowKind kCompressed>
__device__ void produce(const AttentionParams& p, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int at = 16 * warp + (lane & 7) + (lane >> 4) * 8, part = lane >> 3 & 1;
  RowFinder<kCompressed> finder(p, s, at);
  finder.start();
  RowAhead now = finder.find();
  RowPiece piece;
  piece.fill_first(now.row, now.kind, part);
  RowAhead next = finder.find();
  for (int n = 0; now.there; ++n) {
    const int buffer = n & 1;
    const uint32_t tiles = shared_address(s.keys[buffer]), empty = (n >> 1 & 1) ^ 1;
    const RowAhead after = finder.find();
    if (after.kind == RowKind::kE4m3) prefetch_lines<528>(after.row, part);
    if (after.kind == RowKind::kE2m1) prefetch_lines<288>(after.row, part);
    barrier_wait(shared_address(&s.keys_empty[buffer][0]), empty);
    piece.step<0>(now.row, now.kind, next.row, next.kind, tiles, at, part);
    announce(&s.keys_full[buffer][0], lane);
    barrier_wait(shared_address(&s.keys_empty[buffer][1]), empty);
    piece.step<1>(now.row, now.kind, next.row, next.kind, tiles + kHalfBytes, at, part);
    announce(&s.keys_full[buffer][1], lane);
    now = next;
    next = after;
  }
}

// ---- scores and weights

// A thread's part of a token's q on its way to the tiles: 16-byte units of column t % 8 of each tile, and the angles of
// those units of the last tile.
struct QueryLoad {
  float cosine[4], sine[4];

  __device__ void start(const AttentionParams& p, Shared& s, int token) {
    const int t = threadIdx.x % kWarpgroup, unit = t % 8;
    const std::byte* q = p.q + (token * p.q_stride + t / 8 * kDim) * 2 + unit * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int tile = 0; tile < 8; ++tile) {
        copy_unit(unit_address(shared_address(s.q) + tile * kTileBytes, i * 16 + t / 8, unit),
                  q + i * 16 * kDim * 2 + tile * 128);
      }
    }
    if (p.num_pairs == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cosine[i] = p.cosine[token * p.cosine_stride + 4 * unit + i];
      sine[i] = p.sine[token * p.sine_stride + 4 * unit + i];
    }
  }
  // Then the threads of the warpgroup synchronise.
  __device__ void finish(const AttentionParams& p, Shared& s) {
    const int t = threadIdx.x % kWarpgroup, unit = t % 8;
    wait_for_copies();
    if (p.num_pairs != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rotate_unit(unit_address(shared_address(s.q) + 7 * kTileBytes, i * 16 + t / 8, unit), cosine, sine);
      }
    }
    fence_async_proxy();
  }
};

// Sum over the row of a block's weights, of which the four threads of a row hold columns 8j + 2c and 8j + 2c + 1 in
// w[4j], w[4j + 1]: first each 16 keys, then the four sums.
__device__ __forceinline__ float row_sum(const float (&w)[32], int at, int lane) {
  float piece[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    piece[i] = thread_sum(w[8 * i + at], w[8 * i + at + 1], w[8 * i + at + 4], w[8 * i + at + 5]);
  }
  // Threads exchange what the other keeps: two rounds leave the sum of piece `lane % 4` in each.
  const bool odd = lane & 1, upper = lane & 2;
  const float low = (odd ? piece[1] : piece[0]) + __shfl_xor_sync(~0u, odd ? piece[0] : piece[1], 1);
  const float high = (odd ? piece[3] : piece[2]) + __shfl_xor_sync(~0u, odd ? piece[2] : piece[3], 1);
  float sum = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

__device__ void weigh(const AttentionParams& p, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, c = lane % 4;
  const int heads[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8};
  const uint32_t q = shared_address(s.q);
  int n = 0;
  Work work = next_work(p, blockIdx.x), next;
  QueryLoad query;
  if (work.num_blocks > 0) query.start(p, s, work.token);
  for (; work.num_blocks > 0; work = next) {
    query.finish(p, s);
    sync_threads(kScoreSync, kWarpgroup);
    float largest[2] = {kNoScore, kNoScore}, total[2] = {0, 0};
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      const int buffer = n & 1;
      const uint32_t parity = n >> 1 & 1, keys = shared_address(s.keys[buffer]);
      float w[32];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        barrier_wait(shared_address(&s.keys_full[buffer][half]), parity);
        fence_async_proxy();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int tile = half * 4 + i / 4, step = i % 4;
          mma_scores(w, columns_descriptor(q + tile * kTileBytes) + 2 * step,
                     columns_descriptor(keys + tile * kTileBytes) + 2 * step, half + i > 0);
        }
      }
      wgmma_commit();
      if (block == 0) next = next_work(p, work.token + gridDim.x);
      wgmma_wait<0>();
      wgmma_hold(w);
      if (block + 1 == work.num_blocks && next.num_blocks > 0) {
        sync_threads(kScoreSync, kWarpgroup);  // no warp's product reads this token's q any more
        query.start(p, s, next.token);
      }
      const int count = work.keys.num_keys - block * kKeysPerBlock;
      if (count < kKeysPerBlock) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (8 * j + 2 * c + e % 2 >= count) w[4 * j + e] = -INFINITY;
          }
        }
      }
      float decay[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = largest[r];
#pragma unroll
        for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(w[4 * j + 2 * r], w[4 * j + 2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        decay[r] = exp2_fast((largest[r] - most) * kScoreScale);
        largest[r] = most;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          w[4 * j + 2 * r] = exp2_fast((w[4 * j + 2 * r] - most) * kScoreScale);
          w[4 * j + 2 * r + 1] = exp2_fast((w[4 * j + 2 * r + 1] - most) * kScoreScale);
        }
        total[r] = add_block(total[r], decay[r], row_sum(w, 2 * r, lane));
      }
      barrier_wait(shared_address(&s.weights_empty[buffer]), parity ^ 1);
      const uint32_t tile = shared_address(s.weights[buffer]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(unit_address(tile, heads[r], j) + 4 * c),
                       "r"(pack_bf16(w[4 * j + 2 * r], w[4 * j + 2 * r + 1]))
                       : "memory");
        }
        if (c == 0) {
          s.decay[buffer][heads[r]] = decay[r];
          if (block + 1 == work.num_blocks) {
            s.factor[buffer][heads[r]] = head_factor(total[r], largest[r], p.sink[heads[r]]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&s.weights_full[buffer]));
    }
  }
}

// ---- the weighted sum

__device__ void write_out(const AttentionParams& p, int token, int half, const float (&sums)[128],
                          const float (&factor)[2], const int (&heads)[2], int c) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    std::byte* out = p.out + (token * p.out_stride + heads[r] * kDim + half * 256) * 2 + c * 16;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * r;
        pairs[i] = pack_bf16(sums[at] * factor[r], sums[at + 1] * factor[r]);
        if (j >= 24 && half == 1 && p.num_pairs != 0) {
          const int angle = 4 * (j + i - 24) + c;
          pairs[i] =
              rotate(pairs[i], p.cosine[token * p.cosine_stride + angle], -p.sine[token * p.sine_stride + angle]);
        }
      }
      *reinterpret_cast<uint4*>(out + j * 16) = transpose_quad(pairs[0], pairs[1], pairs[2], pairs[3], c);
    }
  }
}

__device__ void sum_values(const AttentionParams& p, Shared& s, int half) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int heads[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8};
  float sums[128];
  int n = 0;
  Work work = next_work(p, blockIdx.x), next;
  for (; work.num_blocks > 0; work = next) {
    float factor[2] = {0, 0};
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      const int buffer = n & 1;
      const uint32_t parity = n >> 1 & 1;
      barrier_wait(shared_address(&s.weights_full[buffer]), parity);
      barrier_wait(shared_address(&s.keys_full[buffer][half]), parity);
      fence_async_proxy();
      const float decay0 = s.decay[buffer][heads[0]], decay1 = s.decay[buffer][heads[1]];
      if (block > 0 && __any_sync(~0u, decay0 != 1.0f || decay1 != 1.0f)) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
          sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
        }
      }
      const uint64_t weights = columns_descriptor(shared_address(s.weights[buffer]));
      const uint64_t values = rows_descriptor(shared_address(s.keys[buffer]) + half * kHalfBytes);
      wgmma_hold(sums);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        mma_values(sums, weights + 2 * step, values + 128 * step, block + step > 0);
        mma_values(sums + 64, weights + 2 * step, values + 128 * step + 2 * kTileBytes / 16, block + step > 0);
      }
      wgmma_commit();
      if (block == 0) next = next_work(p, work.token + gridDim.x);
      wgmma_wait<0>();
      wgmma_hold(sums);
      if (block + 1 == work.num_blocks) {
        factor[0] = s.factor[buffer][heads[0]];
        factor[1] = s.factor[buffer][heads[1]];
      }
      __syncwarp();
      if (lane == 0) {
        barrier_arrive(shared_address(&s.keys_empty[buffer][half]));
        barrier_arrive(shared_address(&s.weights_empty[buffer]));
      }
    }
    write_out(p, work.token, half, sums, factor, heads, lane % 4);
  }
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <RowKind kCompressed>
__global__ void __launch_bounds__(kThreads, 1) tiled_kernel(const __grid_constant__ AttentionParams p) {
#ifdef DI_SM90A
  extern __shared__ std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023));
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int half = 0; half < 2; ++half) {
        barrier_init(shared_address(&s.keys_full[buffer][half]), 4);
        barrier_init(shared_address(&s.keys_empty[buffer][half]), 4);
      }
      barrier_init(shared_address(&s.weights_full[buffer]), 4);
      barrier_init(shared_address(&s.weights_empty[buffer]), 8);
      barrier_init(shared_address(&s.listed[buffer]), 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_kernel_before();
  let_next_kernel_start();
  const int role = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (role == 0) {
    give_registers<112>();
    produce<kCompressed>(p, s);
  } else if (role == 1) {
    give_registers<80>();
    weigh(p, s);
  } else {
    take_registers<160>();
    sum_values(p, s, role - 2);
  }
#else
  __trap();
#endif
}

template <RowKind kCompressed>
void launch_tiled(Stream& stream, const AttentionParams& p) {
  constexpr size_t kBytes = sizeof(Shared) + 1024;
  static const bool once = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(tiled_kernel<kCompressed>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)once;
  const int blocks = std::min(p.num_tokens, cuda_stream(stream).num_sms());
  launch(stream, Start::kEarly, dim3(blocks), kThreads, kBytes, tiled_kernel<kCompressed>, p);
}

bool starts_at_16(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

bool attention_tiled_takes(const ops::AttentionArgs& a) {
  using enum ops::RowType;
  const bool compressed = a.compressed.blocks != nullptr;
  return a.q.type == ElementType::kBf16 && a.out.type == ElementType::kBf16 && a.round_to_bf16 &&
         a.num_heads == kHeads && a.q.cols == kHeads * kDim && (a.cosine.data == nullptr || a.cosine.cols == kPairs) &&
         a.window_size <= kMaxWindow && a.window.type == kE4m3Group32 && a.window.offset % 16 == 0 &&
         (!compressed || (a.selected.cols <= kMaxSelected && a.selected.cols % 4 == 0 &&
                          starts_at_16(a.selected.data, a.selected.stride * 4) && a.compressed.offset % 16 == 0 &&
                          (a.compressed.type == kE2m1Group16 || a.compressed.type == kE4m3Group32))) &&
         starts_at_16(a.q.data, a.q.stride * 2) && starts_at_16(a.out.data, a.out.stride * 2);
}

void attention_tiled(Stream& stream, const ops::AttentionArgs& args) {
  const AttentionParams p = params_of(args);
  if (args.compressed.blocks != nullptr && args.compressed.type == ops::RowType::kE4m3Group32) {
    launch_tiled<RowKind::kE4m3>(stream, p);
  } else {
    launch_tiled<RowKind::kE2m1>(stream, p);
  }
}

}  // namespace deepinfer::cuda
