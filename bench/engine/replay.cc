// Bounded replay: what a prompt costs when the decoder's layers see its end only, and what that does to the answer.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/sections.h"
#include "engine/statistics.h"

namespace deepinfer::bench {
namespace {

struct Mode {
  std::string name;
  Settings settings;
};

// Largest difference of log-probabilities that both name, as long as the answers are the same so far.
double largest_difference(const std::vector<Answer>& a, const std::vector<Answer>& b, int64_t& compared) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t t = 0; t < std::min(a[i].logprobs.size(), b[i].logprobs.size()); ++t) {
      for (const TokenLogprob& x : a[i].logprobs[t].best) {
        for (const TokenLogprob& y : b[i].logprobs[t].best) {
          if (x.token != y.token) continue;
          largest = std::max(largest, std::abs(x.logprob - y.logprob));
          ++compared;
        }
      }
      if (a[i].tokens[t] != b[i].tokens[t]) break;
    }
  }
  return largest;
}

}  // namespace

Result<Json> bench_replay(const EngineBenchOptions& options, const MakeEngine& make_engine) {
  const std::string least = std::to_string(options.window);
  const std::vector<Mode> modes = {
      {"off", {{"yoco_prefill_keep_tokens", "0"}}},
      {"mask, keep " + least, {{"yoco_prefill_keep_tokens", least}, {"yoco_prefill_truncation_mode", "mask"}}},
      {"compact, keep " + least, {{"yoco_prefill_keep_tokens", least}, {"yoco_prefill_truncation_mode", "compact"}}},
      {"compact, exact", {{"yoco_prefill_keep_tokens", "exact"}, {"yoco_prefill_truncation_mode", "compact"}}}};
  std::printf(
      "\nreplay, prompts of %ld tokens one at a time; difference of log-probabilities against `off` (20 best, 8 "
      "tokens)\n",
      options.long_context);
  std::printf("%-22s %10s %21s %8s %14s %10s\n", "mode", "TTFT ms", "least-most", "faster", "largest diff",
              "same text");
  Json out = Json::array();
  std::vector<Answer> whole;
  double whole_seconds = 0;
  for (const Mode& mode : modes) {
    Result<std::unique_ptr<Engine>> engine = make_engine(mode.settings);
    if (!engine.ok()) {
      std::printf("%-22s %s\n", mode.name.c_str(), engine.status().message().c_str());
      out.push_back({{"mode", mode.name}, {"refused", engine.status().message()}});
      continue;
    }
    std::vector<Request> requests;
    for (int64_t i = 0; i <= options.repeats; ++i) {
      const uint64_t number = options.seed * 15485863 + static_cast<uint64_t>(i);
      requests.push_back(make_request(**engine, number, options.long_context, fmt::format("{}", i)));
      SamplingParams& sampling = requests.back().sampling;
      sampling.temperature = 0;
      sampling.logprobs = 20;
      sampling.max_tokens = 8;
    }
    DI_ASSIGN_OR_RETURN(LoadRun run, run_closed(**engine, std::move(requests), 1));
    DI_RETURN_IF_ERROR(check_answers(run.answers));
    std::vector<double> first;
    for (size_t i = 1; i < run.answers.size(); ++i) first.push_back(run.answers[i].first_token_seconds());
    if (whole.empty()) {
      whole = run.answers;
      whole_seconds = median(first);
    }
    int64_t compared = 0, same = 0;
    const double difference = largest_difference(run.answers, whole, compared);
    for (size_t i = 0; i < whole.size(); ++i) same += run.answers[i].tokens == whole[i].tokens;
    std::printf("%-22s %10.1f %10.1f-%-10.1f %7.2fx %14.3g %7ld/%zu\n", mode.name.c_str(), median(first) * 1e3,
                percentile(first, 0) * 1e3, percentile(first, 1) * 1e3, whole_seconds / median(first), difference, same,
                whole.size());
    std::fflush(stdout);
    out.push_back(
        {{"mode", mode.name},
         {"fingerprint", (*engine)->fingerprint()},
         {"first_token_s", spread(first)},
         {"dropped", {{{"value", run.answers[0].first_token_seconds()}, {"why", "the first prompt: buffers grow"}}}},
         {"times_faster_than_off", whole_seconds / median(first)},
         {"largest_logprob_difference", difference},
         {"logprobs_compared", compared},
         {"answers_equal_to_off", same},
         {"answers", whole.size()}});
  }
  return out;
}

}  // namespace deepinfer::bench
