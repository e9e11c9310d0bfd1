// Rotary position embedding and the rows of caches: kernels of ops/elementwise.h that rotate or store rows, and of
// ops/compressor.h. A block has one row and reads and writes it once; the floor is the bytes over the memory's
// bandwidth (a window row of 512 values: 1 KB read, 0.5 KB written), and at few rows a kernel's latency.
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/row_write.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kFlatThreads = 128;

__global__ void rope_angles_kernel(MatrixView<float> cosine, MatrixView<float> sine, const int64_t* positions,
                                   const float* frequencies, int64_t ratio) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int64_t r = i / cosine.cols, j = i % cosine.cols;
  if (r >= cosine.rows) return;
  const int64_t position = positions[r] < 0 ? 0 : positions[r] / ratio * ratio;
  // The model rounds the angle to fp32; then exact functions of it.
  const double angle = __fmul_rn(static_cast<float>(position), frequencies[j]);
  double s, c;
  sincos(angle, &s, &c);
  cosine.data[r * cosine.stride + j] = static_cast<float>(c);
  sine.data[r * sine.stride + j] = static_cast<float>(s);
}

// Of every head the last `touched` channels: those that are rotated, or all if they are quantised.
template <typename T>
__global__ void rope_kernel(Rows<T> data, int64_t num_rows, int num_heads, int head_dim, int touched, Angles angles,
                            float sign, bool round, Before quantise) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t vec = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const int vecs = num_heads * (touched / kVec);  // of a row
  const int64_t r = vec / vecs;
  const int in_row = static_cast<int>(vec % vecs);
  const int head = in_row / (touched / kVec), c = in_row % (touched / kVec) * kVec;
  const int rotated = c - (touched - angles.channels);
  float v[8] = {};
  T* place = nullptr;
  if (r < num_rows) {
    place = data.row(r) + (head + 1) * head_dim - touched + c;
    load8(place, v);
    if (rotated >= 0) rotate8(v, load_angles8(angles, r, rotated), sign, round);
  }
  quantise_before(quantise, v);  // by whole warps
  if (place != nullptr) store8(place, v);
}

template <typename T, typename Codec>
__global__ void write_rows_kernel(Rows<const T> in, RowPlaces places, const int64_t* positions, int64_t ratio,
                                  Before before, Angles angles, bool round) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  const int64_t position = positions[t];
  if (position < 0 || (position + 1) % ratio != 0) return;
  uint8_t* row = places.row(t, position / ratio);
  if (row == nullptr) return;
  const int width = places.width, rotated = width - angles.channels;
  // Whole warps stay together: the quantisers' groups exchange their maxima.
  for (int k = 0; k * blockDim.x * kVec < width; ++k) {
    const int c = row_channel(k);
    float v[8] = {};
    if (c < width) {
      load8(in.row(t) + c, v);
      if (c >= rotated) rotate8(v, load_angles8(angles, t, c - rotated), 1.0f, round);
    }
    quantise_before(before, v);
    Codec::write8(row, width, c, v);
  }
}

// A group's tokens lie in rows of [value | gate]; a thread has four channels.
template <typename T>
__global__ void compress_kernel(T* out, int64_t out_stride, RowPlaces places, const int64_t* positions, int64_t ratio,
                                bool round) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t t = blockIdx.x;
  const int width = places.width / 2;
  const int c = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (c >= width) return;
  const int64_t position = positions[t];
  const bool closes = position >= 0 && (position + 1) % ratio == 0 && places.blocks[t] != nullptr;
  float result[4] = {};
  if (closes) {
    float largest[4], total[4] = {}, pooled[4] = {};
    for (int64_t i = 0; i < ratio; ++i) {
      const auto* row = reinterpret_cast<const float*>(places.row(t, position + 1 - ratio + i));
      const float4 gate = *reinterpret_cast<const float4*>(row + width + c);
      const float gates[4] = {gate.x, gate.y, gate.z, gate.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) largest[j] = i == 0 ? gates[j] : fmaxf(largest[j], gates[j]);
    }
    for (int64_t i = 0; i < ratio; ++i) {
      const auto* row = reinterpret_cast<const float*>(places.row(t, position + 1 - ratio + i));
      const float4 gate = *reinterpret_cast<const float4*>(row + width + c);
      const float4 value = *reinterpret_cast<const float4*>(row + c);
      const float gates[4] = {gate.x, gate.y, gate.z, gate.w}, values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = expf(gates[j] - largest[j]);
        total[j] += weight;
        pooled[j] = fmaf(weight, values[j], pooled[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) result[j] = round_bf16_if(pooled[j] / total[j], round);
  }
  T* place = out + t * out_stride + c;
#pragma unroll
  for (int j = 0; j < 4; ++j) place[j] = static_cast<T>(result[j]);
}

}  // namespace

void rope_angles(Stream& stream, const ops::RopeAnglesArgs& a) {
  launch(stream, Start::kEarly, blocks_for(a.cosine.rows * a.cosine.cols, kFlatThreads), kFlatThreads, 0,
         rope_angles_kernel, a.cosine, a.sine, a.positions, a.frequencies, a.ratio);
}

void rope(Stream& stream, const ops::RopeArgs& a) {
  const Angles angles = angles_of(a.cosine, a.sine);
  const int64_t head_dim = a.data.cols / a.num_heads, touched = a.quantise ? head_dim : angles.channels;
  const dim3 blocks = blocks_for(a.data.rows * a.num_heads * (touched / kVec), kFlatThreads);
  with_element(a.data.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, kFlatThreads, 0, rope_kernel<T>, rows_of<T>(a.data), a.data.rows, a.num_heads,
           head_dim, touched, angles, a.inverse ? -1.0f : 1.0f, a.round_to_bf16,
           before_row_type(ops::RowType::kBf16, a.quantise));
  });
}

void write_rows(Stream& stream, const ops::WriteRowsArgs& a) {
  const Angles angles = angles_of(a.cosine, a.sine);
  const RowPlaces places = places_to_write(a.tables);
  // One round of eight channels a thread as far as a block goes.
  const int threads = static_cast<int>(std::min<int64_t>((a.in.cols / kVec + 31) / 32 * 32, 1024));
  with_element(a.in.type, [&]<typename T>(T) {
    with_row_codec(a.tables.type, [&]<typename Codec>(Codec) {
      launch(stream, Start::kEarly, dim3(static_cast<unsigned>(a.in.rows)), threads, 0, write_rows_kernel<T, Codec>,
             rows_of<const T>(a.in), places, a.positions, a.ratio, before_row_type(a.tables.type, a.quantise), angles,
             a.round_to_bf16);
    });
  });
}

void compress(Stream& stream, const ops::CompressArgs& a) {
  const int64_t width = a.out.cols;
  DI_CHECK(width % 4 == 0 && a.rows.offset % 16 == 0, "compressed rows of {} values from byte {}", width,
           a.rows.offset);
  const int threads = static_cast<int>(std::min<int64_t>((width / 4 + 31) / 32 * 32, 128));
  const dim3 blocks(static_cast<unsigned>(a.out.rows), static_cast<unsigned>((width / 4 + threads - 1) / threads));
  with_element(a.out.type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, threads, 0, compress_kernel<T>, reinterpret_cast<T*>(a.out.data),
           a.out.stride, places_of(a.rows), a.positions, a.ratio, a.round_to_bf16);
  });
}

}  // namespace deepinfer::cuda
