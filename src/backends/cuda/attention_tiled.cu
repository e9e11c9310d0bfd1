// Attention of 64 heads of 512 channels on the tensor cores: BF16 rows in shared memory, fp32 sums.
//
// Floor: 4 * 64 * 512 flops a key at the BF16 rate; bytes (288 or 528 a key) matter less from one token up.
//
// A thread block takes token after token. Its four warpgroups are a pipeline over blocks of 64 keys, two of which are in
// shared memory: rows to tiles (attention_convert.cuh); scores and weights; the weighted sum of the left and of the
// right half of the channels. All heads are one tile of 64 rows, so nothing but the query's own keys enters its sums.
#include <cuda_bf16.h>

#include <cmath>

#include "backends/cuda/attention_convert.cuh"
#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/attention_keys.cuh"
#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kDim = 512;
constexpr int kPairs = 32;  // rotated
constexpr int kMaxKeys = 640;
constexpr int kWarpgroup = 128;
constexpr int kThreads = 4 * kWarpgroup;
constexpr int kMatrixBytes = 8 * kTileBytes;  // 64 rows of 512 columns
constexpr int kHalfBytes = kMatrixBytes / 2;
constexpr int kProducerSync = 1, kScoreSync = 2;  // named barriers

struct Shared {
  std::byte q[kMatrixBytes];
  std::byte keys[2][kMatrixBytes];
  std::byte weights[2][kTileBytes];
  const std::byte* rows[2][kMaxKeys];  // of this token and the next; null: no key
  float decay[2][kHeads];              // of what was summed before the block
  float factor[2][kHeads];             // with a token's last block: 1 / sum of the weights
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

enum class RowKind { kNone, kWindow, kCompressed };

__device__ void list_rows(const AttentionParams& p, const Work& work, const std::byte** rows) {
  for (int i = threadIdx.x % kWarpgroup; i < work.num_blocks * kKeysPerBlock; i += kWarpgroup) {
    rows[i] = i < work.keys.num_keys ? key_address(p, work.keys, work.token, i) : nullptr;
  }
}

template <typename Window, typename Compressed>
__device__ void produce(const AttentionParams& p, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = 16 * warp + (lane & 7) + (lane >> 4) * 8, part = lane >> 3 & 1;
  Work work = next_work(p, blockIdx.x);
  if (work.num_blocks == 0) return;
  int list = 0;
  list_rows(p, work, s.rows[list]);
  sync_threads(kProducerSync, kWarpgroup);

  RowPiece piece;
  RowKind kind = RowKind::kNone;
  const std::byte* source = nullptr;
  const auto look_up = [&](const Work& of, int which_list, int block) {
    const int i = block * kKeysPerBlock + row;
    source = s.rows[which_list][i];
    kind = source == nullptr ? RowKind::kNone : (i < of.keys.num_window ? RowKind::kWindow : RowKind::kCompressed);
  };
  const auto load = [&](int half) {
    if (kind == RowKind::kWindow) Window::load(piece, source, half, part);
    if (kind == RowKind::kCompressed) Compressed::load(piece, source, half, part);
  };
  look_up(work, list, 0);
  load(0);

  int n = 0;
  while (work.num_blocks > 0) {
    Work next;
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      if (block == min(2, work.num_blocks - 1)) {
        next = next_work(p, work.token + gridDim.x);
        list_rows(p, next, s.rows[list ^ 1]);
        sync_threads(kProducerSync, kWarpgroup);
      }
      const int buffer = n & 1;
      for (int half = 0; half < 2; ++half) {
        const uint32_t tiles = shared_address(s.keys[buffer]) + half * kHalfBytes;
        barrier_wait(shared_address(&s.keys_empty[buffer][half]), (n >> 1 & 1) ^ 1);
        if (kind == RowKind::kWindow) Window::convert(piece, tiles, row, part);
        if (kind == RowKind::kCompressed) Compressed::convert(piece, tiles, row, part);
        if (kind == RowKind::kNone) clear_row(tiles, row, part);
        if (half == 1) {
          if (block + 1 < work.num_blocks) {
            look_up(work, list, block + 1);
          } else if (next.num_blocks > 0) {
            look_up(next, list ^ 1, 0);
          } else {
            kind = RowKind::kNone;
          }
        }
        load(half ^ 1);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&s.keys_full[buffer][half]));
      }
    }
    work = next;
    list ^= 1;
  }
}

// ---- scores and weights

__device__ __forceinline__ void copy_unit(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Two BF16 as a pair of channels, turned.
__device__ __forceinline__ uint32_t rotate(uint32_t pair, float c, float s) {
  const float x = low_bf16(pair), y = high_bf16(pair);
  return pack_bf16(__fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)), __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
}

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
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (p.num_pairs != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t at = unit_address(shared_address(s.q) + 7 * kTileBytes, i * 16 + t / 8, unit);
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
        store_unit(at, rotate(x.x, cosine[0], sine[0]), rotate(x.y, cosine[1], sine[1]),
                   rotate(x.z, cosine[2], sine[2]), rotate(x.w, cosine[3], sine[3]));
      }
    }
    fence_async_proxy();
  }
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Sum over the row of a block's weights, of which the four threads of a row hold columns 8j + 2c and 8j + 2c + 1 in
// w[4j], w[4j + 1]: first each 16 keys, then the four sums.
__device__ __forceinline__ float row_sum(const float (&w)[32], int at, int lane) {
  float piece[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    piece[i] = (w[8 * i + at] + w[8 * i + at + 1]) + (w[8 * i + at + 4] + w[8 * i + at + 5]);
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
  // Scores come from keys times kRowScale; exp(x) = exp2(x log2(e)).
  constexpr float kLog2e = 1.44269504088896341f;
  const float scale = kLog2e / (22.627416997969522f * kRowScale);
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
        decay[r] = exp2_fast((largest[r] - most) * scale);
        largest[r] = most;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          w[4 * j + 2 * r] = exp2_fast((w[4 * j + 2 * r] - most) * scale);
          w[4 * j + 2 * r + 1] = exp2_fast((w[4 * j + 2 * r + 1] - most) * scale);
        }
        total[r] = total[r] * decay[r] + row_sum(w, 2 * r, lane);
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
            const float sink = exp2_fast(p.sink[heads[r]] * kLog2e - largest[r] * scale);
            s.factor[buffer][heads[r]] = (1.0f / kRowScale) / (total[r] + sink);
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&s.weights_full[buffer]));
    }
  }
}

// ---- the weighted sum

// Of four words a thread, a quad of threads gets word 0 of all four in its first thread, and so on.
__device__ __forceinline__ uint4 transpose_quad(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, int c) {
  const bool odd = c & 1, upper = c & 2;
  const uint32_t x = __shfl_xor_sync(~0u, odd ? w0 : w1, 1), y = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
  const uint32_t a0 = odd ? x : w0, a1 = odd ? w1 : x, b0 = odd ? y : w2, b1 = odd ? w3 : y;
  const uint32_t u = __shfl_xor_sync(~0u, upper ? a0 : b0, 2), v = __shfl_xor_sync(~0u, upper ? a1 : b1, 2);
  return upper ? uint4{u, v, b0, b1} : uint4{a0, a1, u, v};
}

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
          pairs[i] = rotate(pairs[i], p.cosine[token * p.cosine_stride + angle],
                            -p.sine[token * p.sine_stride + angle]);
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
      const float decay0 = s.decay[buffer][heads[0]], decay1 = s.decay[buffer][heads[1]];
      if (block > 0 && __any_sync(~0u, decay0 != 1.0f || decay1 != 1.0f)) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
          sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
        }
      }
      uint32_t weights[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        load_weights(weights[step], shared_address(s.weights[buffer]), warp, lane, step);
      }
      const uint64_t values = rows_descriptor(shared_address(s.keys[buffer]) + half * kHalfBytes);
      wgmma_hold(sums);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        mma_values(sums, weights[step], values + 128 * step, block + step > 0);
        mma_values(sums + 64, weights[step], values + 128 * step + 2 * kTileBytes / 16, block + step > 0);
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

template <typename Window, typename Compressed>
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
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_kernel_before();
  let_next_kernel_start();
  const int role = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (role == 0) {
    give_registers<80>();
    produce<Window, Compressed>(p, s);
  } else if (role == 1) {
    give_registers<80>();
    weigh(p, s);
  } else {
    take_registers<176>();
    sum_values(p, s, role - 2);
  }
#else
  __trap();
#endif
}

template <typename Window, typename Compressed>
void launch_tiled(Stream& stream, const AttentionParams& p) {
  constexpr size_t kBytes = sizeof(Shared) + 1024;
  static const bool once = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(tiled_kernel<Window, Compressed>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kBytes));
    return true;
  }();
  (void)once;
  const int blocks = std::min(p.num_tokens, cuda_stream(stream).num_sms());
  launch(stream, Start::kEarly, dim3(blocks), kThreads, kBytes, tiled_kernel<Window, Compressed>, p);
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
         a.window_size <= 128 && a.window.type == kE4m3Group32 && a.window.offset % 16 == 0 &&
         (!compressed || (a.selected.cols <= kMaxKeys - 128 && a.compressed.offset % 16 == 0 &&
                          (a.compressed.type == kE2m1Group16 || a.compressed.type == kE4m3Group32))) &&
         starts_at_16(a.q.data, a.q.stride * 2) && starts_at_16(a.out.data, a.out.stride * 2);
}

void attention_tiled(Stream& stream, const ops::AttentionArgs& args) {
  const AttentionParams p = params_of(args);
  if (args.compressed.blocks != nullptr && args.compressed.type == ops::RowType::kE4m3Group32) {
    launch_tiled<E4m3Rows, E4m3Rows>(stream, p);
  } else {
    launch_tiled<E4m3Rows, E2m1Rows>(stream, p);
  }
}

}  // namespace deepinfer::cuda
