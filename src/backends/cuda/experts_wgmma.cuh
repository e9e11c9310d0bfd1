// The matrix instruction for every number of tokens up to 128 that the hardware has, a multiple of 8.
#pragma once

#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

// d[64 x N] += a[64 x 16] * b[N x 16]^T as Wgmma<N> does it; from zero unless `accumulate`.
template <int N>
__device__ __forceinline__ void multiply_16(float (&d)[N / 2], const uint32_t* a, uint64_t b, int accumulate);

// clang-format off
// Registers of sums, four by four: their places in the text, and the operands.
#define DI_PLACES_4 "%0, %1, %2, %3"
#define DI_PLACES_8 DI_PLACES_4 ", " "%4, %5, %6, %7"
#define DI_PLACES_12 DI_PLACES_8 ", " "%8, %9, %10, %11"
#define DI_PLACES_16 DI_PLACES_12 ", " "%12, %13, %14, %15"
#define DI_PLACES_20 DI_PLACES_16 ", " "%16, %17, %18, %19"
#define DI_PLACES_24 DI_PLACES_20 ", " "%20, %21, %22, %23"
#define DI_PLACES_28 DI_PLACES_24 ", " "%24, %25, %26, %27"
#define DI_PLACES_32 DI_PLACES_28 ", " "%28, %29, %30, %31"
#define DI_PLACES_36 DI_PLACES_32 ", " "%32, %33, %34, %35"
#define DI_PLACES_40 DI_PLACES_36 ", " "%36, %37, %38, %39"
#define DI_PLACES_44 DI_PLACES_40 ", " "%40, %41, %42, %43"
#define DI_PLACES_48 DI_PLACES_44 ", " "%44, %45, %46, %47"
#define DI_PLACES_52 DI_PLACES_48 ", " "%48, %49, %50, %51"
#define DI_PLACES_56 DI_PLACES_52 ", " "%52, %53, %54, %55"
#define DI_PLACES_60 DI_PLACES_56 ", " "%56, %57, %58, %59"
#define DI_PLACES_64 DI_PLACES_60 ", " "%60, %61, %62, %63"

#define DI_SUMS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define DI_SUMS_8 DI_SUMS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define DI_SUMS_12 DI_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define DI_SUMS_16 DI_SUMS_12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define DI_SUMS_20 DI_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define DI_SUMS_24 DI_SUMS_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define DI_SUMS_28 DI_SUMS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define DI_SUMS_32 DI_SUMS_28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define DI_SUMS_36 DI_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define DI_SUMS_40 DI_SUMS_36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define DI_SUMS_44 DI_SUMS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define DI_SUMS_48 DI_SUMS_44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define DI_SUMS_52 DI_SUMS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define DI_SUMS_56 DI_SUMS_52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define DI_SUMS_60 DI_SUMS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define DI_SUMS_64 DI_SUMS_60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

#ifdef DI_SM90A
#define DI_MULTIPLY_16(N, SUMS, A0, A1, A2, A3, B, P)                                                              \
  template <>                                                                                                      \
  __device__ __forceinline__ void multiply_16<N>(float (&d)[SUMS], const uint32_t* a, uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                                            \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" DI_PLACES_##SUMS "}, {%" #A0     \
                 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}\n"                                        \
                 : DI_SUMS_##SUMS                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)                             \
                 : "memory");                                                                                      \
  }
#else
#define DI_MULTIPLY_16(N, SUMS, A0, A1, A2, A3, B, P) \
  template <>                                         \
  __device__ __forceinline__ void multiply_16<N>(float (&)[SUMS], const uint32_t*, uint64_t, int) {}
#endif
DI_MULTIPLY_16(8, 4, 4, 5, 6, 7, 8, 9)
DI_MULTIPLY_16(16, 8, 8, 9, 10, 11, 12, 13)
DI_MULTIPLY_16(24, 12, 12, 13, 14, 15, 16, 17)
DI_MULTIPLY_16(32, 16, 16, 17, 18, 19, 20, 21)
DI_MULTIPLY_16(40, 20, 20, 21, 22, 23, 24, 25)
DI_MULTIPLY_16(48, 24, 24, 25, 26, 27, 28, 29)
DI_MULTIPLY_16(56, 28, 28, 29, 30, 31, 32, 33)
DI_MULTIPLY_16(64, 32, 32, 33, 34, 35, 36, 37)
DI_MULTIPLY_16(72, 36, 36, 37, 38, 39, 40, 41)
DI_MULTIPLY_16(80, 40, 40, 41, 42, 43, 44, 45)
DI_MULTIPLY_16(88, 44, 44, 45, 46, 47, 48, 49)
DI_MULTIPLY_16(96, 48, 48, 49, 50, 51, 52, 53)
DI_MULTIPLY_16(104, 52, 52, 53, 54, 55, 56, 57)
DI_MULTIPLY_16(112, 56, 56, 57, 58, 59, 60, 61)
DI_MULTIPLY_16(120, 60, 60, 61, 62, 63, 64, 65)
DI_MULTIPLY_16(128, 64, 64, 65, 66, 67, 68, 69)
#undef DI_MULTIPLY_16
// clang-format on

}  // namespace deepinfer::cuda
