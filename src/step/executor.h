// Executor: runs steps on a device, in the order of their launch. It never decides anything.
#pragma once

#include "step/step_plan.h"
#include "step/step_result.h"

namespace deepinfer {

class Executor {
 public:
  virtual ~Executor() = default;
  // Returns at once. At most max_in_flight() steps may be launched and not yet collected; the plan stays untouched
  // until then.
  virtual void launch(const StepPlan& plan) = 0;
  // Waits for the oldest step in flight. Valid until the next collect. The only call that waits for the device.
  virtual const StepResult& collect() = 0;
  virtual int max_in_flight() const = 0;
};

}  // namespace deepinfer
