// Prefill steps: short prompts and long ones, those under way first, then those that wait, in order, within the step's
// token budget.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace deepinfer {

bool Scheduler::is_long(const Sequence& sequence) const {
  return sequence.num_prompt_tokens() > options_.long_prefill_tokens;
}

bool Scheduler::may_start(const Sequence& sequence) {
  if (sequence.load == Sequence::Load::kPending) return false;
  if (const Sequence* sibling = pool_.find(sequence.after); sibling != nullptr && !sibling->prefilled_once)
    return false;
  return !is_long(sequence) || num_long_ < options_.max_long_prefills;
}

// Gives the sequence a slot, the longest prefix that is known, and its first tokens to compute. False: no room; nothing
// has changed, but that less important sequences may have given way.
bool Scheduler::start(Sequence& sequence, int64_t budget, StepPlan& plan) {
  const std::span<const int32_t> tokens = std::span(sequence.input->tokens).first(sequence.num_tokens);
  const size_t starts = plan.starts.size(), edits = plan.block_edits.size(), copies = plan.copies.size();
  int64_t length = sequence.load_length;
  const bool was_loaded = sequence.load == Sequence::Load::kReady;
  PrefixMatch match;
  if (sequence.use_prefix_cache && !was_loaded) {
    // At least one token is computed, to have logits. Log-probabilities of the prompt need all of it computed.
    const int64_t most = longest_adoptable(options_.replay, sequence.input->decoder_begin, sequence.num_tokens - 1);
    match = cache_.match(tokens, sequence.wants_prompt_logprobs() ? 0 : most, sequence.salt);
    if (match.stored_length > match.length && begin_load(sequence, match)) return false;
    length = match.length;
    if (length > 0 && !cache_.adopt(match, sequence.table, plan.copies)) return false;
    sequence.branch_length = match.branch_length > length ? match.branch_length : 0;
  }
  if (was_loaded) {
    loading_.erase(std::find(loading_.begin(), loading_.end(), sequence.handle.index));
    sequence.load = Sequence::Load::kNone;
  }
  take_slot(sequence, length, plan);
  const int64_t count = std::min(budget, sequence.num_tokens - sequence.planned);
  if (!grow_or_preempt(sequence, sequence.planned + count, Victims::kLowerPriorities, plan)) {
    plan.starts.resize(starts);
    plan.block_edits.resize(edits);
    plan.copies.resize(copies);
    sequence.last_step = was_loaded ? next_step_ - 1 : collected_step_;  // no other step names its blocks
    leave_running(sequence);
    sequence.phase = Phase::kWaiting;
    sequence.planned = sequence.computed = 0;
    return false;
  }
  if (sequence.use_prefix_cache) cache_.see(tokens, sequence.salt);
  if (sequence.num_preemptions == 0) {
    sequence.num_cached_tokens = length;
    counters_.cached_tokens += length;
  } else {
    counters_.recomputed_tokens += sequence.num_tokens - length;
  }
  add_prefill_item(sequence, count, plan);
  return true;
}

void Scheduler::take_slot(Sequence& sequence, int64_t length, StepPlan& plan) {
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.slot = {slot, ++slot_generation_[slot]};
  slot_owner_[slot] = sequence.handle;
  sequence.phase = Phase::kPrefill;
  ++num_prefilling_;
  if (is_long(sequence)) ++num_long_;
  sequence.planned = sequence.computed = length;
  plan.starts.push_back({sequence.slot, sequence.input.get(), length,
                         std::span<const int32_t>(sequence.input->tokens).first(sequence.num_tokens)});
  for (size_t g = 0; g < sequence.table.groups.size(); ++g) {
    const BlockTable::Group& group = sequence.table.groups[g];
    for (size_t b = group.first; b < group.blocks.size(); ++b) {
      plan.block_edits.push_back({slot, static_cast<int32_t>(g), static_cast<int64_t>(b), group.blocks[b]});
    }
  }
  running_.insert(std::lower_bound(running_.begin(), running_.end(), sequence.handle.index,
                                   [this](int32_t a, int32_t b) { return goes_first(a, b); }),
                  sequence.handle.index);
}

// Requires: blocks for `count` further tokens.
void Scheduler::add_prefill_item(Sequence& sequence, int64_t count, StepPlan& plan) {
  StepItem item{sequence.slot, sequence.planned};
  item.tokens = std::span<const int32_t>(sequence.input->tokens).subspan(sequence.planned, count);
  sequence.planned += count;
  sequence.last_step = plan.id;
  item.samples = sequence.planned == sequence.num_tokens;
  item.prompt_logprobs = sequence.wants_prompt_logprobs() && item.begin + 1 < sequence.num_prompt_tokens();
  if (item.samples) {
    ++sequence.samples_in_flight;
    sequence.phase = Phase::kDecode;
    --num_prefilling_;
    if (is_long(sequence)) --num_long_;
  }
  plan.items.push_back(item);
}

// Prompts of one kind, short or long: those under way, then those that wait. Returns what is left of the budget.
int64_t Scheduler::plan_prompts(bool long_ones, int64_t budget, StepPlan& plan) {
  scratch_.clear();
  for (const int32_t index : running_) {
    if (at(index).phase == Phase::kPrefill && is_long(at(index)) == long_ones) scratch_.push_back(index);
  }
  for (const int32_t index : scratch_) {
    Sequence& sequence = at(index);
    if (budget == 0 || sequence.phase != Phase::kPrefill) continue;  // preempted just now
    const int64_t count = std::min(budget, sequence.num_tokens - sequence.planned);
    if (!grow_or_preempt(sequence, sequence.planned + count, Victims::kLaterArrivals, plan)) {
      // Two prompts under way can hold all blocks between them: the less important one gives way.
      if (retired_step_ <= collected_step_) preempt(sequence);
      return budget;
    }
    add_prefill_item(sequence, count, plan);
    budget -= count;
  }
  for (size_t i = 0; i < waiting_.size() && budget > 0 && !free_slots_.empty();) {
    Sequence& sequence = at(waiting_[i]);
    if (is_long(sequence) != long_ones || !may_start(sequence)) {
      ++i;
      continue;
    }
    const size_t items = plan.items.size();
    if (!start(sequence, budget, plan)) {
      if (sequence.load == Sequence::Load::kPending) {  // its prefix is on its way; others may go on
        ++i;
        continue;
      }
      break;  // those behind it do not take what it waits for
    }
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence.handle.index));
    budget -= static_cast<int64_t>(plan.items[items].tokens.size());
  }
  return budget;
}

void Scheduler::plan_prefill(StepPlan& plan) {
  // Short prompts pass long ones, which keep half of the budget.
  const auto long_waits = [this](int32_t index) { return is_long(at(index)) && may_start(at(index)); };
  const bool any_long = num_long_ > 0 || std::any_of(waiting_.begin(), waiting_.end(), long_waits);
  const int64_t for_long = any_long ? options_.max_num_batched_tokens / 2 : 0;
  const int64_t left = plan_prompts(false, options_.max_num_batched_tokens - for_long, plan);
  if (any_long) plan_prompts(true, left + for_long, plan);
}

}  // namespace deepinfer
