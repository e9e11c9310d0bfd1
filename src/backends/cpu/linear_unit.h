// What the planner (linear_tiled.cc) hands to a vector kernel: a run of row tiles of one weight and a range of tokens.
//
// A tile is 16 rows. It holds its scales (none for BF16 and F32), padded to 64 bytes, and then one block for every
// group of 32 columns. A block is a sequence of 64-byte lines:
//   F32    32 lines of one column:    fp32[16 rows]
//   BF16   16 lines of two columns:   {even, odd}[16 rows]
//   FP8     8 lines of four columns   (see linear_pack.cc: the order inside a line depends on the vector width)
//   MXFP4   4 lines of eight columns  (likewise)
// FP8 has one fp32 scale a block, MXFP4 sixteen E8M0 bytes. Rows beyond the weight's last are zero. Kernels may read a
// few bytes before and after a line, so the last tile is followed by one more line.
//
// This header is included by files that are compiled for wider vectors than the rest of the program. They must not emit
// functions that the linker could merge with ours, so it stays free of the standard library's templates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::cpu {

constexpr int kTileRows = 16;
constexpr int kGroupColumns = 32;
constexpr int kLineBytes = 64;
constexpr int kMaxUnitTiles = 8;
constexpr int kMaxUnitTokens = 96;  // a multiple of the 6 tokens of a register tile, and of the 32 of two blocks
constexpr int kSlackTokens = 16;

struct LinearUnit {
  const std::byte* tiles = nullptr;
  int64_t tile_bytes = 0;
  int64_t scales_bytes = 0;  // offset of the first block in a tile
  int num_tiles = 0;         // 1 .. kMaxUnitTiles
  int64_t num_groups = 0;
  // [group][token][32] of fp32 or BF16, at the unit's first token. BF16 ones are followed by kSlackTokens of anything.
  const std::byte* input = nullptr;
  int64_t input_group_bytes = 0;
  int num_tokens = 0;       // 1 .. kMaxUnitTokens
  float* totals = nullptr;  // result: [num_tokens][num_tiles * 16], 64-byte aligned; has room for kMaxUnitTokens
};

using LinearUnitFunction = void (*)(const LinearUnit&);

// By ops::WeightFormat.
struct LinearUnitFunctions {
  LinearUnitFunction by_format[4];
  float input_scale[4];  // inputs come multiplied by this power of two
};

extern const LinearUnitFunctions kAvx2Units;       // lines in LineOrder::kYmm
extern const LinearUnitFunctions kAvx2LanesUnits;  // lines in LineOrder::kYmmLanes
extern const LinearUnitFunctions kAvx512Units;
extern const LinearUnitFunctions kAvx512Bf16Units;  // read BF16 pairs; none for F32
extern const LinearUnitFunctions kAmxUnits;         // likewise

}  // namespace deepinfer::cpu
