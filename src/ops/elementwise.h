// Ops that treat every token on its own: embedding, RMS norm, the fake quantisers, rotary position embedding, SwiGLU,
// and writing rows into a cache. All activations are fp32 in memory; where the model rounds to BF16 the op is asked to.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/number_formats.h"
#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

// out[t, s, :] = table[tokens[t], :] for every stream s.
struct EmbedArgs {
  MatrixView<float> out;             // [num_tokens, num_streams * hidden]
  std::span<const int32_t> tokens;   // [num_tokens], each in [0, vocabulary)
  const std::byte* table = nullptr;  // BF16 [vocabulary, hidden], row-major, any alignment
  int64_t hidden = 0;
};
void embed(Stream& stream, const EmbedArgs& args);

// out = weight * in / sqrt(mean(in^2) + eps), one statistic a row. `out` may be `in`.
struct RmsNormArgs {
  MatrixView<float> out;       // [num_rows, width]
  MatrixView<const float> in;  // [num_rows, width], width % 16 == 0
  const float* weight = nullptr;
  float eps = 0;
  bool round_to_bf16 = false;
};
void rms_norm(Stream& stream, const RmsNormArgs& args);

// Quantise and dequantise; the result is exact in BF16. `out` may be `in`.
enum class FakeQuant : uint8_t {
  kE4m3Group32,  // linear inputs and window rows: power-of-two scale, largest value floored at 1e-4
  kE2m1Group16,  // compressed rows: E4M3 scale max/6, largest value floored at 6 * 2^-9
  kE2m1Group32,  // indexer: power-of-two scale, largest value floored at 6 * 2^-126
};
inline int64_t quantiser_group(FakeQuant kind) { return kind == FakeQuant::kE2m1Group16 ? 16 : 32; }
struct FakeQuantArgs {
  FakeQuant kind = FakeQuant::kE4m3Group32;
  MatrixView<float> out;       // [num_rows, width], width a multiple of the group
  MatrixView<const float> in;  // finite
};
void fake_quant(Stream& stream, const FakeQuantArgs& args);

// cosine and sine of fp32(position) * frequency, the product rounded to fp32 as the model defines it.
struct RopeAnglesArgs {
  MatrixView<float> cosine;            // [num_rows, num_pairs]
  MatrixView<float> sine;              // [num_rows, num_pairs]
  std::span<const int64_t> positions;  // [num_rows]
  std::span<const float> frequencies;  // [num_pairs]
};
void rope_angles(Stream& stream, const RopeAnglesArgs& args);

// Rotates the last 2 * num_pairs channels of each head, adjacent channels forming a pair. `out` may be `in`.
struct RopeArgs {
  MatrixView<float> data;  // [num_rows, num_heads * head_dim], in place
  int64_t num_heads = 1;
  MatrixView<const float> cosine;  // [num_rows, num_pairs]
  MatrixView<const float> sine;    // [num_rows, num_pairs]
  bool inverse = false;
  bool round_to_bf16 = false;
};
void rope(Stream& stream, const RopeArgs& args);

// out = silu(min(gate, limit)) * clamp(up, -limit, limit) * row_weight. `out` may be `gate`.
struct SwigluArgs {
  MatrixView<float> out;              // [num_rows, width]
  MatrixView<const float> gate;       // [num_rows, width]
  MatrixView<const float> up;         // [num_rows, width]
  const float* row_weight = nullptr;  // [num_rows], or null for 1
  float limit = 0;
  bool round_to_bf16 = false;
};
void swiglu(Stream& stream, const SwigluArgs& args);

// out[i] = in[rows[i]].
struct GatherRowsArgs {
  MatrixView<float> out;          // [num_rows, width]
  MatrixView<const float> in;     // [any, width]
  std::span<const int32_t> rows;  // [num_rows]
};
void gather_rows(Stream& stream, const GatherRowsArgs& args);

// Writes in[i] as row rows[i] of tables[i]. With `quantise` the row's values are those of the quantiser. A packed type
// holds the values of its own quantiser without loss, whether or not it is asked for: codes and scales come from `in`.
// (Never from the values: a small E4M3 scale is not found again in what it made.) Values of another quantiser, or of
// none, are quantised once more, by the type's own.
struct WriteRowsArgs {
  MatrixView<const float> in;               // [num_rows, width], finite for packed types
  std::span<const RowTable* const> tables;  // [num_rows]
  std::span<const int64_t> rows;            // [num_rows]
  std::optional<FakeQuant> quantise = std::nullopt;
};
void write_rows(Stream& stream, const WriteRowsArgs& args);

}  // namespace deepinfer::ops
