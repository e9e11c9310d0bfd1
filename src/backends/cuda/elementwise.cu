// Kernels of ops/elementwise.h but those that rotate or store rows (rows.cu). Each reads and writes its rows once; the
// floor is those bytes over the memory's bandwidth, and at few rows a kernel's latency.
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/quantise.cuh"
#include "backends/cuda/row_norm.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kFlatThreads = 128;

template <typename T, bool kAligned>
__global__ void embed_kernel(Rows<T> out, const int32_t* tokens, const uint8_t* table, int hidden, int num_streams) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.y;
  const int c = (blockIdx.x * kFlatThreads + threadIdx.x) * kVec;
  if (c >= hidden) return;
  const uint8_t* source = table + (static_cast<int64_t>(tokens[t]) * hidden + c) * 2;
  uint4 bits;
  if (kAligned) {
    bits = *reinterpret_cast<const uint4*>(source);
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i / 4] |= static_cast<uint32_t>(source[i]) << (i % 4 * 8);
    bits = {words[0], words[1], words[2], words[3]};
  }
  float v[8];
  unpack8(bits, v);
  for (int s = 0; s < num_streams; ++s) store8(out.row(t) + s * hidden + c, v);
}

template <typename T, int kVecs>
__global__ void rms_norm_kernel(Rows<T> out, Rows<const T> in, Rows<T> quantised, const float* weight, int width,
                                float eps, bool round) {
  const RowWeights<kVecs> weights(weight, width);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r = blockIdx.x;
  normalise_row(out.row(r), in.row(r), quantised ? quantised.row(r) : nullptr, weights, width, eps, round);
}

// A thread has eight values of the rows laid end to end.
template <typename T, typename Quantiser>
__global__ void fake_quant_kernel(Rows<T> out, Rows<const T> in, int64_t num_rows, int width) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t vec = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int vecs = width / kVec;
  const int64_t r = vec / vecs;
  const int c = static_cast<int>(vec % vecs) * kVec;
  float v[8] = {};
  if (r < num_rows) load8(in.row(r) + c, v);
  fake_quantise8<Quantiser>(v);
  if (r < num_rows) store8(out.row(r) + c, v);
}

template <typename T>
__global__ void swiglu_kernel(Rows<T> out, Rows<const T> gate, Rows<const T> up, const float* row_weight,
                              int64_t num_rows, int width, float limit, bool round) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t vec = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int vecs = width / kVec;
  const int64_t r = vec / vecs;
  const int c = static_cast<int>(vec % vecs) * kVec;
  if (r >= num_rows) return;
  float g[8], u[8];
  load8(gate.row(r) + c, g);
  load8(up.row(r) + c, u);
  const float weight = row_weight ? row_weight[r] : 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float x = g[i] < limit ? g[i] : limit;
    const float y = fminf(fmaxf(u[i], -limit), limit);
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    g[i] = round_bf16_if(x * sigmoid * y * weight, round);
  }
  store8(out.row(r) + c, g);
}

// Rows as units of 16 bytes, or of one element.
template <typename Unit>
__global__ void gather_rows_kernel(Unit* out, int64_t out_stride, const Unit* in, int64_t in_stride,
                                   const int32_t* rows, int units) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r = blockIdx.y;
  const int c = blockIdx.x * kFlatThreads + threadIdx.x;
  if (c < units) out[r * out_stride + c] = in[rows[r] * in_stride + c];
}

template <typename Unit>
void gather_units(Stream& stream, const ops::GatherRowsArgs& a) {
  const int64_t unit = static_cast<int64_t>(sizeof(Unit)) / element_bytes(a.in.type);  // in elements
  const int units = static_cast<int>(a.out.cols / unit);
  dim3 blocks = blocks_for(units, kFlatThreads);
  blocks.y = static_cast<unsigned>(a.out.rows);
  launch(stream, Start::kEarly, blocks, kFlatThreads, 0, gather_rows_kernel<Unit>, reinterpret_cast<Unit*>(a.out.data),
         a.out.stride / unit, reinterpret_cast<const Unit*>(a.in.data), a.in.stride / unit, a.rows, units);
}

}  // namespace

void embed(Stream& stream, const ops::EmbedArgs& a) {
  dim3 blocks = blocks_for(a.hidden / kVec, kFlatThreads);
  blocks.y = static_cast<unsigned>(a.out.rows);
  const bool aligned = reinterpret_cast<uintptr_t>(a.table) % 16 == 0;
  with_element(a.out.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, kFlatThreads, 0, aligned ? embed_kernel<T, true> : embed_kernel<T, false>,
           rows_of<T>(a.out), a.tokens, reinterpret_cast<const uint8_t*>(a.table), a.hidden, a.out.cols / a.hidden);
  });
}

void rms_norm(Stream& stream, const ops::RmsNormArgs& a) {
  const int vecs = norm_vecs(a.in.rows, a.in.cols);
  with_element(a.in.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, dim3(static_cast<unsigned>(a.in.rows)), norm_threads(a.in.cols, vecs), 0,
           vecs == 1 ? rms_norm_kernel<T, 1> : rms_norm_kernel<T, kManyNormVecs>, rows_of<T>(a.out),
           rows_of<const T>(a.in), rows_of<T>(a.quantised), a.weight, a.in.cols, a.eps, a.round_to_bf16);
  });
}

void fake_quant(Stream& stream, const ops::FakeQuantArgs& a) {
  const dim3 blocks = blocks_for(a.in.rows * (a.in.cols / kVec), kFlatThreads);
  with_element(a.in.type, [&]<typename T>(T) {
    with_quantiser(a.kind, [&]<typename Quantiser>(Quantiser) {
      launch(stream, Start::kEarly, blocks, kFlatThreads, 0, fake_quant_kernel<T, Quantiser>, rows_of<T>(a.out),
             rows_of<const T>(a.in), a.in.rows, a.in.cols);
    });
  });
}

void swiglu(Stream& stream, const ops::SwigluArgs& a) {
  const dim3 blocks = blocks_for(a.out.rows * (a.out.cols / kVec), kFlatThreads);
  with_element(a.out.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, kFlatThreads, 0, swiglu_kernel<T>, rows_of<T>(a.out),
           rows_of<const T>(a.gate), rows_of<const T>(a.up), a.row_weight, a.out.rows, a.out.cols, a.limit,
           a.round_to_bf16);
  });
}

void gather_rows(Stream& stream, const ops::GatherRowsArgs& a) {
  const int64_t bytes = element_bytes(a.in.type);
  const uint64_t places = reinterpret_cast<uintptr_t>(a.out.data) | reinterpret_cast<uintptr_t>(a.in.data) |
                          static_cast<uint64_t>((a.out.stride | a.in.stride | a.out.cols) * bytes);
  if (places % 16 == 0) return gather_units<uint4>(stream, a);
  if (bytes == 4) return gather_units<uint32_t>(stream, a);
  gather_units<uint16_t>(stream, a);
}

}  // namespace deepinfer::cuda
