// One forward pass: which tokens of which sequences, and what the layers derive from that once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/view.h"
#include "model/sequence_state.h"

namespace deepinfer {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

// The next tokens of one sequence. A sequence may appear once a step; tokens are valid ids.
struct SequenceStep {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // at least one
  LogitRows logits = LogitRows::kLast;
};

// A buffer for matrices of varying size; grows and never shrinks.
template <typename T>
class MatrixBuffer {
 public:
  MatrixView<T> matrix(int64_t rows, int64_t cols) {
    if (static_cast<int64_t>(data_.size()) < rows * cols) data_.resize(rows * cols);
    return dense(data_.data(), rows, cols);
  }

 private:
  std::vector<T> data_;
};

struct StepLayout {
  std::span<const SequenceStep> steps;
  int64_t num_tokens = 0;
  std::vector<int32_t> tokens;               // [num_tokens]
  std::vector<int64_t> positions;            // [num_tokens]
  std::vector<const SequenceState*> states;  // [num_tokens]
  std::vector<int32_t> logit_rows;           // tokens whose logits are wanted, ascending

  void reset(std::span<const SequenceStep> new_steps);
};

}  // namespace deepinfer
