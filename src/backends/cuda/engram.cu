// Kernels of ops/engram.h. engram_rows: floor is the codes' bytes (264 a row) over the bandwidth of the memory that
// holds the table; from host memory it is that link's latency, so a thread asks for little and many are in flight.
// engram_apply: one block a token and stream; floor is the streams read and written and the keys and value read, once.
// A thread asks for everything before it adds anything.
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/quantise.cuh"
#include "backends/cuda/rows.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kFlatThreads = 128;
constexpr int kMostOneEach = 6144;  // channels of a stream, up to which a thread has eight of them

template <typename T, bool kQuantise>
__global__ void engram_rows_kernel(Rows<T> out, const uint8_t* codes, const uint8_t* scales, const int64_t* rows,
                                   int64_t num_tokens, int num_columns, int head_dim) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const int64_t vec = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int vecs = head_dim / kVec;  // of a table's row
  const int64_t entry = vec / vecs;
  const int c = static_cast<int>(vec % vecs) * kVec;
  const bool present = entry < num_tokens * num_columns;
  float v[8] = {};
  if (present) {
    const int64_t row = rows ? rows[entry] : entry;
    const uint8_t* place = codes + row * head_dim + c;
    uint32_t words[2];
    if (reinterpret_cast<uintptr_t>(place) % 8 == 0) {
      const uint2 both = *reinterpret_cast<const uint2*>(place);
      words[0] = both.x, words[1] = both.y;
    } else {
      words[0] = load_word(place), words[1] = load_word(place + 4);
    }
    const float scale = e8m0_value(scales[row * (head_dim / 32) + c / 32]);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = e4m3_value(words[i / 4] >> (i % 4 * 8)) * scale;
  }
  if (kQuantise) fake_quantise8<E4m3Group32>(v);  // by whole warps
  if (present) store8(out.row(entry / num_columns) + entry % num_columns * head_dim + c, v);
}

template <typename T, int kVecs>
__global__ void engram_apply_kernel(Rows<T> streams, Rows<const T> key_value, const float* query_key_weight,
                                    int num_streams, int hidden, float eps, bool round) {
  __shared__ float shared[32][3];
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  const int s = blockIdx.y;
  T* x = streams.row(t) + s * hidden;
  const T* key = key_value.row(t) + s * hidden;
  const T* value = key_value.row(t) + num_streams * hidden;
  const float* weight = query_key_weight + s * hidden;
  const auto channel = [&](int k) { return min(row_channel(k), hidden - kVec); };  // what is beyond reads the last
  float early[8];
  if (kVecs == 1) load8(weight + channel(0), early);
  wait_for_kernel_before();
  float xs[kVecs][8], values[kVecs][8], sums[3] = {};  // x * weight * key, x^2, key^2
  float keys[kVecs][8];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    load8(x + channel(k), xs[k]);
    load8(key + channel(k), keys[k]);
    load8(value + channel(k), values[k]);
  }
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (row_channel(k) >= hidden) continue;
    float weights[8];
    if (kVecs > 1) load8(weight + channel(k), weights);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[0] = fmaf(xs[k][i] * (kVecs > 1 ? weights : early)[i], keys[k][i], sums[0]);
      sums[1] = fmaf(xs[k][i], xs[k][i], sums[1]);
      sums[2] = fmaf(keys[k][i], keys[k][i], sums[2]);
    }
  }
  block_sum(sums, shared);
  const float width = static_cast<float>(hidden);
  const float rms_x = 1.0f / sqrtf(sums[1] / width + eps), rms_key = 1.0f / sqrtf(sums[2] / width + eps);
  const float g = sums[0] * rms_x * rms_key / sqrtf(width);
  const float gate = 1.0f / (1.0f + expf(-copysignf(sqrtf(fmaxf(fabsf(g), 1e-6f)), g)));
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (row_channel(k) >= hidden) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) xs[k][i] = round_bf16_if(fmaf(gate, values[k][i], xs[k][i]), round);
    store8(x + channel(k), xs[k]);
  }
}

}  // namespace

void engram_rows(Stream& stream, const ops::EngramRowsArgs& a) {
  const int64_t head_dim = a.out.cols / a.num_columns;
  DI_CHECK(head_dim % 32 == 0, "Engram rows of {} values", head_dim);
  with_element(a.out.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks_for(a.out.rows * a.out.cols / kVec, kFlatThreads), kFlatThreads, 0,
           a.quantise ? engram_rows_kernel<T, true> : engram_rows_kernel<T, false>, rows_of<T>(a.out), a.codes,
           a.scales, a.rows, a.out.rows, a.num_columns, head_dim);
  });
}

void engram_apply(Stream& stream, const ops::EngramApplyArgs& a) {
  const int64_t hidden = a.streams.cols / a.num_streams;
  const dim3 blocks(static_cast<unsigned>(a.streams.rows), static_cast<unsigned>(a.num_streams));
  // The number of threads, which the order of sums depends on, is a function of the width alone.
  const bool one_each = hidden <= kMostOneEach;
  const int threads = one_each ? static_cast<int>((hidden / kVec + 31) / 32 * 32) : row_threads(hidden);
  with_element(a.streams.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, threads, 0,
           one_each ? engram_apply_kernel<T, 1> : engram_apply_kernel<T, kRowVecs>, rows_of<T>(a.streams),
           rows_of<const T>(a.key_value), a.query_key_weight, a.num_streams, hidden, a.norm_eps, a.round_to_bf16);
  });
}

}  // namespace deepinfer::cuda
