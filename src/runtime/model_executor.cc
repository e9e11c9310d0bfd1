#include "runtime/model_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/sync_guard.h"
#include "sampling/logprobs.h"

namespace deepinfer {

ModelExecutor::ModelExecutor(Device& device, Model& model, std::unique_ptr<DeviceBlocks> device_blocks,
                             const HostBlocks* host_blocks, int32_t num_slots)
    : model_(model), device_blocks_(std::move(device_blocks)), host_blocks_(host_blocks) {
  slots_.reserve(num_slots);
  for (int32_t i = 0; i < num_slots; ++i) slots_.push_back({.state = model.make_placed_sequence()});
  steps_.reserve(num_slots);
  raw_row_.resize(model.config().vocab_size);
  for (StepResult& result : results_) result.items.reserve(num_slots);
  last_end_ = std::chrono::steady_clock::now();
  thread_ = std::thread([this, &device] {
    device.adopt_this_thread();
    work();
  });
}

ModelExecutor::~ModelExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ModelExecutor::launch(const StepPlan& plan) {
  const NoBlocking guard("launch of a step");
  {
    const std::lock_guard lock(mutex_);
    DI_CHECK(launched_ - collected_ < kDepth, "{} steps in flight", launched_ - collected_);
    plans_[launched_ % kDepth] = &plan;
    ++launched_;
  }
  changed_.notify_all();
}

const StepResult& ModelExecutor::collect() {
  about_to_wait("collect");
  std::unique_lock lock(mutex_);
  DI_CHECK(collected_ < launched_, "nothing is in flight");
  changed_.wait(lock, [this] { return done_ > collected_; });
  return results_[collected_++ % (kDepth + 1)];
}

void ModelExecutor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || done_ < launched_; });
    if (done_ == launched_) return;
    const StepPlan& plan = *plans_[done_ % kDepth];
    StepResult& result = results_[done_ % (kDepth + 1)];
    lock.unlock();
    run(plan, result);
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Status ModelExecutor::start(const SlotStart& start) {
  Slot& slot = slots_[start.slot.slot];
  const SequenceInput& input = *start.input;
  slot.generation = start.slot.generation;
  slot.input = &input;
  slot.last_token = -1;
  slot.sampler.reset({.params = &input.params,
                      .key = input.sampling_key,
                      .vocab_size = model_.config().vocab_size,
                      .tokens = start.tokens,
                      .num_prompt_tokens = input.num_prompt_tokens,
                      .max_output_tokens = input.max_tokens_total - input.num_prompt_tokens,
                      .bad_words = input.bad_word_tokens,
                      .end_tokens = input.end_tokens});
  return model_.restart(slot.state, start.tokens.first(start.length), input.max_tokens_total + 1);
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
    const LogitRows wanted = item.prompt_logprobs ? LogitRows::kAll
                             : item.samples       ? LogitRows::kLast
                                                  : LogitRows::kNone;
    const std::span<const int32_t> tokens = item.tokens.empty() ? std::span(&slot.last_token, 1) : item.tokens;
    steps_.push_back({&slot.state, tokens, wanted, slot.input->decoder_begin, slot.input->mask_only});
  }
  return Status();
}

void ModelExecutor::run(const StepPlan& plan, StepResult& result) {
  const auto begin = std::chrono::steady_clock::now();
  result.id = plan.id;
  result.kind = plan.kind;
  result.items.clear();
  result.num_logprobs = 0;
  result.error.clear();
  Status status = prepare(plan);
  // Also without items, for then it waits for the blocks that were moved.
  if (status.ok()) status = model_.forward(steps_, logits_);
  if (status.ok()) {
    read_logits(plan, result);
  } else {
    result.error = status.message();
    for (const StepItem& item : plan.items) result.items.push_back({.slot = item.slot});
  }
  const auto end = std::chrono::steady_clock::now();
  result.device_seconds = std::chrono::duration<double>(end - begin).count();
  result.idle_seconds = std::chrono::duration<double>(begin - last_end_).count();
  last_end_ = end;
}

namespace {

TokenLogprobs& next_logprobs(StepResult& result) {
  if (result.num_logprobs == static_cast<int32_t>(result.logprobs.size())) result.logprobs.emplace_back();
  return result.logprobs[result.num_logprobs++];
}

}  // namespace

void ModelExecutor::read_logits(const StepPlan& plan, StepResult& result) {
  const int64_t vocab = model_.config().vocab_size;
  float* row = logits_.data();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const StepItem& item = plan.items[i];
    Slot& slot = slots_[item.slot.slot];
    ItemResult& out = result.items.emplace_back(ItemResult{.slot = item.slot});
    const auto count = static_cast<int64_t>(steps_[i].tokens.size());
    if (item.prompt_logprobs) {
      out.prompt_begin = result.num_logprobs;
      const int64_t end = std::min(item.begin + count, slot.input->num_prompt_tokens - 1);
      const int32_t best = *slot.input->params.prompt_logprobs;
      for (int64_t p = item.begin; p < end; ++p) {
        const std::span<const float> logits(row + (p - item.begin) * vocab, vocab);
        top_logprobs(logits, slot.input->tokens.data()[p + 1], best, next_logprobs(result));
      }
      out.prompt_end = result.num_logprobs;
    }
    if (item.samples) {
      float* last = row + (item.prompt_logprobs ? (count - 1) * vocab : 0);
      slot.last_token = sample(slot, {last, static_cast<size_t>(vocab)}, item.begin + count, out, result);
    }
    row += item.prompt_logprobs ? count * vocab : item.samples ? vocab : 0;
  }
}

// A row that is not finite fails its own sequence; token 0 keeps the slot going until the scheduler has heard of it.
int32_t ModelExecutor::sample(Slot& slot, std::span<float> logits, int64_t position, ItemResult& item,
                              StepResult& result) {
  item.failed = !std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  if (item.failed) return 0;
  const bool report = slot.input->params.logprobs.has_value();
  if (report) std::copy(logits.begin(), logits.end(), raw_row_.begin());
  item.token = slot.sampler.choose(logits, position);
  slot.sampler.push(item.token);
  if (report) {
    item.logprobs = result.num_logprobs;
    top_logprobs(raw_row_, item.token, *slot.input->params.logprobs, next_logprobs(result));
  }
  return item.token;
}

}  // namespace deepinfer
