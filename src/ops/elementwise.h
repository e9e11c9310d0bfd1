// Ops that treat every token on its own: embedding, RMS norm, the fake quantisers, rotary position embedding, SwiGLU,
// and writing rows into a cache. Where the model rounds to BF16 the op is asked to.
//
// A token whose position is negative is a padding row of a recorded step: what it gets is undefined, and nothing of it
// is written anywhere but into its own rows.
#pragma once

#include <cstdint>
#include <optional>

#include "base/number_formats.h"
#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

// out[t, s, :] = table[tokens[t], :] for every stream s.
struct EmbedArgs {
  TensorView out;                    // [num_tokens, num_streams * hidden]
  const int32_t* tokens = nullptr;   // [num_tokens], each in [0, vocabulary)
  const std::byte* table = nullptr;  // BF16 [vocabulary, hidden], row-major, any alignment
  int64_t hidden = 0;
};
void embed(Stream& stream, const EmbedArgs& args);

// out = weight * in / sqrt(mean(in^2) + eps), one statistic a row. `out` may be `in`. With `quantised`, also out
// through FakeQuant::kE4m3Group32.
struct RmsNormArgs {
  TensorView out;      // [num_rows, width]
  ConstTensorView in;  // [num_rows, width], width % 16 == 0; with `quantised` % 32 == 0
  const float* weight = nullptr;
  float eps = 0;
  bool round_to_bf16 = false;
  TensorView quantised = {};  // [num_rows, width] or absent
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
  TensorView out;      // [num_rows, width], width a multiple of the group
  ConstTensorView in;  // finite
};
void fake_quant(Stream& stream, const FakeQuantArgs& args);

// cosine and sine of fp32(position) * frequency, the product rounded to fp32 as the model defines it. The position is
// that of the first token of the token's group of `ratio`: positions[t] / ratio * ratio.
struct RopeAnglesArgs {
  MatrixView<float> cosine;            // [num_rows, num_pairs]
  MatrixView<float> sine;              // [num_rows, num_pairs]
  const int64_t* positions = nullptr;  // [num_rows]
  const float* frequencies = nullptr;  // [num_pairs]
  int64_t ratio = 1;
};
void rope_angles(Stream& stream, const RopeAnglesArgs& args);

// Rotates the last 2 * num_pairs channels of each head, adjacent channels forming a pair, in place. With `quantise` the
// rows then become fake_quant of them.
struct RopeArgs {
  TensorView data;  // [num_rows, num_heads * head_dim]
  int64_t num_heads = 1;
  MatrixView<const float> cosine;  // [num_rows, num_pairs]
  MatrixView<const float> sine;    // [num_rows, num_pairs]
  bool inverse = false;
  bool round_to_bf16 = false;
  std::optional<FakeQuant> quantise = std::nullopt;  // head_dim a multiple of the group
};
void rope(Stream& stream, const RopeArgs& args);

// out = silu(min(gate, limit)) * clamp(up, -limit, limit) * row_weight. `out` may be `gate`.
struct SwigluArgs {
  TensorView out;                     // [num_rows, width]
  ConstTensorView gate;               // [num_rows, width]
  ConstTensorView up;                 // [num_rows, width]
  const float* row_weight = nullptr;  // [num_rows], or null for 1
  float limit = 0;
  bool round_to_bf16 = false;
};
void swiglu(Stream& stream, const SwigluArgs& args);

// out[i] = in[rows[i]], `rows` in device memory. Both of one element type.
struct GatherRowsArgs {
  TensorView out;                 // [num_rows, width]
  ConstTensorView in;             // [any, width]
  const int32_t* rows = nullptr;  // [num_rows]
};
void gather_rows(Stream& stream, const GatherRowsArgs& args);

// Writes the rows of tokens that close a group of `ratio` (positions[t] + 1 divisible by it): in[t] becomes row
// positions[t] / ratio of the token's table. Other tokens and padding rows write nothing. With `cosine` the row is
// rotated first (rope, one head). With `quantise` the row's values are those of the quantiser. A packed type holds the
// values of its own quantiser without loss, whether or not it is asked for: codes and scales come from `in`. (Never
// from the values: a small E4M3 scale is not found again in what it made.) Values of another quantiser, or of none, are
// quantised once more, by the type's own.
struct WriteRowsArgs {
  ConstTensorView in;  // [num_tokens, width], finite for packed types
  RowTables tables;
  const int64_t* positions = nullptr;  // [num_tokens]
  int64_t ratio = 1;
  std::optional<FakeQuant> quantise = std::nullopt;
  MatrixView<const float> cosine = {};  // [num_tokens, num_pairs]; data null: no rotation
  MatrixView<const float> sine = {};
  bool round_to_bf16 = false;  // the rotated channels
};
void write_rows(Stream& stream, const WriteRowsArgs& args);

}  // namespace deepinfer::ops
