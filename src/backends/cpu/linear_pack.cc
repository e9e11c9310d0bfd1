#include "backends/cpu/linear_pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backends/cpu/linear_unit.h"
#include "base/check.h"
#include "base/number_formats.h"

namespace deepinfer::cpu {
namespace {

using ops::WeightFormat;

constexpr int64_t kHugePage = 2 << 20;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes of `count` values.
int64_t data_bytes(WeightFormat format, int64_t count) {
  switch (format) {
    case WeightFormat::kF8Tile32:
      return count;
    case WeightFormat::kMxfp4:
      return count / 2;
    case WeightFormat::kBf16:
      return count * 2;
    case WeightFormat::kF32:
      return count * 4;
  }
  return 0;
}

bool has_codes(WeightFormat format) { return format == WeightFormat::kF8Tile32 || format == WeightFormat::kMxfp4; }

int64_t scale_bytes_per_block(WeightFormat format) {
  if (format == WeightFormat::kF8Tile32) return sizeof(float);
  if (format == WeightFormat::kMxfp4) return kTileRows;
  return 0;
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// Each of these writes one row (`row` of 16) of one block, from its 32 columns at `from`.

void pack_f32_row(const std::byte* from, std::byte* block, int row) {
  for (int k = 0; k < kGroupColumns; ++k) std::memcpy(block + k * kLineBytes + row * 4, from + k * 4, 4);
}

void pack_bf16_row(const std::byte* from, std::byte* block, int row) {
  for (int pair = 0; pair < kGroupColumns / 2; ++pair) {
    std::memcpy(block + pair * kLineBytes + row * 4, from + pair * 4, 4);
  }
}

// Each half line is one pair of columns, {even, odd}[16 rows].
void pack_fp8_row(const std::byte* from, std::byte* block, int row) {
  for (int half = 0; half < 16; ++half) std::memcpy(block + half * 32 + row * 2, from + half * 2, 2);
}

// kYmm: each half line is four columns. A row has two adjacent bytes: the low nibbles are columns 0 and 1,
// the high ones 2 and 3; rows lie so that unpacking the two halves of each 128-bit lane gives rows 0-7 and 8-15.
//
// kZmm: a 32-bit lane is one row's eight columns; the low half has the even ones, ascending from the low nibble, and
// the high half the odd ones: four word lookups, each after a shift by one more nibble, give BF16 pairs, and lookups of
// whole lanes fp32.
void pack_mxfp4_row(const std::byte* from, std::byte* block, int row, LineOrder order) {
  const int place = order == LineOrder::kZmm ? row * 4 : row % 8 / 4 * 16 + row / 8 * 8 + row % 4 * 2;
  for (int part = 0; part < 2; ++part) {  // 16 columns each
    uint64_t v = load<uint64_t>(from + part * 8);
    // In every four nibbles the middle two change places.
    v = (v & 0xF00FF00FF00FF00F) | (v & 0x00F000F000F000F0) << 4 | (v & 0x0F000F000F000F00) >> 4;
    if (order == LineOrder::kZmm) {
      // In every four bytes the middle two: now each half of 32 bits has its even columns, then its odd ones.
      v = (v & 0xFF0000FFFF0000FF) | (v & 0x0000FF000000FF00) << 8 | (v & 0x00FF000000FF0000) >> 8;
      for (int i = 0; i < 2; ++i) {
        store(block + (part * 2 + i) * kLineBytes + place, static_cast<uint32_t>(v >> (32 * i)));
      }
      continue;
    }
    for (int i = 0; i < 4; ++i) store(block + (part * 4 + i) * 32 + place, static_cast<uint16_t>(v >> (16 * i)));
  }
}

void pack_row(const ops::WeightSource& source, const std::byte* from, std::byte* block, int row, LineOrder order) {
  switch (source.format) {
    case WeightFormat::kF8Tile32:
      return pack_fp8_row(from, block, row);
    case WeightFormat::kMxfp4:
      return pack_mxfp4_row(from, block, row, order);
    case WeightFormat::kBf16:
      return pack_bf16_row(from, block, row);
    case WeightFormat::kF32:
      return pack_f32_row(from, block, row);
  }
}

// What a lane of kYmmLanes must give: `plain`, its own bits where codes lie in it, and `mixed`, the wanted bits of its
// exclusive or with itself moved down by a byte (whose highest is the lowest of `next`, the lane that follows). Every
// mixed bit can choose one of its two: at kUpper the higher, elsewhere its own, since the other is known by then.
template <uint32_t kUpper, uint32_t kOwn>
uint32_t lane_of(uint32_t plain, uint32_t mixed, uint32_t next) {
  uint32_t lane = plain | ((mixed ^ plain) & kUpper) << 8;
  for (uint32_t byte = 0xFF000000; byte != 0; byte >>= 8) lane |= (mixed ^ lane >> 8 ^ next << 24) & kOwn & byte;
  return lane;
}

// Four columns: the codes that linear_avx2.cc reads from the lane, from two bytes lower, and mixed after two shifts.
uint32_t fp8_lane(const std::byte* from, uint32_t next) {
  const auto at = [from](int column, int shift) {
    const uint32_t code = load<uint8_t>(from + column);
    return ((code & 0x80) << 24 | (code & 0x7F) << 20) >> shift;
  };
  return lane_of<0x00700070, 0x080F080F>(at(0, 0) | at(1, 16), at(2, 4) | at(3, 20), next);
}

// Eight columns, likewise.
uint32_t mxfp4_lane(const std::byte* from, uint32_t next) {
  const auto at = [codes = load<uint32_t>(from)](int column, int shift) {
    const uint32_t code = codes >> (4 * column) & 15;
    return ((code & 8) << 28 | (code & 7) << 22) >> shift;
  };
  return lane_of<0x00540054, 0x22232223>(at(0, 0) | at(1, 4) | at(2, 16) | at(3, 20),
                                         at(4, 2) | at(5, 6) | at(6, 18) | at(7, 22), next);
}

// A line is 16 lanes, one a row. From the last to the first, since each depends on the one that follows in memory.
void pack_lanes(const ops::WeightSource& source, int64_t first_row, int num_rows, std::byte* blocks) {
  const bool is_fp8 = source.format == WeightFormat::kF8Tile32;
  const int64_t row_bytes = data_bytes(source.format, source.cols);
  for (int64_t line = row_bytes / 4 - 1; line >= 0; --line) {
    for (int row = kTileRows - 1; row >= 0; --row) {
      constexpr std::byte kZeros[4] = {};
      const std::byte* from = row < num_rows ? source.data + (first_row + row) * row_bytes + line * 4 : kZeros;
      std::byte* lane = blocks + line * kLineBytes + row * 4;
      const uint32_t next = load<uint8_t>(lane + 4);
      store(lane, is_fp8 ? fp8_lane(from, next) : mxfp4_lane(from, next));
    }
  }
}

void pack_scales(const ops::WeightSource& source, int64_t first_row, std::byte* tile) {
  const int64_t groups = source.cols / kGroupColumns;
  std::memset(tile, 0, tile_scales_bytes(source.format, source.cols));
  if (source.format == WeightFormat::kF8Tile32) {
    const std::byte* scales = source.scales + first_row / 32 * groups;
    for (int64_t g = 0; g < groups; ++g) store(tile + g * 4, e8m0_to_float(static_cast<uint8_t>(scales[g])));
  } else if (source.format == WeightFormat::kMxfp4) {
    const int64_t num_rows = std::min<int64_t>(kTileRows, source.rows - first_row);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t g = 0; g < groups; ++g) tile[g * kTileRows + row] = source.scales[(first_row + row) * groups + g];
    }
  }
}

void pack_tile(const ops::WeightSource& source, int64_t first_row, LineOrder order, std::byte* tile) {
  const int num_rows = static_cast<int>(std::min<int64_t>(kTileRows, source.rows - first_row));
  std::byte* block = tile + tile_scales_bytes(source.format, source.cols);
  if (order == LineOrder::kYmmLanes && has_codes(source.format)) return pack_lanes(source, first_row, num_rows, block);
  const int64_t block_bytes = data_bytes(source.format, kTileRows * kGroupColumns);
  const int64_t group_bytes = data_bytes(source.format, kGroupColumns);
  const int64_t row_bytes = data_bytes(source.format, source.cols);
  if (num_rows < kTileRows) std::memset(block, 0, data_bytes(source.format, kTileRows * source.cols));
  for (int64_t g = 0; g < source.cols / kGroupColumns; ++g, block += block_bytes) {
    const std::byte* from = source.data + first_row * row_bytes + g * group_bytes;
    for (int row = 0; row < num_rows; ++row) pack_row(source, from + row * row_bytes, block, row, order);
  }
}

}  // namespace

int64_t weight_data_bytes(const ops::WeightSource& source) {
  return data_bytes(source.format, source.rows * source.cols);
}

int64_t weight_scale_bytes(const ops::WeightSource& source) {
  const int64_t groups = source.cols / kGroupColumns;
  if (source.format == WeightFormat::kF8Tile32) return (source.rows + 31) / 32 * groups;
  if (source.format == WeightFormat::kMxfp4) return source.rows * groups;
  return 0;
}

int64_t tile_scales_bytes(WeightFormat format, int64_t cols) {
  return round_up(cols / kGroupColumns * scale_bytes_per_block(format), kLineBytes);
}

int64_t tile_bytes(WeightFormat format, int64_t cols) {
  return tile_scales_bytes(format, cols) + data_bytes(format, kTileRows * cols);
}

ops::PackedWeight allocate_weight(const ops::WeightSource& source, int64_t bytes) {
  DI_CHECK(source.cols % kGroupColumns == 0, "a weight of {} columns: need whole groups of 32", source.cols);
  const bool is_large = bytes >= 2 * kHugePage;
  const int64_t allocated = round_up(std::max<int64_t>(bytes, 1), kLineBytes);
  void* memory =
      std::aligned_alloc(is_large ? kHugePage : kLineBytes, is_large ? round_up(allocated, kHugePage) : allocated);
  DI_CHECK(memory != nullptr, "no memory for a packed weight of {} bytes", bytes);
  if (is_large) madvise(memory, allocated, MADV_HUGEPAGE);  // a wish: nothing is lost where it is refused
  return {source.format, source.rows, source.cols, bytes,
          std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); })};
}

ops::PackedWeight pack_tiles(ThreadPool& pool, const ops::WeightSource& source, LineOrder order) {
  const int64_t num_tiles = (source.rows + kTileRows - 1) / kTileRows;
  const int64_t bytes = tile_bytes(source.format, source.cols);
  ops::PackedWeight packed = allocate_weight(source, num_tiles * bytes + kLineBytes);
  std::byte* tiles = packed.data.get();
  std::memset(tiles + num_tiles * bytes, 0, kLineBytes);
  // All scales first: the last lane of a tile depends on the byte that follows.
  pool.run(num_tiles, [&](int64_t tile, int) { pack_scales(source, tile * kTileRows, tiles + tile * bytes); });
  pool.run(num_tiles, [&](int64_t tile, int) { pack_tile(source, tile * kTileRows, order, tiles + tile * bytes); });
  return packed;
}

}  // namespace deepinfer::cpu
