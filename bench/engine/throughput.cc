// Prefill and decode: whole batches at fixed lengths.
#include <cstdio>
#include <thread>

#include "engine/sections.h"
#include "engine/statistics.h"
#include "engine/texts.h"

namespace deepinfer::bench {

Request make_request(const Engine& engine, uint64_t number, int64_t length, std::string salt) {
  Request request;
  for (int64_t sentences = length / 16 + 4; static_cast<int64_t>(request.prompt_tokens.size()) < length;
       sentences *= 2) {
    request.prompt_tokens = engine.tokenize(make_story(number, sentences));
  }
  request.prompt_tokens.resize(length);
  request.cache_salt = std::move(salt);
  request.sampling.seq_seed = number;
  request.sampling.temperature = 0.7;
  return request;
}

Status check_answers(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) {
    if (!answer.error.empty()) return io_error("a request failed: {}", answer.error);
    if (answer.finish_reason == FinishReason::kAborted) return io_error("a request was aborted");
  }
  return Status();
}

namespace {

// Whether a row is measured; one that is not stands in the results with the reason.
bool is_measured(const Engine& engine, const EngineBenchOptions& options, int64_t batch, int64_t context, int64_t more,
                 Json& rows) {
  std::string why;
  if (context + more > engine.max_model_len()) {
    why = fmt::format("longer than max_model_len {}", engine.max_model_len());
  } else if (batch * context > options.most_tokens) {
    why = fmt::format("more than {} prompt tokens together (--most-tokens)", options.most_tokens);
  }
  if (why.empty()) return true;
  rows.push_back({{"batch", batch}, {"context", context}, {"left_out", why}});
  std::printf("%5ld %7ld  left out: %s\n", batch, context, why.c_str());
  return false;
}

Result<Json> prefill_row(Engine& engine, const EngineBenchOptions& options, int64_t batch, int64_t context) {
  std::vector<double> rates, first;
  std::vector<double> device_share;
  Json dropped = Json::array();
  double with_dropped_first = 0;
  for (int64_t round = 0; round <= options.repeats; ++round) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < batch; ++i) {
      const uint64_t number = options.seed * 1000003 + static_cast<uint64_t>(round * batch + i);
      requests.push_back(make_request(engine, number, context, fmt::format("{}-{}-{}-{}", batch, context, round, i)));
      requests.back().sampling.max_tokens = 1;
    }
    DI_ASSIGN_OR_RETURN(const LoadRun run, run_closed(engine, std::move(requests), batch));
    DI_RETURN_IF_ERROR(check_answers(run.answers));
    const double rate = static_cast<double>(batch * context) / run.seconds;
    if (round == 0) {
      dropped.push_back({{"value", rate}, {"why", "the first round: buffers grow, files are read for the first time"}});
      with_dropped_first = rate;
      continue;
    }
    rates.push_back(rate);
    device_share.push_back((run.after.device_seconds - run.before.device_seconds) / run.seconds);
    for (const Answer& answer : run.answers) first.push_back(answer.first_token_seconds());
  }
  std::vector<double> all = rates;
  all.push_back(with_dropped_first);
  Json row = {{"batch", batch},
              {"context", context},
              {"prompt_tokens_per_s", spread(rates)},
              {"first_token_s", percentiles(first)},
              {"device_time_share", median(device_share)},
              {"dropped", dropped},
              {"prompt_tokens_per_s_with_dropped", spread(all)}};
  std::printf("%6ld %8ld %12.0f %10.0f-%-10.0f %10.1f %10.1f %8.2f\n", batch, context, median(rates),
              percentile(rates, 0), percentile(rates, 1), percentile(first, 0.5) * 1e3, percentile(first, 0.99) * 1e3,
              median(device_share));
  std::fflush(stdout);
  return row;
}

// Tokens after the logged ones, so that the first answer does not end before the last one has all its own.
constexpr int64_t kMargin = 24;

// The window of logged steps of one round.
struct DecodeRound {
  double seconds = 0;
  int64_t delivered = 0;  // tokens
  double rows = 0, device_seconds = 0, idle_seconds = 0;
  int64_t steps = 0;
  std::vector<double> intervals;  // between the tokens of each answer
};

Result<DecodeRound> decode_round(Engine& engine, const EngineBenchOptions& options, int64_t batch, int64_t context) {
  const int64_t warm_up = options.warm_up_steps, logged = options.steps;
  Load load(engine);
  for (int64_t i = 0; i < batch; ++i) {
    // The prompts of every round are the same: from the second one on they come from the cache.
    Request request = make_request(engine, options.seed * 7919 + static_cast<uint64_t>(i), context, "decode");
    // All start within the prefill steps and end after the window, so that the batch is full in all of it.
    request.sampling.max_tokens = std::min(warm_up + logged + kMargin, engine.max_model_len() - context);
    request.sampling.ignore_eos = true;
    DI_RETURN_IF_ERROR(load.submit(std::move(request)));
  }
  DecodeRound round;
  load.wait_tokens(warm_up);
  const EngineStats before = engine.stats();
  load.wait_tokens(warm_up + logged);
  const EngineStats after = engine.stats();
  const std::vector<Answer> answers = load.take();
  DI_RETURN_IF_ERROR(check_answers(answers));
  round.steps = after.decode_steps - before.decode_steps;
  round.device_seconds = after.device_seconds - before.device_seconds;
  round.idle_seconds = after.device_idle_seconds - before.device_idle_seconds;
  // From when the last answer had its warm-up tokens to when the first one had all logged ones.
  Clock::time_point begin = answers[0].times[warm_up - 1], end = answers[0].times[warm_up + logged - 1];
  for (const Answer& answer : answers) {
    begin = std::max(begin, answer.times[warm_up - 1]);
    end = std::min(end, answer.times[warm_up + logged - 1]);
  }
  round.seconds = seconds_between(begin, end);
  for (const Answer& answer : answers) {
    for (size_t t = 1; t < answer.times.size(); ++t) {
      if (answer.times[t] <= begin || answer.times[t] > end) continue;
      ++round.delivered;
      round.intervals.push_back(seconds_between(answer.times[t - 1], answer.times[t]));
    }
  }
  round.rows = static_cast<double>(round.delivered + after.wasted_rows - before.wasted_rows);
  return round;
}

Result<Json> decode_row(Engine& engine, const EngineBenchOptions& options, int64_t batch, int64_t context) {
  std::vector<double> delivered, rows, device, idle, kept_rates, intervals;
  int64_t num_dropped = 0, num_intervals = 0;
  for (int64_t r = 0; r < options.repeats; ++r) {
    DI_ASSIGN_OR_RETURN(const DecodeRound round, decode_round(engine, options, batch, context));
    if (round.seconds <= 0 || round.steps == 0) {
      return invalid_input("batch {}, context {}: no step in which all sequences decode; give more --steps", batch,
                           context);
    }
    delivered.push_back(static_cast<double>(round.delivered) / round.seconds);
    rows.push_back(round.rows / round.seconds);
    device.push_back(round.device_seconds / static_cast<double>(round.steps));
    idle.push_back(round.idle_seconds / static_cast<double>(round.steps));
    // A step four times as long as the median: somebody else had the processor.
    const double limit = 4 * median(round.intervals);
    double kept_seconds = 0;
    int64_t kept = 0;
    for (const double interval : round.intervals) {
      if (interval > limit) continue;
      kept_seconds += interval;
      ++kept;
    }
    num_dropped += static_cast<int64_t>(round.intervals.size()) - kept;
    num_intervals += static_cast<int64_t>(round.intervals.size());
    kept_rates.push_back(static_cast<double>(kept) / kept_seconds * static_cast<double>(batch));
    intervals.insert(intervals.end(), round.intervals.begin(), round.intervals.end());
  }
  const double rate = median(delivered);
  Json row = {{"batch", batch},
              {"context", context},
              {"ignore_eos", true},
              {"prefill_low_occupancy", 4096},
              {"warm_up_steps", options.warm_up_steps},
              {"logged_steps", options.steps},
              {"delivered_tokens_per_s", spread(delivered)},
              {"delivered_tokens_per_s_per_user", rate / static_cast<double>(batch)},
              {"verified_rows_per_s", spread(rows)},
              {"full_acceptance_tokens_per_s", rate},
              {"inter_token_s", percentiles(intervals)},
              {"device_s_per_step", median(device)},
              {"device_idle_s_per_step", median(idle)},
              {"dropped",
               {{"intervals", num_dropped},
                {"of", num_intervals},
                {"why", "longer than four times the median of their round: another process had the processor"},
                {"delivered_tokens_per_s_without_them", spread(kept_rates)}}}};
  std::printf("%5ld %7ld %8.0f %7.0f-%-7.0f %7.1f %8.0f %8.0f %6.2f %6.2f %6.2f %7.2f %6.3f %4ld\n", batch, context,
              rate, percentile(delivered, 0), percentile(delivered, 1), rate / static_cast<double>(batch), median(rows),
              median(kept_rates), percentile(intervals, 0.5) * 1e3, percentile(intervals, 0.95) * 1e3,
              percentile(intervals, 0.99) * 1e3, median(device) * 1e3, median(idle) * 1e3, num_dropped);
  std::fflush(stdout);
  return row;
}

}  // namespace

Result<Json> bench_prefill(const EngineBenchOptions& options, const MakeEngine& make_engine) {
  std::printf("\nprefill, nothing cached: prompt tokens a second until the last prompt has its first token\n");
  std::printf("%6s %8s %12s %21s %10s %10s %8s\n", "batch", "context", "tokens/s", "least-most", "TTFT p50", "p99 ms",
              "device");
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine({}));
  Json rows = Json::array();
  for (const int64_t context : options.context) {
    for (const int64_t batch : options.batch) {
      if (!is_measured(*engine, options, batch, context, 1, rows)) continue;
      DI_ASSIGN_OR_RETURN(Json row, prefill_row(*engine, options, batch, context));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Result<Json> bench_decode(const EngineBenchOptions& options, const MakeEngine& make_engine) {
  std::printf(
      "\ndecode, full batch, ignoring the end of sequence; tokens a second. Delivered counts tokens that clients got.\n"
      "Verified: rows that ran. No speculation is built, so full acceptance equals delivered.\n");
  std::printf("%5s %7s %8s %15s %7s %8s %8s %20s %14s %4s\n", "", "", "deliv-", "", "a", "veri-", "without",
              "inter-token ms", "ms a step", "");
  std::printf("%5s %7s %8s %15s %7s %8s %8s %6s %6s %6s %7s %6s %4s\n", "batch", "context", "ered", "least-most",
              "user", "fied", "dropped", "p50", "p95", "p99", "device", "idle", "drop");
  // Prompts do not wait for a moment between decode steps, so that the batch is soon full.
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine({{"prefill_low_occupancy", "4096"}}));
  Json rows = Json::array();
  for (const int64_t context : options.context) {
    for (const int64_t batch : options.batch) {
      if (!is_measured(*engine, options, batch, context, options.warm_up_steps + options.steps + kMargin, rows))
        continue;
      DI_ASSIGN_OR_RETURN(Json row, decode_row(*engine, options, batch, context));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace deepinfer::bench
