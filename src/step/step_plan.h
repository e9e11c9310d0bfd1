// StepPlan: all that the device does in one step, as plain data. The scheduler writes it, an executor runs it, in this
// order: starts, block edits, transfers, copies, items.
//
// A plan stays valid and unchanged until its result has been collected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/transfers.h"
#include "step/sequence_input.h"

namespace deepinfer {

enum class StepKind : uint8_t {
  kIdle,         // nothing to do anywhere
  kPlaceholder,  // without items: other ranks work, this one keeps up with their collectives
  kPrefill,
  kDecode,
};

// A row of the device's slot table. The generation tells apart the sequences that use it one after the other: results
// of an earlier one are dropped.
struct SlotHandle {
  int32_t slot = -1;
  uint32_t generation = 0;
  bool operator==(const SlotHandle&) const = default;
};

// A sequence takes a slot. `length` tokens count as processed: their rows are in the blocks placed by this plan.
struct SlotStart {
  SlotHandle slot;
  const SequenceInput* input = nullptr;
  int64_t length = 0;
  std::span<const int32_t> tokens;  // all so far: prompt, and answer if it goes on after a preemption
};

// block == kNoBlock: the block of this number is no longer the slot's.
struct BlockEdit {
  int32_t slot = -1;
  int32_t group = 0;
  int64_t number = 0;
  BlockId block = kNoBlock;
};

struct StepItem {
  SlotHandle slot;
  int64_t begin = 0;  // position of the first token
  // Prompt tokens (or answer tokens that are computed again), or empty: the one token that the slot sampled last.
  std::span<const int32_t> tokens;
  bool samples = false;          // draws the token after the last one
  bool prompt_logprobs = false;  // log-probabilities of the tokens behind these, as far as they are prompt
};

struct StepPlan {
  int64_t id = 0;  // 1, 2, 3, …
  StepKind kind = StepKind::kIdle;
  std::vector<SlotStart> starts;
  std::vector<BlockEdit> block_edits;
  std::vector<BlockTransfer> transfers;
  std::vector<BlockCopy> copies;
  std::vector<StepItem> items;

  // Empties it and keeps the memory.
  void clear() {
    id = 0;
    kind = StepKind::kIdle;
    starts.clear();
    block_edits.clear();
    transfers.clear();
    copies.clear();
    items.clear();
  }
};

}  // namespace deepinfer
