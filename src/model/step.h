// One forward pass: which tokens of which sequences, and what the layers derive from that once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/sequence_state.h"
#include "ops/sampling.h"

namespace deepinfer {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

// The next tokens of one sequence. A sequence may appear once a step; tokens are valid ids.
struct SequenceStep {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // at least one
  LogitRows logits = LogitRows::kLast;
  // Bounded replay of the decoder (LayerPlan::first_decoder_layer): tokens before this position skip the decoder's
  // layers but for the rows that the first of them writes, and later layers' windows do not reach behind it. 0: nothing
  // is skipped. Wanted logits must lie at or behind it.
  int64_t decoder_begin = 0;
  bool mask_only = false;  // skipped tokens run all the same and are ignored: same results, for comparison
  // Where a model draws tokens itself (Model::draws). takes_slots_token: `tokens` is the one that the sequence's slot
  // drew last; the host need not know it before Model::complete. draw: how the token after the last one is drawn;
  // position < 0: not here.
  bool takes_slots_token = false;
  int32_t slot = -1;
  ops::SampleRow draw = {.position = -1};
};

// The rows of a step, one a token.
struct StepLayout {
  int64_t num_tokens = 0;
  std::vector<int32_t> tokens;               // [num_tokens]
  std::vector<int64_t> positions;            // [num_tokens]
  std::vector<const SequenceState*> states;  // [num_tokens]
  std::vector<int64_t> decoder_begin;        // [num_tokens]
  std::vector<int32_t> logit_rows;           // tokens whose logits are wanted, ascending
  std::vector<int32_t> token_slots;          // [num_tokens]: the slot that drew the token, -1: it is in `tokens`
  std::vector<ops::SampleRow> draws;         // by logit row

  void reset(std::span<const SequenceStep> steps);
  int64_t max_length() const;  // no token has a greater position + 1
  // The rows of `all` that the decoder's layers need; their numbers in `all` go to `rows`.
  void keep_decoder_rows(const StepLayout& all, std::span<const SequenceStep> steps, std::vector<int32_t>& rows);

 private:
  void clear();
};

}  // namespace deepinfer
