// What a decode step costs the engine's thread in the scheduler: schedule (ballot, vote, plan) and apply, and how often
// it allocates. The device returns a token at once.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "allocation_counter.h"
#include "scheduler/steady_decode.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double percentile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<int64_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

struct Round {
  double schedule_p50 = 0, schedule_p99 = 0, apply_p50 = 0, apply_p99 = 0;  // microseconds
  double allocations = 0;                                                   // in the whole round
};

Round measure(SteadyDecode& run, int64_t num_steps, std::vector<double>& schedule, std::vector<double>& apply) {
  schedule.clear();
  apply.clear();
  const int64_t before = allocation_count;
  for (int64_t i = 0; i < num_steps; ++i) {
    const auto begin = Clock::now();
    const StepPlan& plan = run.schedule();
    const auto planned = Clock::now();
    run.launch(plan);
    const auto launched = Clock::now();
    run.apply();
    schedule.push_back(microseconds(begin, planned));
    apply.push_back(microseconds(launched, Clock::now()));
  }
  const auto allocations = static_cast<double>(allocation_count - before);
  return {percentile(schedule, 0.5), percentile(schedule, 0.99), percentile(apply, 0.5), percentile(apply, 0.99),
          allocations};
}

// The median of a member over the rounds, with the smallest and the largest.
std::string spread(const std::vector<Round>& rounds, double Round::*member) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(round.*member);
  std::sort(values.begin(), values.end());
  return fmt::format("{:.1f} ({:.1f}-{:.1f})", values[values.size() / 2], values.front(), values.back());
}

void bench(const std::vector<int32_t>& sizes, int64_t num_rounds, int64_t num_steps) {
  fmt::print("microseconds a decode step; median of {} rounds of {} steps (smallest-largest); allocations of a round\n",
             num_rounds, num_steps);
  fmt::print("{:>9} {:>20} {:>20} {:>20} {:>20} {:>13}\n", "sequences", "schedule p50", "schedule p99", "apply p50",
             "apply p99", "allocations");
  std::vector<double> schedule, apply;
  schedule.reserve(num_steps);
  apply.reserve(num_steps);
  for (const int32_t size : sizes) {
    constexpr int64_t kWarmUp = 50;
    SteadyDecode run(size, kWarmUp + num_rounds * num_steps + 40);
    for (int64_t i = 0; i < kWarmUp; ++i) run.step();
    std::vector<Round> rounds;
    for (int64_t r = 0; r < num_rounds; ++r) rounds.push_back(measure(run, num_steps, schedule, apply));
    fmt::print("{:>9} {:>20} {:>20} {:>20} {:>20} {:>13}\n", size, spread(rounds, &Round::schedule_p50),
               spread(rounds, &Round::schedule_p99), spread(rounds, &Round::apply_p50),
               spread(rounds, &Round::apply_p99), spread(rounds, &Round::allocations));
  }
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  CLI::App program("Cost of the scheduler in decode steps");
  std::vector<int32_t> sizes = {16, 64, 256, 1024};
  int64_t rounds = 7, steps = 500;
  program.add_option("--sequences", sizes, "Running sequences")->delimiter(',')->check(CLI::Range(1, 4096));
  program.add_option("--rounds", rounds, "Rounds")->check(CLI::Range(1, 1000))->capture_default_str();
  program.add_option("--steps", steps, "Steps a round")->check(CLI::Range(1, 100000))->capture_default_str();
  CLI11_PARSE(program, argc, argv);
  deepinfer::bench(sizes, rounds, steps);
}
