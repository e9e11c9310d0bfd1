// SequencePool: sequences by handle, in places that are used again. Fixed capacity; no allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "scheduler/sequence.h"

namespace deepinfer {

class SequencePool {
 public:
  explicit SequencePool(int32_t capacity) : sequences_(capacity) {
    free_.reserve(capacity);
    for (int32_t i = capacity; i-- > 0;) free_.push_back(i);
  }

  bool full() const { return free_.empty(); }
  int32_t size() const { return static_cast<int32_t>(sequences_.size() - free_.size()); }

  Sequence& take() {
    DI_CHECK(!free_.empty(), "no free sequence of {}", sequences_.size());
    Sequence& sequence = sequences_[free_.back()];
    sequence.handle.index = free_.back();
    ++sequence.handle.generation;
    free_.pop_back();
    return sequence;
  }

  Sequence& at(int32_t index) { return sequences_[index]; }
  const Sequence& at(int32_t index) const { return sequences_[index]; }

  // The sequence's memory (its table) stays for the next one.
  void give_back(Sequence& sequence) {
    DI_CHECK(sequence.phase != Phase::kFree, "sequence {} given back twice", sequence.handle.index);
    sequence.phase = Phase::kFree;
    sequence.input.reset();
    free_.push_back(sequence.handle.index);
  }

  // Null if that sequence is gone.
  Sequence* find(SequenceHandle handle) {
    if (handle.index < 0 || handle.index >= static_cast<int32_t>(sequences_.size())) return nullptr;
    Sequence& sequence = sequences_[handle.index];
    return sequence.phase != Phase::kFree && sequence.handle == handle ? &sequence : nullptr;
  }

 private:
  std::vector<Sequence> sequences_;
  std::vector<int32_t> free_;
};

}  // namespace deepinfer
