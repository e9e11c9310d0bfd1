// Linear kernels for AMX with BF16: one TDPBF16PS multiplies up to 16 tokens by a group of 32 columns of 16 rows. Its
// operands are what packed tiles decode to and what repacked inputs are: a line a pair of columns, a token a line.
//
// Scales become part of the decoded weights, which as powers of two changes no rounding, so that sums stay in registers
// from one group to the next.
#include <immintrin.h>

#include "backends/cpu/linear_unit.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/linear_avx512.inc"
#include "backends/cpu/linear_bf16_formats.inc"

constexpr int kBlockTokens = 16;                    // lines of a register
constexpr int kLinesBytes = 16 * kLineBytes;        // of a decoded group of one tile
constexpr int64_t kTokenBytes = kGroupColumns * 2;  // of a group

// The compiler's own names for these are macros, which take no template argument for the register; and its name for
// loading a configuration does not tell it that all 64 bytes are read.
template <int kRegister>
[[gnu::always_inline]] inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kRegister));
}
template <int kRegister>
[[gnu::always_inline]] inline void load_tile(const void* lines, int64_t stride = kLineBytes) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(lines), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
[[gnu::always_inline]] inline void store_tile(void* lines, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(lines), "r"(stride), "i"(kRegister) : "memory");
}
template <int kSum, int kInput, int kWeights>
[[gnu::always_inline]] inline void multiply_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kInput), "i"(kWeights));
}

// Registers of kBlocks blocks of tokens times up to kTiles tiles: four sums, the blocks' inputs, the rest for weights.
template <int kBlocks>
struct Registers {
  static constexpr int kTiles = 4 / kBlocks;
  static constexpr int sum(int block, int tile) { return block * kTiles + tile; }
  static constexpr int input(int block) { return 4 + block; }
  static constexpr int weights(int tile) { return 4 + kBlocks + tile % (4 - kBlocks); }

  // Weights have 16 lines; inputs and sums as many as a block has tokens.
  static void configure(int block_tokens) {
    struct {
      unsigned char palette = 1, start_row = 0, reserved[14] = {};
      unsigned short line_bytes[16] = {};
      unsigned char num_lines[16] = {};
    } config;
    static_assert(sizeof(config) == 64);
    for (int i = 0; i < 8; ++i) {
      config.line_bytes[i] = kLineBytes;
      config.num_lines[i] = static_cast<unsigned char>(i < weights(0) ? block_tokens : 16);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  static void release() { __asm__ volatile("tilerelease"); }
};

// What to add to the exponents of decoded weights, for each row twice. Scales are held to those whose weights are
// neither subnormal nor infinite.
struct Exponents {
  __m512i shift;
  bool any_positive;
};

[[gnu::always_inline]] inline Exponents exponents(Fp8, const std::byte* scale) {
  int exponent = *reinterpret_cast<const int*>(scale) >> 23;  // scales are positive
  exponent = (exponent < 10 ? 10 : exponent > 246 ? 246 : exponent) - 127;
  return {_mm512_set1_epi16(static_cast<short>(exponent * 128)), exponent > 0};
}
[[gnu::always_inline]] inline Exponents exponents(Mxfp4, const std::byte* scales) {
  const __m128i codes = _mm_load_si128(reinterpret_cast<const __m128i*>(scales));
  const __m128i held = _mm_min_epu8(_mm_max_epu8(codes, _mm_set1_epi8(2)), _mm_set1_epi8(static_cast<char>(252)));
  const __m512i rows = _mm512_sub_epi32(_mm512_cvtepu8_epi32(held), _mm512_set1_epi32(127));
  // Both halves of each lane, the lower one without its sign.
  const __m512i shift = _mm512_ternarylogic_epi32(_mm512_slli_epi32(rows, 23), _mm512_slli_epi32(rows, 7),
                                                  _mm512_set1_epi32(0xFFFF), 0xF8);
  return {shift, _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_set1_epi8(-1))) != 0};
}

// Decodes one group of a tile to 16 lines. Saturation keeps zeros, which have a minus, from exponents that shrink.
template <class Format, bool kAnyPositive>
[[gnu::always_inline]] inline void decode_lines(const std::byte* from, __m512i shift, std::byte* lines) {
  for (int line = 0; line < Format::kLines; ++line, from += kLineBytes) {
    __builtin_prefetch(from + kPrefetchBytes);
    Format::decode(
        Index<0>{}, from, [&](auto step, __m512i weights) __attribute__((always_inline)) {
          __m512i scaled;
          if constexpr (kAnyPositive) {
            const __mmask32 nonzero = _mm512_test_epi16_mask(weights, _mm512_set1_epi16(0x7FFF));
            scaled = _mm512_mask_add_epi16(weights, nonzero, weights, shift);
          } else {
            scaled = _mm512_adds_epi16(weights, shift);
          }
          store_weights(lines + step * kLineBytes, scaled);
        });
    lines += Format::kSteps * kLineBytes;
  }
}
template <class Format>
[[gnu::noinline]] void decode_large(const std::byte* from, __m512i shift, std::byte* lines) {
  decode_lines<Format, true>(from, shift, lines);
}
template <class Format>
[[gnu::always_inline]] inline void decode_tile(const LinearUnit& unit, int tile, int64_t group, std::byte* lines) {
  const std::byte* from = unit.tiles + tile * unit.tile_bytes;
  const Exponents e = exponents(Format(), from + group * Format::kScaleBytes);
  from += unit.scales_bytes + group * Format::kLines * kLineBytes;
  if (e.any_positive) return decode_large<Format>(from, e.shift, lines);  // scales above 1: rare
  decode_lines<Format, false>(from, e.shift, lines);
}

// Where the lines of a group are: decoded, or in the weight itself.
struct Lines {
  const std::byte* first;
  int64_t tile_bytes;  // from one tile's to the next
};

// BF16 weights lie as registers take them.
[[gnu::always_inline]] inline Lines lines_of(const LinearUnit& unit, int tile, int64_t group) {
  return {unit.tiles + tile * unit.tile_bytes + group * kLinesBytes, unit.tile_bytes};
}
template <>
[[gnu::always_inline]] inline void decode_tile<Bf16>(const LinearUnit& unit, int tile, int64_t group, std::byte*) {
  const std::byte* from = lines_of(unit, tile, group).first;
  for (int line = 0; line < 16; ++line) __builtin_prefetch(from + line * kLineBytes + kPrefetchBytes);
}

// From one token's totals to the next.
inline int64_t row_bytes(const LinearUnit& unit) {
  return unit.num_tiles * kTileRows * static_cast<int64_t>(sizeof(float));
}

// The sums of kBlocks blocks and kTiles tiles += one group. before(tile) runs before the tile's weights are loaded.
template <int kBlocks, int kTiles, typename Before>
[[gnu::always_inline]] inline void multiply_group(const std::byte* input, int64_t block_bytes, const Lines& lines,
                                                  Before&& before) {
  using Use = Registers<kBlocks>;
  unroll<kBlocks>([&](auto block)
                      __attribute__((always_inline)) { load_tile<Use::input(block)>(input + block * block_bytes); });
  unroll<kTiles>([&](auto tile) __attribute__((always_inline)) {
    before(tile);
    load_tile<Use::weights(tile)>(lines.first + tile * lines.tile_bytes);
    unroll<kBlocks>([&](auto block) __attribute__((always_inline)) {
      multiply_tiles<Use::sum(block, tile), Use::input(block), Use::weights(tile)>();
    });
  });
}

// body(number of tiles, first tile): kMost at a time, then what is left.
template <int kMost, typename Body>
[[gnu::always_inline]] inline void for_chunks(int end, Body&& body, int begin = 0) {
  for (; end - begin >= kMost; begin += kMost) body(Index<kMost>{}, begin);
  if constexpr (kMost > 1) for_chunks<kMost / 2>(end, body, begin);
}

// One block of tokens: the sums of four tiles stay in registers from the first group to the last.
template <class Format>
void walk_block(const LinearUnit& unit) {
  using Use = Registers<1>;
  alignas(kLineBytes) std::byte decoded[2][Format::kIsPanel ? 1 : Use::kTiles * kLinesBytes];
  Use::configure(unit.num_tokens);
  for_chunks<Use::kTiles>(unit.num_tiles, [&](auto tiles, int first_tile) {
    const auto decode = [&](int tile, int64_t group) __attribute__((always_inline)) {
      decode_tile<Format>(unit, first_tile + tile, group, decoded[group % 2] + tile * kLinesBytes);
    };
    unroll<tiles>([&](auto tile) __attribute__((always_inline)) {
      zero_tile<Use::sum(0, tile)>();
      decode(tile, 0);
    });
    for (int64_t group = 0; group < unit.num_groups; ++group) {
      Lines lines = {decoded[group % 2], kLinesBytes};
      if constexpr (Format::kIsPanel) lines = lines_of(unit, first_tile, group);
      // The next group's, between the loads of this one: what was just written takes a while before it can be read, and
      // loads of registers leave most of the processor idle.
      multiply_group<1, tiles>(
          unit.input + group * unit.input_group_bytes, 0, lines, [&](int tile) __attribute__((always_inline)) {
            if (group + 1 < unit.num_groups) decode(tile, group + 1);
          });
    }
    unroll<tiles>([&](auto tile) __attribute__((always_inline)) {
      store_tile<Use::sum(0, tile)>(unit.totals + (first_tile + tile) * kTileRows, row_bytes(unit));
    });
  });
  Use::release();
}

// A unit of several blocks: pairs of them, of equal size. Tokens beyond the last are whatever follows in memory, and so
// are their sums.
struct Pairs {
  explicit Pairs(int num_tokens)
      : count((num_tokens + 2 * kBlockTokens - 1) / (2 * kBlockTokens)),
        block((num_tokens + 2 * count - 1) / (2 * count)) {}
  int count;
  int block;  // tokens
};

// Some groups of columns, and the weights of some tiles there.
struct Columns {
  int64_t first_group;
  int num_groups;
  Lines lines;
  int64_t group_bytes;  // from one group's lines to the next
};

// The totals of a pair and kTiles tiles += some columns.
template <int kTiles>
void add_columns(const LinearUnit& unit, const Pairs& pairs, int pair, int first_tile, const Columns& columns) {
  using Use = Registers<2>;
  const int64_t first_token = 2 * pair * pairs.block;
  const std::byte* input = unit.input + columns.first_group * unit.input_group_bytes + first_token * kTokenBytes;
  std::byte* totals =
      reinterpret_cast<std::byte*>(unit.totals + first_tile * kTileRows) + first_token * row_bytes(unit);
  const auto for_sums = [&](auto&& body) __attribute__((always_inline)) {
    unroll<2 * kTiles>([&](auto i) __attribute__((always_inline)) {
      constexpr int kBlock = i / kTiles, kTile = i % kTiles;
      body(Index<Use::sum(kBlock, kTile)>{}, totals + kBlock * pairs.block * row_bytes(unit) + kTile * kLineBytes);
    });
  };
  for_sums([&](auto sum, std::byte* at) __attribute__((always_inline)) {
    if (columns.first_group == 0) {
      zero_tile<sum>();
    } else {
      load_tile<sum>(at, row_bytes(unit));
    }
  });
  for (int group = 0; group < columns.num_groups; ++group, input += unit.input_group_bytes) {
    const Lines lines = {columns.lines.first + group * columns.group_bytes, columns.lines.tile_bytes};
    multiply_group<2, kTiles>(input, pairs.block * kTokenBytes, lines, [](int) {});
  }
  for_sums([&](auto sum, std::byte* at) __attribute__((always_inline)) { store_tile<sum>(at, row_bytes(unit)); });
}

// Decodes some groups of a few tiles into the first-level cache and reuses them for every pair of blocks.
template <class Format>
void multiply_blocks(const LinearUnit& unit) {
  constexpr int kTiles = 4, kGroups = 8;
  alignas(kLineBytes) std::byte decoded[Format::kIsPanel ? 1 : kTiles * kGroups * kLinesBytes];
  const Pairs pairs(unit.num_tokens);
  Registers<2>::configure(pairs.block);
  for (int first_tile = 0; first_tile < unit.num_tiles; first_tile += kTiles) {
    const int num_tiles = unit.num_tiles - first_tile < kTiles ? unit.num_tiles - first_tile : kTiles;
    for (int64_t group = 0; group < unit.num_groups; group += kGroups) {
      Columns columns = {group,
                         static_cast<int>(unit.num_groups - group < kGroups ? unit.num_groups - group : kGroups),
                         {decoded, kGroups * kLinesBytes},
                         kLinesBytes};
      if constexpr (Format::kIsPanel) columns.lines = lines_of(unit, first_tile, group);
      for (int i = 0; i < num_tiles * columns.num_groups; ++i) {
        const int tile = i / columns.num_groups, at = i % columns.num_groups;
        decode_tile<Format>(unit, first_tile + tile, group + at, decoded + (tile * kGroups + at) * kLinesBytes);
      }
      for (int pair = 0; pair < pairs.count; ++pair) {
        for_chunks<Registers<2>::kTiles>(num_tiles, [&](auto tiles, int tile) {
          Columns of_tiles = columns;
          of_tiles.lines.first += tile * columns.lines.tile_bytes;
          add_columns<tiles>(unit, pairs, pair, first_tile + tile, of_tiles);
        });
      }
    }
  }
  Registers<2>::release();
}

template <class Format>
void run_on_tiles(const LinearUnit& unit) {
  if (unit.num_tokens <= kBlockTokens) {
    walk_block<Format>(unit);
  } else {
    multiply_blocks<Format>(unit);
  }
}

}  // namespace

constinit const LinearUnitFunctions kAmxUnits = {{run_on_tiles<Fp8>, run_on_tiles<Mxfp4>, run_on_tiles<Bf16>, nullptr},
                                                 {1, 1, 1, 1}};

}  // namespace deepinfer::cpu
