// LLM: batch use. Prompts in, answers out, in the same order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer {

class LLM {
 public:
  static std::unique_ptr<LLM> create(const Settings& settings, std::string& error);

  // progress: called with (answers finished, requests) now and then; returning false cancels the rest.
  using Progress = std::function<bool(size_t finished, size_t total)>;

  // All outputs, or none with a message naming the request that was refused. As many requests as the queue holds are in
  // the engine at a time.
  std::vector<RequestOutput> generate(std::vector<Request> requests, std::string& error, const Progress& progress = {});

  Engine& engine() { return *engine_; }

 private:
  explicit LLM(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer
