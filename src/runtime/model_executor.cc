#include "runtime/model_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/sync_guard.h"
#include "sampling/logprobs.h"

namespace deepinfer {

bool draws_on_device(const SequenceInput& input) {
  const SamplingParams& p = input.params;
  const bool penalises = p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
  const bool bans = !input.bad_word_tokens.empty() || (p.min_tokens > 0 && !input.end_tokens.empty());
  return !penalises && !bans && p.logit_bias.empty() && p.allowed_token_ids.empty();
}

ModelExecutor::ModelExecutor(Device& device, Model& model, std::unique_ptr<DeviceBlocks> device_blocks,
                             const HostBlocks* host_blocks, int32_t num_slots)
    : device_(device),
      model_(model),
      device_blocks_(std::move(device_blocks)),
      host_blocks_(host_blocks),
      draws_(model.can_draw()) {
  slots_.reserve(num_slots);
  for (int32_t i = 0; i < num_slots; ++i) slots_.push_back({.state = model.make_placed_sequence()});
  if (draws_) model.draw_for_slots(num_slots);
  steps_.reserve(num_slots);
  for (Flight& flight : flights_) {
    flight.num_tokens.reserve(num_slots);
    flight.started = model.stream().make_event();
    flight.ended = model.stream().make_event();
    flight.returned = model.stream().make_event();
  }
  raw_row_.resize(model.config().vocab_size);
  for (StepResult& result : results_) result.items.reserve(num_slots);
  thread_ = std::thread([this] {
    device_.adopt_this_thread();
    work();
  });
}

ModelExecutor::~ModelExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  tell_thread();
  thread_.join();
}

void ModelExecutor::tell_thread() {
  has_news_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void ModelExecutor::launch(const StepPlan& plan) {
  const NoBlocking guard("launch of a step");
  {
    const std::lock_guard lock(mutex_);
    DI_CHECK(launched_ - collected_ < kDepth, "{} steps in flight", launched_ - collected_);
    plans_[launched_ % kDepth] = &plan;
    ++launched_;
  }
  tell_thread();
}

const StepResult& ModelExecutor::collect() {
  about_to_wait("collect");
  std::unique_lock lock(mutex_);
  DI_CHECK(collected_ < launched_, "nothing is in flight");
  changed_.wait(lock, [this] { return done_ > collected_; });
  return results_[collected_++ % (kDepth + 1)];
}

void ModelExecutor::work() {
  while (const StepPlan* plan = next_plan()) {
    Flight& flight = flights_[taken_ % kDepth];
    flight.plan = plan;
    flight.result = &results_[taken_ % (kDepth + 1)];
    ++taken_;
    run(flight);
  }
}

// Null at the end. A step on its way is finished as soon as it is through.
const StepPlan* ModelExecutor::next_plan() {
  std::unique_lock lock(mutex_);
  while (taken_ == launched_) {
    if (pending_ == nullptr) {
      if (stopping_) return nullptr;
      changed_.wait(lock, [this] { return stopping_ || taken_ < launched_; });
      continue;
    }
    lock.unlock();
    while (!has_news_.exchange(false, std::memory_order_acquire)) {
      const Result<bool> returned = pending_->returned->reached();
      if (!returned.ok() || returned.value()) {
        finish_pending();
        break;
      }
      std::this_thread::yield();
    }
    lock.lock();
    if (stopping_ && pending_ != nullptr) {
      lock.unlock();
      finish_pending();
      lock.lock();
    }
  }
  return plans_[taken_ % kDepth];
}

Status ModelExecutor::start(const SlotStart& start) {
  Slot& slot = slots_[start.slot.slot];
  const SequenceInput& input = *start.input;
  slot.generation = start.slot.generation;
  slot.input = &input;
  slot.last_token = -1;
  slot.is_drawing = false;
  slot.draws_on_device = draws_ && draws_on_device(input);
  if (!slot.draws_on_device) reset_sampler(start);
  return model_.restart(slot.state, start.tokens.first(start.length), input.max_tokens_total + 1);
}

void ModelExecutor::reset_sampler(const SlotStart& start) {
  const SequenceInput& input = *start.input;
  slots_[start.slot.slot].sampler.reset({.params = &input.params,
                                         .key = input.sampling_key,
                                         .vocab_size = model_.config().vocab_size,
                                         .tokens = start.tokens,
                                         .num_prompt_tokens = input.num_prompt_tokens,
                                         .max_output_tokens = input.max_tokens_total - input.num_prompt_tokens,
                                         .bad_words = input.bad_word_tokens,
                                         .end_tokens = input.end_tokens});
}

void ModelExecutor::move_blocks(const StepPlan& plan) {
  Stream& stream = model_.stream();
  for (const BlockTransfer& t : plan.transfers) {
    std::byte* const device = device_blocks_->block(t.group, t.device_block);
    const std::span<std::byte> host = host_blocks_->block(t.group, t.host_block);
    const auto bytes = static_cast<int64_t>(host.size());
    if (t.direction == BlockTransfer::Direction::kSave) {
      stream.copy(host.data(), device, bytes);
    } else {
      stream.copy(device, host.data(), bytes);
    }
  }
  for (const BlockCopy& c : plan.copies) {
    stream.copy(device_blocks_->block(c.group, c.to), device_blocks_->block(c.group, c.from),
                device_blocks_->block_bytes(c.group));
  }
}

// Starts, edits and moves; the items become `steps_`.
Status ModelExecutor::prepare(const StepPlan& plan) {
  for (const SlotStart& started : plan.starts) DI_RETURN_IF_ERROR(start(started));
  for (const BlockEdit& edit : plan.block_edits) {
    slots_[edit.slot].state.place_block(edit.group, edit.number, device_blocks_->block(edit.group, edit.block));
  }
  move_blocks(plan);
  steps_.clear();
  for (const StepItem& item : plan.items) {
    Slot& slot = slots_[item.slot.slot];
    DI_CHECK(slot.generation == item.slot.generation && slot.state.length() == item.begin,
             "slot {} holds generation {} with {} tokens, the plan means {} with {}", item.slot.slot, slot.generation,
             slot.state.length(), item.slot.generation, item.begin);
    SequenceStep& step = steps_.emplace_back(SequenceStep{.state = &slot.state,
                                                          .tokens = item.tokens,
                                                          .logits = item.prompt_logprobs ? LogitRows::kAll
                                                                    : item.samples       ? LogitRows::kLast
                                                                                         : LogitRows::kNone,
                                                          .decoder_begin = slot.input->decoder_begin,
                                                          .mask_only = slot.input->mask_only,
                                                          .slot = item.slot.slot});
    if (item.tokens.empty()) {
      step.tokens = std::span(&slot.last_token, 1);
      step.takes_slots_token = slot.is_drawing;
    }
    const auto end = item.begin + static_cast<int64_t>(step.tokens.size());
    if (item.samples && slot.draws_on_device) step.draw = draw_of(*slot.input, end, item.slot.slot);
  }
  return Status();
}

ops::SampleRow ModelExecutor::draw_of(const SequenceInput& input, int64_t position, int32_t slot) const {
  const SamplingParams& p = input.params;
  return {.temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .key = input.sampling_key,
          .position = position,
          .top_k = static_cast<int32_t>(std::min<int64_t>(p.top_k, model_.config().vocab_size)),
          .slot = slot};
}

// Takes a step to the device, where it stays pending if nothing of it is for the host to do.
void ModelExecutor::run(Flight& flight) {
  if (pending_ != nullptr && waits_for_pending(*flight.plan)) finish_pending();
  Status status = failure_.empty() ? begin(flight) : Status();
  // From here on the host knows what slots drew last.
  finish_pending();
  if (status.ok() && failure_.empty()) status = complete(flight);
  if (!status.ok() && failure_.empty()) failure_ = status.message();
  if (!failure_.empty() || flight.reads_logits || !draws_) return finish(flight);
  for (const StepItem& item : flight.plan->items) slots_[item.slot.slot].is_drawing = item.samples;
  pending_ = &flight;
}

// A slot may be given to another sequence while its last one runs in vain.
bool ModelExecutor::waits_for_pending(const StepPlan& plan) const {
  const std::vector<StepItem>& items = pending_->plan->items;
  return std::any_of(plan.starts.begin(), plan.starts.end(), [&](const SlotStart& start) {
    return std::any_of(items.begin(), items.end(),
                       [&](const StepItem& item) { return item.slot.slot == start.slot.slot; });
  });
}

Status ModelExecutor::begin(Flight& flight) {
  DI_RETURN_IF_ERROR(model_.wait_for_inputs());
  DI_RETURN_IF_ERROR(prepare(*flight.plan));
  flight.num_tokens.clear();
  flight.reads_logits = false;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const StepItem& item = flight.plan->items[i];
    const Slot& slot = slots_[item.slot.slot];
    flight.num_tokens.push_back(static_cast<int64_t>(steps_[i].tokens.size()));
    flight.reads_logits |=
        item.prompt_logprobs || (item.samples && (!slot.draws_on_device || slot.input->params.logprobs));
  }
  return model_.begin(steps_, flight.started.get());
}

Status ModelExecutor::complete(Flight& flight) {
  StepOutputs outputs;
  DI_RETURN_IF_ERROR(model_.complete(steps_, outputs));
  Stream& stream = model_.stream();
  stream.record(*flight.ended);
  const int64_t rows = outputs.logits.rows;
  if (draws_ && rows > 0) {
    if (rows > flight.capacity) {
      DI_ASSIGN_OR_RETURN(flight.drawn, device_.allocate_pinned(rows * static_cast<int64_t>(sizeof(int32_t))));
      flight.capacity = rows;
    }
    stream.copy(flight.drawn.get(), outputs.drawn, rows * static_cast<int64_t>(sizeof(int32_t)));
  }
  if (flight.reads_logits) {
    logits_.resize(rows * outputs.logits.cols);
    if (rows > 0)
      stream.copy(logits_.data(), outputs.logits.data, static_cast<int64_t>(logits_.size() * sizeof(float)));
  }
  stream.record(*flight.returned);
  return Status();
}

void ModelExecutor::finish_pending() {
  if (pending_ != nullptr) finish(*std::exchange(pending_, nullptr));
}

// Waits for the step and tells what came of it.
void ModelExecutor::finish(Flight& flight) {
  const StepPlan& plan = *flight.plan;
  StepResult& result = *flight.result;
  result.id = plan.id;
  result.kind = plan.kind;
  result.items.clear();
  result.num_logprobs = 0;
  result.error.clear();
  result.device_seconds = result.idle_seconds = 0;
  if (failure_.empty()) {
    if (const Status waited = flight.returned->wait(); !waited.ok()) failure_ = waited.message();
  }
  if (failure_.empty()) {
    read_items(flight);
    // There the device drew the tokens, if on the host's time.
    if (device_.shares_host_memory()) model_.stream().record(*flight.ended);
    result.device_seconds = flight.ended->seconds_since(*flight.started);
    if (last_end_ != nullptr) result.idle_seconds = flight.started->seconds_since(*last_end_);
    last_end_ = flight.ended.get();
  } else {
    (void)model_.stream().synchronize();  // what came before the failure names memory that may go
    result.error = failure_;
    for (const StepItem& item : plan.items) result.items.push_back({.slot = item.slot});
  }
  {
    const std::lock_guard lock(mutex_);
    ++done_;
  }
  changed_.notify_all();
}

namespace {

TokenLogprobs& next_logprobs(StepResult& result) {
  if (result.num_logprobs == static_cast<int32_t>(result.logprobs.size())) result.logprobs.emplace_back();
  return result.logprobs[result.num_logprobs++];
}

}  // namespace

void ModelExecutor::read_items(Flight& flight) {
  const int64_t vocab = model_.config().vocab_size;
  const auto* drawn = reinterpret_cast<const int32_t*>(flight.drawn.get());
  StepResult& result = *flight.result;
  int64_t row = 0;
  const auto logits_of = [&](int64_t r) {
    return flight.reads_logits ? std::span(logits_).subspan(r * vocab, vocab) : std::span<float>();
  };
  for (size_t i = 0; i < flight.plan->items.size(); ++i) {
    const StepItem& item = flight.plan->items[i];
    Slot& slot = slots_[item.slot.slot];
    ItemResult& out = result.items.emplace_back(ItemResult{.slot = item.slot});
    const int64_t count = flight.num_tokens[i], num_rows = item.prompt_logprobs ? count : item.samples ? 1 : 0;
    if (item.prompt_logprobs) {
      out.prompt_begin = result.num_logprobs;
      const int64_t end = std::min(item.begin + count, slot.input->num_prompt_tokens - 1);
      const int32_t best = *slot.input->params.prompt_logprobs;
      for (int64_t p = item.begin; p < end; ++p) {
        top_logprobs(logits_of(row + p - item.begin), slot.input->tokens.data()[p + 1], best, next_logprobs(result));
      }
      out.prompt_end = result.num_logprobs;
    }
    row += num_rows;
    if (!item.samples) continue;
    slot.is_drawing = false;
    out.token = slot.draws_on_device ? drawn[row - 1] : draw(slot, logits_of(row - 1), item.begin + count);
    // Its own sequence fails; token 0 keeps the slot going until the scheduler has heard of it.
    out.failed = out.token < 0;
    slot.last_token = std::max(out.token, 0);
    if (out.failed || !slot.input->params.logprobs) continue;
    out.logprobs = result.num_logprobs;
    const std::span<const float> raw = slot.draws_on_device ? logits_of(row - 1) : std::span<const float>(raw_row_);
    top_logprobs(raw, out.token, *slot.input->params.logprobs, next_logprobs(result));
  }
}

// The token of a sequence whose tokens are drawn here; -1 if the row is not finite. Overwrites the row, and keeps it in
// raw_row_ for log-probabilities.
int32_t ModelExecutor::draw(Slot& slot, std::span<float> logits, int64_t position) {
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) return -1;
  if (slot.input->params.logprobs) std::copy(logits.begin(), logits.end(), raw_row_.begin());
  const int32_t token = slot.sampler.choose(logits, position);
  slot.sampler.push(token);
  return token;
}

}  // namespace deepinfer
