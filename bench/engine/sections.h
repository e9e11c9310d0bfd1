// The sections of the engine benchmark. Each prints its table and returns its part of the JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/engine_bench.h"
#include "engine/load.h"

namespace deepinfer::bench {

using Json = nlohmann::ordered_json;

// A prompt of exactly `length` tokens of text; the same number gives the same prompt. The salt keeps it from being
// found in the cache by another number's; `salt` empty: it may be.
Request make_request(const Engine& engine, uint64_t number, int64_t length, std::string salt);

// An error for an answer that failed or was cut off, which no figure may hide.
Status check_answers(const std::vector<Answer>& answers);

Result<Json> bench_prefill(const EngineBenchOptions& options, const MakeEngine& make_engine);
Result<Json> bench_decode(const EngineBenchOptions& options, const MakeEngine& make_engine);
Result<Json> bench_latency(const EngineBenchOptions& options, const MakeEngine& make_engine);
Result<Json> bench_prefix(const EngineBenchOptions& options, const MakeEngine& make_engine);
Result<Json> bench_replay(const EngineBenchOptions& options, const MakeEngine& make_engine);

}  // namespace deepinfer::bench
