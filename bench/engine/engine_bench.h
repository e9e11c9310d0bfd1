// The engine benchmark: a real engine on a real model, loaded with real text. What counts are tokens that reached a
// client, by the wall clock. Every figure is repeated, nothing is dropped without being listed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "deepinfer/engine.h"

namespace deepinfer::bench {

struct EngineBenchOptions {
  std::vector<std::string> sections = {"prefill", "decode", "latency", "prefix", "replay"};
  std::vector<int64_t> batch = {1, 4, 16, 64};
  std::vector<int64_t> context = {128, 1024};  // prompt tokens
  int64_t most_tokens = 16384;                 // prompt tokens of a batch together; larger rows are left out
  int64_t warm_up_steps = 50;                  // of decode
  int64_t steps = 60;                          // logged, of decode
  int64_t repeats = 3;
  int64_t users = 8;            // of the closed loop
  int64_t requests = 48;        // of each loop
  double rate = 0;              // of the open loop, requests a second; 0: two thirds of what the closed loop reached
  int64_t max_tokens = 96;      // of an answer in the loops
  int64_t long_context = 2048;  // of the prefix and replay sections
  int64_t window = 0;           // of the model: the least that bounded replay may keep
  std::string commit;
  std::string json_path;  // empty: no file
  uint64_t seed = 1;
};

// Makes an engine with these settings on top of the user's.
using MakeEngine = std::function<Result<std::unique_ptr<Engine>>(const Settings&)>;

// Prints tables to stdout, and writes the file.
Status run_engine_bench(const EngineBenchOptions& options, const MakeEngine& make_engine, const Settings& reported);

}  // namespace deepinfer::bench
