// What the experts' loops are made of when the number of rows and the format are found out at run time.
#pragma once

#include "backends/cuda/experts_wgmma.cuh"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {

inline constexpr int kRowUnit = 8;  // rows of an instruction: a multiple

// Two instructions of N rows, which use the first N / 2 of the sums.
template <int N, int kSums>
__device__ __forceinline__ void multiply_32(float (&d)[kSums], const uint32_t* a, uint32_t b, int accumulate) {
  float(&part)[N / 2] = reinterpret_cast<float(&)[N / 2]>(d);
  wgmma_fence();
  multiply_16<N>(part, a, wgmma_descriptor_from(b), accumulate);
  multiply_16<N>(part, a + 4, wgmma_descriptor_from(b + 2), 1);
  wgmma_commit();
}
// `n` in units of kRowUnit lies in [kLow, kHigh]. Loops with N known to the compiler would be shorter, but it keeps
// registers for the operands of each of them.
template <int kLow, int kHigh, int kSums>
__device__ __forceinline__ void multiply_any(float (&d)[kSums], int n, const uint32_t* a, uint32_t b, int accumulate) {
  constexpr int kMiddle = (kLow + kHigh) / 2;
  if constexpr (kLow == kHigh) {
    multiply_32<kHigh * kRowUnit>(d, a, b, accumulate);
  } else if (n <= kMiddle * kRowUnit) {
    multiply_any<kLow, kMiddle>(d, n, a, b, accumulate);
  } else {
    multiply_any<kMiddle + 1, kHigh>(d, n, a, b, accumulate);
  }
}

// TileShare of either format: what is found out at run time costs less than loops of their own.
struct EitherShare {
  uint4 codes;
  uint32_t scales;

  // The operands of the first 32 columns; then those of the others.
  __device__ __forceinline__ void first(bool fp4, const std::byte* tile, int thread, int exponent, uint32_t (&a)[8]) {
    codes = reinterpret_cast<const uint4*>(tile)[thread];
    if (fp4) {
      scales = reinterpret_cast<const uint32_t*>(tile + 2048)[thread / 4];
      convert_e2m1(codes.x, codes.y, 0x4140, exponent, a);
    } else {
      scales = reinterpret_cast<const uint16_t*>(tile + 4096)[thread / 64];
      convert_e4m3(0x4040, exponent, a);
    }
  }
  __device__ __forceinline__ void second(bool fp4, const std::byte* tile, int thread, int exponent, uint32_t (&a)[8]) {
    if (fp4) {
      convert_e2m1(codes.z, codes.w, 0x4342, exponent, a);
    } else {
      codes = reinterpret_cast<const uint4*>(tile)[128 + thread];
      convert_e4m3(0x4141, exponent, a);
    }
  }

 private:
  // The multipliers of two rows in one register, of which an instruction takes either half.
  __device__ __forceinline__ void convert_e2m1(uint32_t low_codes, uint32_t high_codes, uint32_t bytes, int exponent,
                                               uint32_t (&a)[8]) const {
    uint32_t both = __byte_perm(scales, 0, bytes), low, high;
    both = both * 128 + exponent * 0x00800080u;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\nmov.b32 %0, {l, l};\nmov.b32 %1, {h, h};\n}"
        : "=r"(low), "=r"(high)
        : "r"(both));
    split_e2m1(low_codes, a);
    split_e2m1(high_codes, a + 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = multiply_bf16x2(a[i], i % 2 == 0 ? low : high);
  }
  __device__ __forceinline__ void convert_e4m3(uint32_t bytes, int exponent, uint32_t (&a)[8]) const {
    const uint32_t multiplier = (__byte_perm(scales, 0, bytes) << 7) + exponent * 0x00800080u;
    split_e4m3(codes.x, a);
    split_e4m3(codes.y, a + 2);
    split_e4m3(codes.z, a + 4);
    split_e4m3(codes.w, a + 6);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = multiply_bf16x2(a[i], multiplier);
  }
};

}  // namespace deepinfer::cuda
