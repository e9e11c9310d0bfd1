// Workspace: the device memory that forward passes reuse, a row of each matrix for each row of a step.
//
// Matrices that grow together lie in one RowArena. It grows to the largest step and never shrinks; growing moves all of
// it, which makes recorded work stale: generation() counts that. Contents do not survive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/stream.h"
#include "device/view.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "ops/linear.h"

namespace deepinfer {

class RowArena {
 public:
  RowArena(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  // Requires: nothing of it is in use, neither by a caller nor by work on a stream.
  Status reserve(int64_t rows);
  bool holds(int64_t rows) const { return rows <= capacity_; }
  int64_t bytes_for(int64_t rows) const;  // what `reserve` takes
  int64_t generation() const { return generation_; }

  // Of all matrices, before the first `reserve`. Returns the matrix's number.
  int add(int64_t bytes_a_row);
  std::byte* matrix(int number, int64_t rows) const {
    DI_CHECK(rows <= capacity_, "{} rows of {} in {}", rows, capacity_, name_);
    return memory_.get() + offsets_[number];
  }

 private:
  Device& device_;
  std::string name_;
  std::vector<int64_t> widths_, offsets_;  // bytes a row; of each matrix in `memory_`
  int64_t capacity_ = 0;
  int64_t generation_ = 0;
  std::shared_ptr<std::byte> memory_;
};

// A matrix in an arena whose elements are T.
template <typename T>
class MatrixBuffer {
 public:
  MatrixBuffer(RowArena& arena, int64_t cols)
      : arena_(arena), number_(arena.add(cols * static_cast<int64_t>(sizeof(T)))), cols_(cols) {}
  MatrixView<T> rows(int64_t count) const {
    return dense(reinterpret_cast<T*>(arena_.matrix(number_, count)), count, cols_);
  }

 private:
  const RowArena& arena_;
  int number_;
  int64_t cols_;
};

// One whose elements are of the type in which the device keeps activations.
class TensorBuffer {
 public:
  TensorBuffer(RowArena& arena, ElementType type, int64_t cols)
      : arena_(arena), number_(arena.add(cols * element_bytes(type))), type_(type), cols_(cols) {}
  TensorView rows(int64_t count) const { return {arena_.matrix(number_, count), type_, count, cols_, cols_}; }

 private:
  const RowArena& arena_;
  int number_;
  ElementType type_;
  int64_t cols_;
};

// The rotation of every row.
struct AngleBuffers {
  AngleBuffers(RowArena& arena, int64_t pairs) : cosine(arena, pairs), sine(arena, pairs) {}
  MatrixBuffer<float> cosine, sine;
};

struct Workspace {
  Workspace(Device& device, const ModelConfig& config, const LayerPlan& plan, ElementType activations);

  int64_t generation() const { return tokens.generation() + kept.generation() + outputs.generation(); }

  RowArena tokens;   // rows of the step
  RowArena kept;     // those that go on where others skip the decoder
  RowArena outputs;  // those whose logits are wanted

  MatrixBuffer<int32_t> token_ids;  // where tokens are drawn on the device: those of the step
  TensorBuffer streams, u, u_quantised, y;
  MatrixBuffer<float> post, mix;
  AngleBuffers plain_angles, compressed_angles;  // by RopeKind
  std::vector<AngleBuffers> group_angles;        // by LayerPlan::group_ratios
  TensorBuffer q_latent, q_latent_quantised, kv, q, attended, grouped;
  TensorBuffer compressor_latent;       // ratio 1
  MatrixBuffer<float> compressor_rows;  // other ratios: [value | gate]
  TensorBuffer latent, index_key, index_query, index_weights;
  MatrixBuffer<int32_t> selected, num_selected, candidates, num_candidates;
  MatrixBuffer<float> router_logits, route_weights;
  MatrixBuffer<int32_t> routed_experts;
  TensorBuffer engram_rows, engram_quantised, engram_key_value;

  TensorBuffer kept_streams, kept_u, kept_u_quantised;
  MatrixBuffer<float> kept_pre;
  AngleBuffers kept_plain_angles, kept_compressed_angles;

  TensorBuffer last_streams, last_hidden;
  MatrixBuffer<float> last_pre, logits;
  MatrixBuffer<int32_t> drawn;

  std::vector<ops::LinearTask> tasks;  // of the call that is being made
};

}  // namespace deepinfer
