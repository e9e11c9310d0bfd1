#include "cache/block_pool.h"

#include "base/check.h"

namespace deepinfer {

BlockPool::BlockPool(int32_t capacity, bool debug) : debug_(debug) {
  DI_CHECK(capacity >= 0, "a pool of {} blocks", capacity);
  states_.resize(capacity);
  free_.resize(capacity);
  retired_.reserve(capacity);
  num_free_ = capacity;
  // The last in is the first out: low numbers first.
  for (int32_t i = 0; i < capacity; ++i) free_[i] = debug ? i : capacity - 1 - i;
}

const BlockPool::State& BlockPool::state(BlockId block) const {
  DI_CHECK(block >= 0 && block < capacity(), "block {} of a pool of {}", block, capacity());
  return states_[block];
}

BlockPool::State& BlockPool::held_state(BlockId block) {
  DI_CHECK(block >= 0 && block < capacity(), "block {} of a pool of {}", block, capacity());
  State& s = states_[block];
  DI_CHECK(s.uses > 0 || s.units > 0, "block {} is free: it was released twice, or used after release", block);
  return s;
}

BlockId BlockPool::acquire() {
  if (num_free_ == 0) return kNoBlock;
  --num_free_;
  const int32_t slot = debug_ ? free_begin_ : (free_begin_ + num_free_) % capacity();
  if (debug_) free_begin_ = (free_begin_ + 1) % capacity();
  const BlockId block = free_[slot];
  DI_CHECK(states_[block].uses == 0 && states_[block].units == 0, "block {} is free and held at once", block);
  states_[block].uses = 1;
  return block;
}

void BlockPool::make_free(BlockId block) {
  ++states_[block].generation;
  free_[(free_begin_ + num_free_) % capacity()] = block;
  ++num_free_;
}

void BlockPool::add_use(BlockId block) {
  State& s = held_state(block);
  if (s.uses++ == 0) --num_held_by_units_only_;
}

void BlockPool::end_use(BlockId block) {
  State& s = states_[block];
  if (--s.uses > 0) return;
  if (s.units > 0) {
    ++num_held_by_units_only_;
  } else {
    make_free(block);
  }
}

void BlockPool::release_use(BlockId block, int64_t last_step) {
  State& s = held_state(block);
  DI_CHECK(s.uses > (s.retired ? 1 : 0), "block {} was released more often than it was taken", block);
  if (last_step <= done_) return end_use(block);
  if (s.retired) {  // the steps hold a use of it already
    if (last_step > s.retired_until) s.retired_until = last_step;
    --s.uses;
    return;
  }
  s.retired = true;
  s.retired_until = last_step;
  retired_.push_back(block);
}

bool BlockPool::end_retirement(BlockId block) {
  State& s = states_[block];
  if (s.retired_until > done_) return false;
  s.retired = false;
  end_use(block);
  return true;
}

void BlockPool::add_unit(BlockId block, int32_t unit) {
  State& s = held_state(block);
  if (s.uses == 0 && s.units == 0) ++num_held_by_units_only_;
  ++s.units;
  s.unit_bits ^= unit;
}

void BlockPool::remove_unit(BlockId block, int32_t unit) {
  State& s = held_state(block);
  DI_CHECK(s.units > 0, "unit {} gives up block {}, which no unit holds", unit, block);
  s.unit_bits ^= unit;
  if (--s.units > 0 || s.uses > 0) return;
  --num_held_by_units_only_;
  make_free(block);
}

bool BlockPool::is_consistent() const {
  std::vector<bool> is_free(states_.size());
  for (int32_t i = 0; i < num_free_; ++i) {
    const BlockId block = free_[(free_begin_ + i) % capacity()];
    if (is_free[block]) return false;
    is_free[block] = true;
  }
  int32_t units_only = 0;
  for (size_t block = 0; block < states_.size(); ++block) {
    const State& s = states_[block];
    if (is_free[block] != (s.uses == 0 && s.units == 0)) return false;
    if (s.uses == 0 && s.units > 0) ++units_only;
  }
  return units_only == num_held_by_units_only_;
}

}  // namespace deepinfer
