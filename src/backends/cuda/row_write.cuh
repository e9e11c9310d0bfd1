// What storing a row takes besides the row type's codec (rows.cuh): its rotation and the quantiser that goes before.
#pragma once

#include <optional>

#include "backends/cuda/rows.cuh"

namespace deepinfer::cuda {

// Angles of a row's pairs; null pointers: no rotation.
struct Angles {
  const float* cosine;
  const float* sine;
  int64_t cosine_stride, sine_stride;
  int channels;  // that are rotated: two a pair
};
inline Angles angles_of(const MatrixView<const float>& cosine, const MatrixView<const float>& sine) {
  DI_CHECK(cosine.cols % 4 == 0 && cosine.stride % 4 == 0 && sine.stride % 4 == 0 &&
               (reinterpret_cast<uintptr_t>(cosine.data) | reinterpret_cast<uintptr_t>(sine.data)) % 16 == 0,
           "angles of {} pairs, {} apart, do not come four at a time", cosine.cols, cosine.stride);
  return {cosine.data, sine.data, cosine.stride, sine.stride, cosine.data ? static_cast<int>(cosine.cols) * 2 : 0};
}

// Those of the channels [c, c + 8) of the rotated ones.
struct Angles8 {
  float4 cosine, sine;
};
__device__ inline Angles8 load_angles8(const Angles& angles, int64_t r, int c) {
  return {*reinterpret_cast<const float4*>(angles.cosine + r * angles.cosine_stride + c / 2),
          *reinterpret_cast<const float4*>(angles.sine + r * angles.sine_stride + c / 2)};
}

// Rotates v. Products and their sums are rounded one by one, as on the CPU.
__device__ inline void rotate8(float (&v)[8], const Angles8& angles, float sign, bool round) {
  const float cosines[4] = {angles.cosine.x, angles.cosine.y, angles.cosine.z, angles.cosine.w};
  const float sines[4] = {angles.sine.x, angles.sine.y, angles.sine.z, angles.sine.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float x = v[2 * j], y = v[2 * j + 1], cs = cosines[j], sn = sines[j] * sign;
    v[2 * j] = round_bf16_if(__fsub_rn(__fmul_rn(x, cs), __fmul_rn(y, sn)), round);
    v[2 * j + 1] = round_bf16_if(__fadd_rn(__fmul_rn(x, sn), __fmul_rn(y, cs)), round);
  }
}

// The quantiser that goes before the row type's own.
enum class Before { kNothing, kE4m3Group32, kE2m1Group16, kE2m1Group32 };

// Nothing goes before a type that holds the quantiser's own codes and scales.
inline Before before_row_type(ops::RowType type, const std::optional<ops::FakeQuant>& quantise) {
  if (!quantise) return Before::kNothing;
  switch (*quantise) {
    case ops::FakeQuant::kE4m3Group32:
      return type == ops::RowType::kE4m3Group32 ? Before::kNothing : Before::kE4m3Group32;
    case ops::FakeQuant::kE2m1Group16:
      return type == ops::RowType::kE2m1Group16 ? Before::kNothing : Before::kE2m1Group16;
    case ops::FakeQuant::kE2m1Group32:
      return type == ops::RowType::kE2m1Group32 ? Before::kNothing : Before::kE2m1Group32;
  }
  return Before::kNothing;
}

// Called by whole warps.
__device__ inline void quantise_before(Before before, float (&v)[8]) {
  if (before == Before::kE4m3Group32) fake_quantise8<E4m3Group32>(v);
  if (before == Before::kE2m1Group16) fake_quantise8<E2m1Group16>(v);
  if (before == Before::kE2m1Group32) fake_quantise8<E2m1Group32>(v);
}

// places_of rows whose values are written sixteen bytes at a time where they are plain numbers.
inline RowPlaces places_to_write(const ops::RowTables& tables) {
  const RowPlaces places = places_of(tables);
  const int64_t word = tables.type == ops::RowType::kF32 || tables.type == ops::RowType::kBf16 ? 16 : 1;
  DI_CHECK(places.offset % word == 0 && places.row_bytes % word == 0,
           "rows of {} bytes from {} do not begin at multiples of {}", places.row_bytes, places.offset, word);
  return places;
}

}  // namespace deepinfer::cuda
