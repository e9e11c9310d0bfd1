// pack_weight: uploads a matrix in pieces and rearranges each on the card into the tiles of weight_tiles.cuh.
#include <algorithm>
#include <climits>
#include <cmath>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{32} << 20;  // of codes on their way

// The scales' bytes of a matrix: of all blocks, and of those that count (not all zeros, or a NaN's).
struct ScaleRange {
  int smallest = INT_MAX, largest = INT_MIN;
  int any_smallest = INT_MAX, any_largest = INT_MIN;
  int has_nan = 0;
};

// Rows first_row ... of a matrix, where the pieces' codes and the whole matrix's scales are in device memory.
struct PackParams {
  WeightFormat format;
  const uint8_t* codes;
  const uint8_t* scales;
  std::byte* tiles;
  int64_t rows, cols, first_row, column_tiles;
  ScaleRange* range;
};

__device__ uint32_t source_value(const PackParams& p, int64_t row, int64_t col) {
  if (row >= p.rows || col >= p.cols) return 0;
  const int64_t at = (row - p.first_row) * p.cols + col;
  if (p.format == WeightFormat::kF8Tile32) return p.codes[at];
  if (p.format == WeightFormat::kMxfp4) return p.codes[at / 2] >> (at % 2 * 4) & 15;
  return reinterpret_cast<const uint16_t*>(p.codes)[at];
}

__device__ uint32_t source_scale(const PackParams& p, int64_t row, int64_t col) {
  if (row >= p.rows || col >= p.cols) return 127;
  const int64_t at = (p.format == WeightFormat::kF8Tile32 ? row / 32 : row) * (p.cols / 32) + col / 32;
  return p.scales[at];
}

__device__ void note_scale(ScaleRange* range, uint32_t byte, bool counts) {
  const int b = static_cast<int>(byte);
  atomicMin(&range->any_smallest, b);
  atomicMax(&range->any_largest, b);
  if (!counts && b != 255) return;
  atomicMin(&range->smallest, b);
  atomicMax(&range->largest, b);
}

// One tile; thread t builds what thread t of a warpgroup will read.
__global__ void __launch_bounds__(128) pack_kernel(const PackParams p) {
  __shared__ int nonzero[kTileRows * 2];  // of a block with a scale: by row and column half, or in the first four
  __shared__ ScaleRange range;
  const int thread = threadIdx.x, row0 = thread / 32 * 16 + thread % 32 / 4, col0 = thread % 4 * 2;
  const int64_t tile_row = p.first_row / kTileRows + blockIdx.y;
  std::byte* tile = p.tiles + (tile_row * p.column_tiles + blockIdx.x) * tile_bytes(p.format);
  nonzero[thread] = 0;
  if (thread == 0) range = ScaleRange();
  __syncthreads();
  bool nan = false;
  for (int step = 0; step < 4; ++step) {
    uint32_t pairs[4];
    for (int i = 0; i < 4; ++i) {
      const int row = row0 + i % 2 * 8, col = step * 16 + col0 + i / 2 * 8;
      uint32_t v[2];
      for (int j = 0; j < 2; ++j) {
        v[j] = source_value(p, tile_row * kTileRows + row, static_cast<int64_t>(blockIdx.x) * kTileCols + col + j);
      }
      if (p.format == WeightFormat::kBf16) {
        pairs[i] = v[0] | v[1] << 16;
        continue;
      }
      const bool f8 = p.format == WeightFormat::kF8Tile32;
      const uint32_t magnitude = f8 ? 0x7F : 7;
      nan = nan || (f8 && ((v[0] & magnitude) == 0x7F || (v[1] & magnitude) == 0x7F));
      if (((v[0] | v[1]) & magnitude) != 0) nonzero[f8 ? row / 32 * 2 + col / 32 : row * 2 + col / 32] = 1;
      pairs[i] = f8 ? e4m3_bits(v[0]) | e4m3_bits(v[1]) << 16 : e2m1_bits(v[0]) | e2m1_bits(v[1]) << 16;
    }
    auto* words = reinterpret_cast<uint32_t*>(tile);
    if (p.format == WeightFormat::kF8Tile32) {
      words[(step / 2 * 128 + thread) * 4 + step % 2 * 2] = join_e4m3(pairs[0], pairs[1]);
      words[(step / 2 * 128 + thread) * 4 + step % 2 * 2 + 1] = join_e4m3(pairs[2], pairs[3]);
    } else if (p.format == WeightFormat::kMxfp4) {
      words[thread * 4 + step] = join_e2m1(pairs);
    } else {
      for (int i = 0; i < 4; ++i) words[(step * 128 + thread) * 4 + i] = pairs[i];
    }
  }
  if (p.format == WeightFormat::kBf16) return;
  __syncthreads();
  if (nan) range.has_nan = 1;
  const bool f8 = p.format == WeightFormat::kF8Tile32;
  if (thread < (f8 ? 16 : 128)) {
    uint8_t byte = 0;
    if (f8 && thread < 4) {
      const int64_t row = tile_row * kTileRows + thread / 2 * 32, col = blockIdx.x * kTileCols + thread % 2 * 32;
      byte = source_scale(p, row, col);
      note_scale(&range, byte, nonzero[thread] != 0);
    } else if (!f8) {  // thread: row / 16, row % 8, column half, row / 8 % 2
      const int row = thread / 32 * 16 + thread / 4 % 8 + thread % 2 * 8, half = thread / 2 % 2;
      byte = source_scale(p, tile_row * kTileRows + row, static_cast<int64_t>(blockIdx.x) * kTileCols + half * 32);
      note_scale(&range, byte, nonzero[row * 2 + half] != 0);
    }
    reinterpret_cast<uint8_t*>(tile)[(f8 ? 4096 : 2048) + thread] = byte;
  }
  __syncthreads();
  if (thread == 0) {
    atomicMin(&p.range->smallest, range.smallest);
    atomicMax(&p.range->largest, range.largest);
    atomicMin(&p.range->any_smallest, range.any_smallest);
    atomicMax(&p.range->any_largest, range.any_largest);
    if (range.has_nan != 0) p.range->has_nan = 1;
  }
}

// Scales of blocks of zeros may be anything, and must not make multipliers overflow.
__global__ void clamp_scales_kernel(std::byte* tiles, WeightFormat format, int smallest, int largest) {
  const bool f8 = format == WeightFormat::kF8Tile32;
  if (f8 && threadIdx.x >= 4) return;
  auto* byte = reinterpret_cast<uint8_t*>(tiles + static_cast<int64_t>(blockIdx.x) * tile_bytes(format)) +
               (f8 ? 4096 : 2048) + threadIdx.x;
  if (*byte != 255) *byte = static_cast<uint8_t>(min(max(static_cast<int>(*byte), smallest), largest));
}

struct PackedOwner {
  std::shared_ptr<std::byte> memory;
  PackedInfo info;
  void operator()(std::byte*) { memory.reset(); }
};

// The scales that a multiplier and its products with codes can express as normal BF16 numbers: the multiplier's largest
// exponent is 2^127, and the smallest product is 2^-9 (E4M3) or 2^-1 (E2M1) times the scale.
struct ScaleLimits {
  int smallest, largest;
};
ScaleLimits scale_limits(WeightFormat format) {
  if (format == WeightFormat::kF8Tile32) return {10, 254 - kE4m3Exponent};
  return {2, 254 - kE2m1Exponent};
}

PackedInfo choose_info(WeightFormat format, const ScaleRange& range) {
  PackedInfo info;
  const ScaleLimits limits = scale_limits(format);
  if (range.has_nan != 0 || range.largest == 255) {
    info.exact_only = true;
  } else if (range.smallest < limits.smallest || range.largest > limits.largest) {
    if (range.smallest > range.largest) return info;  // all zeros
    const int shift = range.largest - limits.largest;
    info.exact_only = range.smallest - shift < limits.smallest;
    info.scale_bias = -shift;
    info.output_scale = std::ldexp(1.0f, shift);
  }
  return info;
}

int64_t row_bytes(const ops::WeightSource& source) {
  switch (source.format) {
    case WeightFormat::kF8Tile32:
      return source.cols;
    case WeightFormat::kMxfp4:
      return source.cols / 2;
    case WeightFormat::kBf16:
      return source.cols * 2;
    default:
      return source.cols * 4;
  }
}

int64_t scale_bytes(const ops::WeightSource& source) {
  if (source.format == WeightFormat::kF8Tile32) return (source.rows + 31) / 32 * (source.cols / 32);
  return source.format == WeightFormat::kMxfp4 ? source.rows * (source.cols / 32) : 0;
}

PackedInfo pack_tiles(CudaStream& stream, const ops::WeightSource& source, std::byte* tiles, int64_t num_tiles) {
  const int64_t piece_rows = std::max<int64_t>(kPieceBytes / row_bytes(source) / kTileRows, 1) * kTileRows;
  const int64_t codes_bytes = (std::min(piece_rows, source.rows) * row_bytes(source) + 255) / 256 * 256;
  const int64_t scales_bytes = (scale_bytes(source) + 255) / 256 * 256;
  auto* codes = static_cast<std::byte*>(stream.scratch(codes_bytes + scales_bytes + sizeof(ScaleRange)));
  std::byte* scales = codes + codes_bytes;
  auto* device_range = reinterpret_cast<ScaleRange*>(scales + scales_bytes);
  ScaleRange range;
  stream.copy(scales, source.scales, scale_bytes(source));
  stream.copy(device_range, &range, sizeof(range));
  PackParams p{source.format,
               reinterpret_cast<const uint8_t*>(codes),
               reinterpret_cast<const uint8_t*>(scales),
               tiles,
               source.rows,
               source.cols,
               0,
               (source.cols + kTileCols - 1) / kTileCols,
               device_range};
  for (; p.first_row < source.rows; p.first_row += piece_rows) {
    const int64_t rows = std::min(piece_rows, source.rows - p.first_row);
    stream.copy(codes, source.data + p.first_row * row_bytes(source), rows * row_bytes(source));
    const dim3 grid(static_cast<unsigned>(p.column_tiles), static_cast<unsigned>((rows + kTileRows - 1) / kTileRows));
    pack_kernel<<<grid, 128, 0, stream.handle()>>>(p);
    DI_CUDA_CHECK_LAUNCH();
  }
  if (source.format == WeightFormat::kBf16) return PackedInfo();
  stream.copy(&range, device_range, sizeof(range));
  DI_CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
  const PackedInfo info = choose_info(source.format, range);
  if (range.any_smallest < range.smallest || range.any_largest > range.largest) {
    const ScaleLimits limits = scale_limits(source.format);
    const bool zeros = range.smallest > range.largest;
    clamp_scales_kernel<<<static_cast<unsigned>(num_tiles), 128, 0, stream.handle()>>>(
        tiles, source.format, zeros ? limits.smallest : range.smallest, zeros ? limits.largest : range.largest);
    DI_CUDA_CHECK_LAUNCH();
  }
  return info;
}

}  // namespace

PackedInfo packed_info(const ops::PackedWeight& weight) {
  const auto* owner = std::get_deleter<PackedOwner>(weight.data);
  DI_CHECK(owner != nullptr, "a [{}, {}] matrix that another backend packed", weight.rows, weight.cols);
  return owner->info;
}

ops::PackedWeight pack_weight(Stream& stream, const ops::WeightSource& source) {
  DI_CHECK(source.rows > 0 && source.cols > 0 && source.cols % 32 == 0,
           "a [{}, {}] matrix: columns come in groups of 32", source.rows, source.cols);
  CudaStream& cuda = cuda_stream(stream);
  ops::PackedWeight weight;
  weight.format = source.format, weight.rows = source.rows, weight.cols = source.cols;
  const int64_t num_tiles = row_tiles(weight) * column_tiles(weight);
  weight.bytes =
      source.format == WeightFormat::kF32 ? source.rows * source.cols * 4 : num_tiles * tile_bytes(source.format);
  PackedOwner owner{cuda.allocate(weight.bytes, fmt::format("a [{}, {}] matrix", source.rows, source.cols)), {}};
  std::byte* data = owner.memory.get();
  if (source.format == WeightFormat::kF32) {
    cuda.copy(data, source.data, weight.bytes);
  } else {
    owner.info = pack_tiles(cuda, source, data, num_tiles);
  }
  // Products fetch weights before the work ahead of them in the stream is complete.
  DI_CUDA_CHECK(cudaStreamSynchronize(cuda.handle()));
  weight.data = std::shared_ptr<std::byte>(data, std::move(owner));
  return weight;
}

}  // namespace deepinfer::cuda
