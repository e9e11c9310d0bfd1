// BlockPool: the blocks of one group in one tier, as numbers: which are free, and how often each is held. Two kinds of
// holders are told apart: *uses* (tables, copies and jobs under way, steps in flight) and *units* (cached prefixes).
// A block that only units hold can be had by evicting them; a block that nobody holds is free.
//
// A use that is given up while a step that names the block may still run counts until that step is done. Nothing is
// allocated after construction. Double release and use after release are bugs and end the process; in debug mode blocks
// are handed out in the order in which they became free, so that a stale number is noticed instead of naming a new
// block.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_layout.h"

namespace deepinfer {

class BlockPool {
 public:
  explicit BlockPool(int32_t capacity, bool debug = false);

  // A free block, with one use; kNoBlock if there is none.
  BlockId acquire();
  void add_use(BlockId block);
  // The use ends once steps up to `last_step` are done: at once if they are already.
  void release_use(BlockId block, int64_t last_step);
  void add_unit(BlockId block, int32_t unit);
  void remove_unit(BlockId block, int32_t unit);

  // Steps up to `step` are done. Calls no_longer_used(block) for each block whose last use ended with it.
  template <typename Function>
  void steps_done(int64_t step, Function&& no_longer_used) {
    if (step > done_) done_ = step;
    size_t kept = 0;
    for (size_t i = 0; i < retired_.size(); ++i) {
      const BlockId block = retired_[i];
      if (end_retirement(block)) {
        if (states_[block].uses == 0) no_longer_used(block);
      } else {
        retired_[kept++] = block;
      }
    }
    retired_.resize(kept);
  }

  int32_t capacity() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_held_by_units_only() const { return num_held_by_units_only_; }
  int32_t num_uses(BlockId block) const { return state(block).uses; }
  int32_t num_units(BlockId block) const { return state(block).units; }
  bool is_retired(BlockId block) const { return state(block).retired; }
  // The unit without which the block would be free; -1 if there is none.
  int32_t sole_unit(BlockId block) const {
    const State& s = state(block);
    return s.uses == 0 && s.units == 1 ? s.unit_bits : -1;
  }
  // Grows each time the block becomes free, so that a holder can tell whether it is still the block it took.
  uint32_t generation(BlockId block) const { return state(block).generation; }
  // Whether the list of free blocks holds exactly the blocks that nobody holds, and the counts agree.
  bool is_consistent() const;

 private:
  struct State {
    int32_t uses = 0;
    int32_t units = 0;
    int32_t unit_bits = 0;  // exclusive or of the numbers of the units: with one unit, its number
    uint32_t generation = 0;
    int64_t retired_until = 0;
    bool retired = false;  // one of the uses is that of the steps up to retired_until
  };

  const State& state(BlockId block) const;
  State& held_state(BlockId block);  // Requires: not free
  void end_use(BlockId block);
  bool end_retirement(BlockId block);
  void make_free(BlockId block);

  std::vector<State> states_;
  std::vector<BlockId> free_;  // a ring: num_free_ blocks from free_begin_
  std::vector<BlockId> retired_;
  int32_t free_begin_ = 0;
  int32_t num_free_ = 0;
  int32_t num_held_by_units_only_ = 0;
  int64_t done_ = -1;
  bool debug_;
};

}  // namespace deepinfer
