// ModelExecutor: runs steps of a model on a device thread of its own, in order. Owns the slot table (which sequence is
// where, its last token, its sampler) and the bytes of the cache.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "model/transformer.h"
#include "runtime/device_blocks.h"
#include "sampling/sequence_sampler.h"
#include "step/executor.h"
#include "transfer/host_blocks.h"

namespace deepinfer {

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
    SequenceSampler sampler;
    int32_t last_token = -1;
  };

  void work();
  void run(const StepPlan& plan, StepResult& result);
  Status prepare(const StepPlan& plan);
  void move_blocks(const StepPlan& plan);
  Status start(const SlotStart& start);
  void read_logits(const StepPlan& plan, StepResult& result);
  int32_t sample(Slot& slot, std::span<float> logits, int64_t position, ItemResult& item, StepResult& result);

  Model& model_;
  std::unique_ptr<DeviceBlocks> device_blocks_;
  const HostBlocks* host_blocks_;
  std::vector<Slot> slots_;
  std::vector<SequenceStep> steps_;
  std::vector<float> logits_;
  std::vector<float> raw_row_;  // a row as the model gave it, for log-probabilities

  // The queue. Counters only grow; entry i lies in place i % size.
  std::mutex mutex_;
  std::condition_variable changed_;
  const StepPlan* plans_[kDepth] = {};
  StepResult results_[kDepth + 1];
  int64_t launched_ = 0, done_ = 0, collected_ = 0;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point last_end_;
  std::thread thread_;
};

}  // namespace deepinfer
