#include "scheduler/scheduler.h"

#include <algorithm>

namespace deepinfer {

std::vector<int32_t> Scheduler::least_blocks(const CacheLayout& layout, const SchedulerOptions& options) {
  std::vector<int32_t> blocks;
  for (const CacheGroup& group : layout.groups) {
    // What two prefill steps in flight write, what is kept behind them, and the copy of an adopted block.
    int64_t tokens = options.max_model_len;
    if (group.retention != CacheGroup::kKeepAll) {
      tokens = std::min(tokens, 2 * options.max_num_batched_tokens + group.retention + options.max_backtracking);
    }
    blocks.push_back(static_cast<int32_t>((tokens + group.tokens_per_block - 1) / group.tokens_per_block + 2));
  }
  return blocks;
}

Scheduler::Scheduler(const SchedulerOptions& options, KvCache& cache)
    : options_(options),
      cache_(cache),
      pool_(options.max_num_seqs + options.max_queued),
      slot_owner_(options.max_num_seqs),
      slot_generation_(options.max_num_seqs, 0) {
  const std::vector<int32_t> least = least_blocks(cache.layout(), options);
  for (size_t g = 0; g < least.size(); ++g) {
    DI_CHECK(cache.capacity(static_cast<int>(g)) >= least[g], "group {} has {} blocks, a sequence needs {}", g,
             cache.capacity(static_cast<int>(g)), least[g]);
  }
  waiting_.reserve(options.max_num_seqs + options.max_queued);
  running_.reserve(options.max_num_seqs);
  retired_inputs_.reserve(options.max_num_seqs);
  loading_.reserve(kMaxLoads);
  scratch_.reserve(options.max_num_seqs);
  for (int32_t slot = options.max_num_seqs; slot-- > 0;) free_slots_.push_back(slot);
  for (StepPlan& plan : plans_) {
    plan.items.reserve(options.max_num_seqs);
    plan.starts.reserve(options.max_num_seqs);
    plan.block_edits.reserve(options.max_num_seqs * cache.layout().groups.size());
  }
}

Result<SequenceHandle> Scheduler::submit(NewSequence added) {
  if (static_cast<int32_t>(waiting_.size()) >= options_.max_queued || pool_.full()) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("the queue is full: {} sequences wait (max_queued_requests {}); try again later",
                              waiting_.size(), options_.max_queued));
  }
  SequenceInput& input = *added.input;
  DI_CHECK(input.num_prompt_tokens > 0 && input.max_tokens_total <= options_.max_model_len &&
               static_cast<int64_t>(input.tokens.size()) == input.num_prompt_tokens,
           "a prompt of {} tokens, {} in all", input.num_prompt_tokens, input.max_tokens_total);
  input.tokens.reserve(input.max_tokens_total + 1);
  Sequence& sequence = pool_.take();
  const SequenceHandle handle = sequence.handle;
  BlockTable table = std::move(sequence.table);
  sequence = Sequence{.handle = handle,
                      .phase = Phase::kWaiting,
                      .input = std::move(added.input),
                      .priority = added.priority,
                      .arrival = next_arrival_++,
                      .salt = added.salt,
                      .after = added.after,
                      .use_prefix_cache = added.use_prefix_cache};
  sequence.table = std::move(table);
  if (sequence.table.groups.empty()) sequence.table = cache_.make_table(options_.max_model_len);
  sequence.num_tokens = sequence.num_prompt_tokens();
  enqueue(sequence);
  return handle;
}

bool Scheduler::goes_first(int32_t a, int32_t b) const {
  const Sequence &x = pool_.at(a), &y = pool_.at(b);
  return x.priority != y.priority ? x.priority < y.priority : x.arrival < y.arrival;
}

void Scheduler::enqueue(Sequence& sequence) {
  const auto at = std::lower_bound(waiting_.begin(), waiting_.end(), sequence.handle.index,
                                   [this](int32_t a, int32_t b) { return goes_first(a, b); });
  waiting_.insert(at, sequence.handle.index);
}

void Scheduler::abort(SequenceHandle handle, FinishReason reason, SequenceObserver& observer) {
  if (Sequence* sequence = pool_.find(handle)) finish(*sequence, {reason}, observer);
}

BallotRecord Scheduler::ballot() {
  poll_loads();
  BallotRecord record;
  record.num_decoding = static_cast<int32_t>(running_.size()) - num_prefilling_;
  record.has_decoding = record.num_decoding > 0;
  record.has_waiting = num_prefilling_ > 0;
  if (record.has_waiting || free_slots_.empty()) return record;
  for (const int32_t index : waiting_) {
    if ((record.has_waiting = may_start(at(index)))) break;
  }
  return record;
}

const StepPlan& Scheduler::plan(StepKind kind) {
  StepPlan& plan = plans_[next_step_ % 3];
  plan.clear();
  plan.id = next_step_;
  plan.kind = kind;
  if (kind == StepKind::kPrefill) plan_prefill(plan);
  if (kind == StepKind::kDecode) plan_decode(plan);
  if (!plan.items.empty()) {
    cache_.take_transfers(plan.id, plan.transfers);
    ++next_step_;
    ++counters_.steps[static_cast<int>(kind)];
  }
  return plan;
}

const StepPlan& Scheduler::plan_placeholder() {
  StepPlan& plan = plans_[next_step_ % 3];
  plan.clear();
  plan.id = next_step_++;
  plan.kind = StepKind::kPlaceholder;
  cache_.take_transfers(plan.id, plan.transfers);
  ++counters_.steps[static_cast<int>(StepKind::kPlaceholder)];
  return plan;
}

// Adds blocks for rows up to `end` and tells the device.
bool Scheduler::grow(Sequence& sequence, int64_t end, StepPlan& plan) {
  size_t before[16];
  const size_t num_groups = sequence.table.groups.size();
  DI_CHECK(num_groups <= std::size(before), "{} cache groups", num_groups);
  for (size_t g = 0; g < num_groups; ++g) before[g] = sequence.table.groups[g].blocks.size();
  if (!cache_.reserve(sequence.table, end)) return false;
  for (size_t g = 0; g < num_groups; ++g) {
    const std::vector<BlockId>& blocks = sequence.table.groups[g].blocks;
    for (size_t b = before[g]; b < blocks.size(); ++b) {
      plan.block_edits.push_back({sequence.slot.slot, static_cast<int32_t>(g), static_cast<int64_t>(b), blocks[b]});
    }
  }
  return true;
}

// Less important sequences give way until there is room. False: no room now; blocks that were given up come free when
// the steps in flight have been collected, or nothing less important holds any.
bool Scheduler::grow_or_preempt(Sequence& sequence, int64_t end, Victims victims, StepPlan& plan) {
  while (!grow(sequence, end, plan)) {
    if (retired_step_ > collected_step_) return false;  // some are on their way already
    // First those that only wait with blocks.
    const auto less = [&](int32_t index) { return goes_first(sequence.handle.index, index); };
    if (const auto at_load = std::find_if(loading_.rbegin(), loading_.rend(), less); at_load != loading_.rend()) {
      drop_load(at(*at_load), Sequence::Load::kNone);
      continue;
    }
    if (running_.empty()) return false;
    Sequence& victim = at(running_.back());
    const bool gives_way = victims == Victims::kLaterArrivals ? goes_first(sequence.handle.index, victim.handle.index)
                                                              : sequence.priority < victim.priority;
    if (!gives_way) return false;
    preempt(victim);
  }
  return true;
}

void Scheduler::leave_running(Sequence& sequence) {
  if (sequence.phase == Phase::kPrefill) {
    --num_prefilling_;
    if (is_long(sequence)) --num_long_;
  }
  cache_.release(sequence.table, sequence.last_step);
  retired_step_ = std::max(retired_step_, sequence.last_step);
  free_slots_.push_back(sequence.slot.slot);
  slot_owner_[sequence.slot.slot] = {};
  sequence.slot = {};
  running_.erase(std::find(running_.begin(), running_.end(), sequence.handle.index));
}

// What it computed becomes a unit, so that it goes on from there if that survives, and is computed again if not.
// Results in flight are dropped with its slot's generation.
void Scheduler::preempt(Sequence& sequence) {
  publish(sequence, sequence.computed);
  leave_running(sequence);
  sequence.phase = Phase::kWaiting;
  sequence.planned = sequence.computed = 0;
  sequence.samples_in_flight = 0;
  ++sequence.num_preemptions;
  ++counters_.preemptions;
  enqueue(sequence);
}

void Scheduler::finish(Sequence& sequence, FinishedSequence how, SequenceObserver& observer) {
  if (sequence.phase == Phase::kWaiting) {
    if (sequence.load != Sequence::Load::kNone) drop_load(sequence, Sequence::Load::kNone);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), sequence.handle.index));
  } else {
    if (how.reason == FinishReason::kStop || how.reason == FinishReason::kLength) publish(sequence, sequence.computed);
    leave_running(sequence);
  }
  observer.on_finished(sequence, how);
  if (sequence.last_step > collected_step_) retired_inputs_.emplace_back(sequence.last_step, std::move(sequence.input));
  pool_.give_back(sequence);
}

// Makes the first `length` tokens a unit. With bounded replay a sequence's decoder rows depend on where its own replay
// began, so only what nobody's decoder reads may be shared: see longest_adoptable.
void Scheduler::publish(Sequence& sequence, int64_t length) {
  if (!sequence.use_prefix_cache || length <= 0) return;
  cache_.publish(sequence.table, std::span(sequence.input->tokens).first(length), sequence.salt);
}

void Scheduler::publish_between(Sequence& sequence, int64_t begin, int64_t end) {
  const auto passed = [&](int64_t length) { return length > begin && length <= end; };
  if (options_.prefix_unit_interval > 0) {
    const int64_t interval = options_.prefix_unit_interval;
    for (int64_t length = (begin / interval + 1) * interval; length <= end; length += interval) {
      publish(sequence, length);
    }
  }
  if (passed(sequence.branch_length)) publish(sequence, sequence.branch_length);
  // One token less than the prompt: the same prompt again needs a token to run, to have logits.
  if (passed(sequence.num_prompt_tokens())) publish(sequence, sequence.num_prompt_tokens() - 1);
}

void Scheduler::apply(const StepResult& result, SequenceObserver& observer) {
  DI_CHECK(result.id == collected_step_ + 1, "step {} collected after step {}", result.id, collected_step_);
  collected_step_ = result.id;
  cache_.steps_done(result.id);
  std::erase_if(retired_inputs_, [&](const auto& input) { return input.first <= result.id; });
  const StepPlan& plan = plans_[result.id % 3];
  DI_CHECK(plan.id == result.id && plan.items.size() == result.items.size(), "step {} has another's result", plan.id);
  for (size_t i = 0; i < plan.items.size(); ++i) apply_item(plan.items[i], result.items[i], result, observer);
}

void Scheduler::apply_item(const StepItem& item, const ItemResult& result, const StepResult& step,
                           SequenceObserver& observer) {
  const int64_t count = item.tokens.empty() ? 1 : static_cast<int64_t>(item.tokens.size());
  Sequence* found = pool_.find(slot_owner_[item.slot.slot]);
  if (found == nullptr || !(found->slot == item.slot)) {
    counters_.wasted_rows += count;  // it ended or lost its slot after the step was planned
    return;
  }
  Sequence& sequence = *found;
  const int64_t before = sequence.computed;
  sequence.computed = item.begin + count;
  if (step.kind == StepKind::kPrefill) counters_.prefill_tokens += count;
  if (result.failed) return finish(sequence, {FinishReason::kFailed}, observer);
  if (result.prompt_end > result.prompt_begin) {
    // After a preemption some were told before.
    const int64_t end = item.begin + result.prompt_end - result.prompt_begin;
    const int64_t told = std::clamp(sequence.prompt_logprobs_end, item.begin, end) - item.begin;
    observer.on_prompt_logprobs(sequence.handle,
                                std::span(step.logprobs).subspan(result.prompt_begin + told, end - item.begin - told));
    sequence.prompt_logprobs_end = std::max(sequence.prompt_logprobs_end, end);
  }
  publish_between(sequence, before, sequence.computed);
  if (sequence.computed >= sequence.num_prompt_tokens()) sequence.prefilled_once = true;
  if (item.samples) {
    --sequence.samples_in_flight;
    SequenceInput& input = *sequence.input;
    input.tokens.push_back(result.token);
    ++sequence.num_tokens;
    const std::vector<int32_t>& ends = input.end_tokens;
    if (std::find(ends.begin(), ends.end(), result.token) != ends.end()) {
      return finish(sequence, {FinishReason::kStop, result.token}, observer);
    }
    const TokenLogprobs* logprobs = result.logprobs < 0 ? nullptr : &step.logprobs[result.logprobs];
    if (observer.on_token(sequence.handle, result.token, logprobs)) {
      return finish(sequence, {FinishReason::kStop}, observer);
    }
    if (sequence.num_tokens >= input.max_tokens_total) return finish(sequence, {FinishReason::kLength}, observer);
  }
  cache_.drop_unneeded(sequence.table, sequence.computed - options_.max_backtracking, sequence.last_step);
}

std::string Scheduler::check() {
  std::vector<const BlockTable*> tables;
  int32_t prefilling = 0;
  for (const int32_t index : running_) {
    const Sequence& s = at(index);
    tables.push_back(&s.table);
    prefilling += s.phase == Phase::kPrefill;
    if (s.phase != Phase::kPrefill && s.phase != Phase::kDecode) return fmt::format("running {} has no phase", index);
    if (!(slot_owner_[s.slot.slot] == s.handle)) return fmt::format("slot {} is not {}'s", s.slot.slot, index);
    if (s.computed > s.planned || s.planned > s.num_tokens + s.samples_in_flight) {
      return fmt::format("sequence {}: computed {}, planned {}, tokens {}", index, s.computed, s.planned, s.num_tokens);
    }
  }
  for (const int32_t index : waiting_) {
    const Sequence& s = at(index);
    if (s.phase != Phase::kWaiting) return fmt::format("waiting {} is in phase {}", index, static_cast<int>(s.phase));
    const bool is_loading = s.load == Sequence::Load::kPending || s.load == Sequence::Load::kReady;
    if (is_loading != (std::count(loading_.begin(), loading_.end(), index) > 0)) return "the list of loads is wrong";
    for (const BlockTable::Group& group : s.table.groups) {
      if (!group.blocks.empty() && !is_loading) return fmt::format("waiting {} holds blocks", index);
    }
    if (is_loading) tables.push_back(&s.table);
  }
  const auto ordered = [this](int32_t a, int32_t b) { return goes_first(a, b); };
  if (!std::is_sorted(waiting_.begin(), waiting_.end(), ordered)) return "the queue is out of order";
  if (!std::is_sorted(running_.begin(), running_.end(), ordered)) return "the running sequences are out of order";
  if (prefilling != num_prefilling_) return "the count of prefilling sequences is wrong";
  if (pool_.size() != static_cast<int32_t>(waiting_.size() + running_.size())) return "a sequence was lost";
  if (free_slots_.size() + running_.size() != slot_owner_.size()) return "a slot was lost";
  return cache_.check(tables);
}

}  // namespace deepinfer
