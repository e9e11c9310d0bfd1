// Latency under load: a closed loop of users, an open loop of arrivals; answers end where the model ends them.
#include <cstdio>

#include "engine/sections.h"
#include "engine/statistics.h"

namespace deepinfer::bench {
namespace {

struct Latencies {
  std::vector<double> first, between, total;
  int64_t delivered = 0, natural_ends = 0, answers = 0;

  void add(const std::vector<Answer>& all) {
    for (const Answer& answer : all) {
      first.push_back(answer.first_token_seconds());
      total.push_back(answer.total_seconds());
      for (size_t t = 1; t < answer.times.size(); ++t) {
        between.push_back(seconds_between(answer.times[t - 1], answer.times[t]));
      }
      delivered += static_cast<int64_t>(answer.tokens.size());
      natural_ends += answer.finish_reason == FinishReason::kStop;
      ++answers;
    }
  }
};

std::vector<Request> make_requests(const Engine& engine, const EngineBenchOptions& options, uint64_t round) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < options.requests; ++i) {
    const uint64_t number = options.seed * 104729 + round * 1000 + static_cast<uint64_t>(i);
    const int64_t length =
        std::min<int64_t>(40 + static_cast<int64_t>(number * 2654435761u % 360), engine.max_model_len() / 2);
    requests.push_back(make_request(engine, number, length, fmt::format("latency-{}-{}", round, i)));
    requests.back().sampling.max_tokens = options.max_tokens;
  }
  return requests;
}

void print(const char* mode, const std::vector<double>& rates, const Latencies& l) {
  std::printf("%-22s %8.0f %7.0f-%-7.0f", mode, median(rates), percentile(rates, 0), percentile(rates, 1));
  for (const std::vector<double>* list : {&l.first, &l.between, &l.total}) {
    std::printf("  %6.*f %6.*f %6.*f", list == &l.between ? 1 : 0, percentile(*list, 0.5) * 1e3,
                list == &l.between ? 1 : 0, percentile(*list, 0.95) * 1e3, list == &l.between ? 1 : 0,
                percentile(*list, 0.99) * 1e3);
  }
  std::printf(" %4.0f%%\n", 100.0 * static_cast<double>(l.natural_ends) / static_cast<double>(l.answers));
  std::fflush(stdout);
}

// Answers that the loop gave are given again when each runs alone.
Result<int64_t> count_different_alone(Engine& engine, const EngineBenchOptions& options, const LoadRun& run,
                                      int64_t count) {
  int64_t different = 0;
  std::vector<Request> requests = make_requests(engine, options, 0);
  requests.resize(std::min<size_t>(requests.size(), count));
  for (Request& request : requests) request.cache_salt += "-alone";
  DI_ASSIGN_OR_RETURN(const LoadRun alone, run_closed(engine, std::move(requests), 1));
  for (size_t i = 0; i < alone.answers.size(); ++i) different += alone.answers[i].tokens != run.answers[i].tokens;
  return different;
}

}  // namespace

Result<Json> bench_latency(const EngineBenchOptions& options, const MakeEngine& make_engine) {
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine({}));
  std::printf("\nlatency, prompts of 40 to 400 tokens, nothing cached, at most %ld tokens an answer; milliseconds\n",
              options.max_tokens);
  std::printf("%-22s %8s %15s  %20s  %20s  %20s %5s\n", "", "tokens/s", "least-most", "first token", "inter-token",
              "end to end", "ended");
  std::printf("%-22s %8s %15s  %6s %6s %6s  %6s %6s %6s  %6s %6s %6s\n", "", "", "", "p50", "p95", "p99", "p50", "p95",
              "p99", "p50", "p95", "p99");
  Json out = Json::array();
  double closed_requests_per_s = 0;
  const auto add = [&](const std::string& mode, Json head, const std::vector<double>& rates, const Latencies& l,
                       const EngineStats& before, const EngineStats& after) {
    print(mode.c_str(), rates, l);
    head["requests"] = l.answers;
    head["delivered_tokens_per_s"] = spread(rates);
    head["first_token_s"] = percentiles(l.first);
    head["inter_token_s"] = percentiles(l.between);
    head["end_to_end_s"] = percentiles(l.total);
    head["ended_by_the_model"] = l.natural_ends;
    head["prompt_tokens_computed_last_repeat"] = after.prompt_tokens_computed - before.prompt_tokens_computed;
    head["wasted_rows_last_repeat"] = after.wasted_rows - before.wasted_rows;
    head["preemptions_last_repeat"] = after.preemptions - before.preemptions;
    out.push_back(std::move(head));
  };
  {
    std::vector<double> rates;
    Latencies latencies;
    LoadRun last;
    for (int64_t r = 0; r < options.repeats; ++r) {
      DI_ASSIGN_OR_RETURN(LoadRun run, run_closed(*engine, make_requests(*engine, options, r), options.users));
      DI_RETURN_IF_ERROR(check_answers(run.answers));
      Latencies one;
      one.add(run.answers);
      latencies.add(run.answers);
      rates.push_back(static_cast<double>(one.delivered) / run.seconds);
      closed_requests_per_s = static_cast<double>(options.requests) / run.seconds;
      if (r == 0) {
        DI_ASSIGN_OR_RETURN(const int64_t different, count_different_alone(*engine, options, run, 8));
        if (different > 0) return io_error("{} of 8 answers differ from those that they have alone", different);
      }
      last = std::move(run);
    }
    add(fmt::format("closed, {} users", options.users), {{"mode", "closed"}, {"users", options.users}}, rates,
        latencies, last.before, last.after);
    out.back()["check"] = "8 answers of the first repeat were equal to those of the same requests run alone";
  }
  {
    const double rate = options.rate > 0 ? options.rate : closed_requests_per_s * 2 / 3;
    std::vector<double> rates;
    Latencies latencies;
    LoadRun last;
    for (int64_t r = 0; r < options.repeats; ++r) {
      DI_ASSIGN_OR_RETURN(LoadRun run,
                          run_open(*engine, make_requests(*engine, options, 100 + r), rate, options.seed + r));
      DI_RETURN_IF_ERROR(check_answers(run.answers));
      Latencies one;
      one.add(run.answers);
      latencies.add(run.answers);
      rates.push_back(static_cast<double>(one.delivered) / run.seconds);
      last = std::move(run);
    }
    add(fmt::format("open, {:.2f} requests/s", rate), {{"mode", "open"}, {"requests_per_s", rate}}, rates, latencies,
        last.before, last.after);
  }
  std::printf("ended: answers that the model ended itself. 8 answers were compared with those run alone: equal.\n");
  return out;
}

}  // namespace deepinfer::bench
