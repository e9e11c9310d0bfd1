// Latents: the small rows that projections leave (query latents, window rows, index keys), normalised, rotated,
// quantised and stored. All that becomes of them in one call, since each alone is too little work to start for.
#pragma once

#include <span>

#include "ops/elementwise.h"

namespace deepinfer::ops {

// rms_norm of `in`, then write_rows of the normalised rows; bits are theirs. Either may be left out.
struct LatentTask {
  ConstTensorView in;                  // [num_tokens, width], width % 16 == 0
  const float* norm_weight = nullptr;  // [width]; null: `in` is taken as it is
  float norm_eps = 0;
  bool round_to_bf16 = false;  // the normalised values and the rotated channels
  TensorView out = {};         // the normalised rows, or absent; may be `in`
  TensorView quantised = {};   // the same through FakeQuant::kE4m3Group32, or absent; width % 32 == 0

  // As in WriteRowsArgs; tables.blocks null: nothing is stored.
  RowTables tables = {};
  const int64_t* positions = nullptr;
  int64_t ratio = 1;
  std::optional<FakeQuant> quantise = std::nullopt;
  MatrixView<const float> cosine = {};
  MatrixView<const float> sine = {};

  WriteRowsArgs rows_to_write(ConstTensorView normalised) const {
    return {normalised, tables, positions, ratio, quantise, cosine, sine, round_to_bf16};
  }
};

inline constexpr size_t kMaxLatentTasks = 4;

// All of the same tokens. No task reads what another writes.
void latents(Stream& stream, std::span<const LatentTask> tasks);

}  // namespace deepinfer::ops
