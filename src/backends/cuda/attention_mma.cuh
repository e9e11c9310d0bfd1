// The matrix instructions of attention: both operands in shared memory, BF16 products, fp32 sums.
//
// A tile is R rows of 64 columns, a row 128 bytes, at a multiple of 1024 bytes, its 16-byte units swizzled as
// wgmma.cuh says. A matrix of 512 columns is eight tiles, one after the other. The keys' tiles serve twice: rows as the
// n of scores (sums run over columns), and rows as the k of the weighted sum (sums run over rows).
// Who holds what of d, and when registers may be touched: wgmma.cuh.
#pragma once

#include <cstdint>

#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kTileBytes = 64 * 128;

// Sums over columns. For columns 16s .. 16s + 15 of the tile add 2s.
__device__ __forceinline__ uint64_t columns_descriptor(uint32_t tile) { return wgmma_descriptor(tile); }
// Sums over rows, n counting columns through the tiles that follow. For rows 16s .. 16s + 15 add 128s.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t tile) {
  return static_cast<uint64_t>((tile & 0x3FFFF) >> 4) | uint64_t{kTileBytes / 16} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}
// Address of columns 8 unit .. 8 unit + 7 of a row.
__device__ __forceinline__ uint32_t unit_address(uint32_t tile, int row, int unit) {
  return tile + row * 128 + ((unit ^ (row & 7)) << 4);
}

// Weights of 16 keys as a: rows of 32 bytes, the units of row r in the order of unit ^ (r / 4 % 2).
__device__ __forceinline__ uint64_t piece_descriptor(uint32_t piece) {
  return static_cast<uint64_t>((piece & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{16} << 32 | uint64_t{3} << 62;
}

// Sums as operands of an instruction, and their places in its text.
#define DI_SUMS_8(d, i)                                                                                             \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define DI_SUMS_32(d, i) DI_SUMS_8(d, i), DI_SUMS_8(d, (i) + 8), DI_SUMS_8(d, (i) + 16), DI_SUMS_8(d, (i) + 24)
#define DI_PLACES_32                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DI_PLACES_40 DI_PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DI_PLACES_64                                                                                  \
  DI_PLACES_40                                                                                        \
  ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
#define DI_PLACES_128                                                                               \
  DI_PLACES_64                                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "                        \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "   \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// shape: the instruction's; a, b, any: places of the operands after the sums; transposed: 1 where sums run over b's
// rows.
#ifdef DI_SM90A
#define DI_MMA(shape, places, a_at, b_at, any_at, transposed, descriptor_a, descriptor_b, accumulate, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" any_at ", 0;\nwgmma.mma_async.sync.aligned." shape     \
               "k16.f32.bf16.bf16 {" places "}, %" a_at ", %" b_at ", p, 1, 1, 0, " transposed ";\n}\n"    \
               : __VA_ARGS__                                                                               \
               : "l"(descriptor_a), "l"(descriptor_b), "r"(accumulate)                                     \
               : "memory")
#else
#define DI_MMA(...)
#endif

// d[64 heads x 64 keys]
__device__ __forceinline__ void mma_scores(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  DI_MMA("m64n64", DI_PLACES_32, "32", "33", "34", "0", a, b, accumulate, DI_SUMS_32(d, 0));
}
// The same for 80 keys.
__device__ __forceinline__ void mma_scores(float (&d)[40], uint64_t a, uint64_t b, int accumulate) {
  DI_MMA("m64n80", DI_PLACES_40, "40", "41", "42", "0", a, b, accumulate, DI_SUMS_32(d, 0), DI_SUMS_8(d, 32));
}
// d[64 heads x 256 channels] += weights[64 x 16 keys] * values.
__device__ __forceinline__ void mma_values(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  DI_MMA("m64n256", DI_PLACES_128, "128", "129", "130", "1", a, b, accumulate, DI_SUMS_32(d, 0), DI_SUMS_32(d, 32),
         DI_SUMS_32(d, 64), DI_SUMS_32(d, 96));
}
// The same for 128 channels.
__device__ __forceinline__ void mma_values(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  DI_MMA("m64n128", DI_PLACES_64, "64", "65", "66", "1", a, b, accumulate, DI_SUMS_32(d, 0), DI_SUMS_32(d, 32));
}
// The same for 64 channels.
__device__ __forceinline__ void mma_values(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  DI_MMA("m64n64", DI_PLACES_32, "32", "33", "34", "1", a, b, accumulate, DI_SUMS_32(d, 0));
}

#undef DI_MMA
#undef DI_PLACES_128
#undef DI_PLACES_64
#undef DI_PLACES_40
#undef DI_PLACES_32
#undef DI_SUMS_32
#undef DI_SUMS_8

}  // namespace deepinfer::cuda
