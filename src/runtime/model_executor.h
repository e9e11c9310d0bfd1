// ModelExecutor: runs steps of a model on a device thread of its own, in order. Owns the slot table (which sequence is
// where, its last token, its sampler) and the bytes of the cache.
//
// Where the device can draw tokens, it draws those of every request that it knows how to (draws_on_device): the token
// stays there for the next step, which is enqueued while this one runs. Other tokens are drawn on the host, from logits
// that are copied, before the next step begins.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "model/transformer.h"
#include "runtime/device_blocks.h"
#include "sampling/sequence_sampler.h"
#include "step/executor.h"
#include "transfer/host_blocks.h"

namespace deepinfer {

// Whether a device that can draw tokens draws this sequence's: a function of the request alone, since the two ways
// agree in all but the last bits of logarithms. Not with penalties, biases, bans, or allowed tokens.
bool draws_on_device(const SequenceInput& input);

class ModelExecutor final : public Executor {
 public:
  // The model must outlive it and is used by nobody else meanwhile. `device_blocks`: the cache's bytes. `host_blocks`:
  // those of the tier below, null if there is none; it outlives the executor.
  ModelExecutor(Device& device, Model& model, std::unique_ptr<DeviceBlocks> device_blocks,
                const HostBlocks* host_blocks, int32_t num_slots);
  ~ModelExecutor() override;  // waits for what was launched

  void launch(const StepPlan& plan) override;
  const StepResult& collect() override;
  int max_in_flight() const override { return kDepth; }

 private:
  static constexpr int kDepth = 2;

  struct Slot {
    uint32_t generation = 0;
    SequenceState state;
    const SequenceInput* input = nullptr;
    SequenceSampler sampler;  // of a sequence whose tokens are drawn here
    bool draws_on_device = false;
    bool is_drawing = false;  // a step that is pending draws its next token
    int32_t last_token = -1;
  };

  // A step on its way through the device.
  struct Flight {
    const StepPlan* plan = nullptr;
    StepResult* result = nullptr;
    std::vector<int64_t> num_tokens;   // by item
    bool reads_logits = false;         // the host does
    std::shared_ptr<std::byte> drawn;  // pinned: a token for each row of logits
    int64_t capacity = 0;              // of `drawn`
    std::unique_ptr<Event> started, ended, returned;
  };

  void work();
  void tell_thread();
  const StepPlan* next_plan();
  void run(Flight& flight);
  bool waits_for_pending(const StepPlan& plan) const;
  Status begin(Flight& flight);
  Status complete(Flight& flight);
  void finish_pending();
  void finish(Flight& flight);
  Status prepare(const StepPlan& plan);
  void move_blocks(const StepPlan& plan);
  Status start(const SlotStart& start);
  void reset_sampler(const SlotStart& start);
  ops::SampleRow draw_of(const SequenceInput& input, int64_t position, int32_t slot) const;
  void read_items(Flight& flight);
  int32_t draw(Slot& slot, std::span<float> logits, int64_t position);

  Device& device_;
  Model& model_;
  std::unique_ptr<DeviceBlocks> device_blocks_;
  const HostBlocks* host_blocks_;
  const bool draws_;  // the device can
  std::vector<Slot> slots_;
  std::vector<SequenceStep> steps_;
  Flight flights_[kDepth];
  Flight* pending_ = nullptr;  // enqueued, not finished
  const Event* last_end_ = nullptr;
  std::string failure_;         // of the device, empty: none. It is told with every step from then on
  std::vector<float> logits_;   // of the last step that was finished, if the host needs them
  std::vector<float> raw_row_;  // a row as the model gave it, for log-probabilities

  // The queue. Counters only grow; entry i lies in place i % size.
  std::mutex mutex_;
  std::condition_variable changed_;
  const StepPlan* plans_[kDepth] = {};
  StepResult results_[kDepth + 1];
  int64_t launched_ = 0, done_ = 0, collected_ = 0;  // done_ is the device thread's
  int64_t taken_ = 0;                                // the device thread's: plans that it began
  std::atomic<bool> has_news_{false};                // launched_ or stopping_ changed
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
