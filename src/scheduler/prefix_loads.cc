// Prefixes that lower tiers hold: brought back while the sequence waits, computed again if that fails.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace deepinfer {

// False: it is not worth it or there is no room; the sequence does without.
bool Scheduler::begin_load(Sequence& sequence, const PrefixMatch& match) {
  if (sequence.load == Sequence::Load::kFailed || loading_.size() >= kMaxLoads) return false;
  const int64_t id = cache_.begin_load(match, sequence.table);
  if (id < 0) return false;
  sequence.load = Sequence::Load::kPending;
  sequence.load_id = id;
  sequence.load_length = match.stored_length;
  const auto at = std::lower_bound(loading_.begin(), loading_.end(), sequence.handle.index,
                                   [this](int32_t a, int32_t b) { return goes_first(a, b); });
  loading_.insert(at, sequence.handle.index);
  return true;
}

void Scheduler::poll_loads() {
  for (size_t i = 0; i < loading_.size();) {
    Sequence& sequence = at(loading_[i]);
    if (sequence.load == Sequence::Load::kPending) {
      const LoadState state = cache_.load_state(sequence.load_id);
      if (state != LoadState::kPending) sequence.load_id = -1;
      if (state == LoadState::kReady) sequence.load = Sequence::Load::kReady;
      if (state == LoadState::kFailed) {
        drop_load(sequence, Sequence::Load::kFailed);
        continue;
      }
    }
    ++i;
  }
}

// Gives up the load's blocks. A step that was launched may move bytes into them.
void Scheduler::drop_load(Sequence& sequence, Sequence::Load next) {
  if (sequence.load == Sequence::Load::kFailed) return;
  if (sequence.load_id >= 0) cache_.abandon_load(sequence.load_id);
  cache_.release(sequence.table, next_step_ - 1);
  retired_step_ = std::max(retired_step_, next_step_ - 1);
  sequence.load = next;
  sequence.load_id = -1;
  sequence.load_length = 0;
  loading_.erase(std::find(loading_.begin(), loading_.end(), sequence.handle.index));
}

}  // namespace deepinfer
