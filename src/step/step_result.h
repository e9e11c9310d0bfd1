// StepResult: what came back from one step. Items in the plan's order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/logprobs.h"
#include "step/step_plan.h"

namespace deepinfer {

struct ItemResult {
  SlotHandle slot;
  int32_t token = -1;        // sampled; -1: the item samples nothing
  int32_t logprobs = -1;     // index into StepResult::logprobs of the sampled token's, -1: not asked for
  int32_t prompt_begin = 0;  // [prompt_begin, prompt_end) of StepResult::logprobs: of prompt tokens
  int32_t prompt_end = 0;
  bool failed = false;  // this sequence only: its logits were not finite
};

struct StepResult {
  int64_t id = 0;
  StepKind kind = StepKind::kIdle;
  std::vector<ItemResult> items;
  std::vector<TokenLogprobs> logprobs;  // the first num_logprobs are meant; the rest is memory kept for later
  int32_t num_logprobs = 0;
  double device_seconds = 0;  // from start to end of the step on the device
  double idle_seconds = 0;    // the device waited before it
  std::string error;          // not empty: the device failed, and with it the engine
};

}  // namespace deepinfer
