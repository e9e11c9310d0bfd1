#include "gpu/card.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer::bench {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

Card::Card(std::unique_ptr<Device> device, const Options& options)
    : device_(std::move(device)), stream_(device_->make_stream()), options_(options) {}

std::shared_ptr<std::byte> Card::allocate(int64_t bytes) {
  Result<std::shared_ptr<std::byte>> memory = device_->allocate(bytes);
  DI_CHECK(memory.ok(), "{}", memory.status().message());
  return std::move(memory).value();
}

Activation Card::random_activation(int64_t rows, int64_t cols) {
  Activation out(allocate(rows * cols * 2), rows, cols);
  fill(out.all().data, out.bytes(), cuda::RandomKind::kBf16Unit);
  return out;
}

Activation Card::poisoned_activation(int64_t rows, int64_t cols) {
  Activation out(allocate(rows * cols * 2), rows, cols);
  poison(out.all().data, out.bytes());
  return out;
}

void Card::fill(void* to, int64_t bytes, cuda::RandomKind kind) {
  cuda::fill_random(*stream_, to, bytes, kind, ++seed_);
}

void Card::wait() {
  const Status status = stream_->synchronize();
  DI_CHECK(status.ok(), "{}", status.message());
}

double Card::replay(Graph& graph) {
  cuda::StopWatch watch;
  watch.start(*stream_);
  stream_->launch(graph);
  watch.stop(*stream_);
  return watch.microseconds();
}

Timing Card::time(int64_t most_calls, const std::function<void(int64_t)>& body) {
  cuda::StopWatch watch;
  body(0);  // loads kernels and makes room
  wait();
  watch.start(*stream_);
  body(most_calls - 1);
  watch.stop(*stream_);
  const double once = std::max(1.0, watch.microseconds());
  const auto calls =
      std::clamp(static_cast<int64_t>(options_.recording_us / once), std::min<int64_t>(most_calls, 2), most_calls);
  const auto record = [&] {
    for (int64_t i = 0; i < calls; ++i) body(i);
  };
  Timing timing;
  timing.kernels = static_cast<double>(cuda::count_kernels(*stream_, record)) / static_cast<double>(calls);
  stream_->begin_recording();
  record();
  const std::unique_ptr<Graph> graph = stream_->end_recording();
  const double first = replay(*graph);
  // A card that has rested runs faster at first than it can for long.
  for (double spent_us = first; spent_us < options_.warm_up_us;) spent_us += replay(*graph);
  const int replays = std::max(options_.replays, std::min(200, static_cast<int>(options_.seconds * 1e6 / first / 2)));
  std::vector<double> rounds[2];
  for (std::vector<double>& round : rounds) {
    for (int i = 0; i < replays; ++i) round.push_back(replay(*graph));
  }
  const double a = median(rounds[0]), b = median(rounds[1]);
  rounds[0].insert(rounds[0].end(), rounds[1].begin(), rounds[1].end());
  timing.us = median(rounds[0]) / static_cast<double>(calls);
  timing.spread = std::fabs(a - b) / std::max(a, b);
  return timing;
}

void Card::measure(KernelRow row, int64_t most_calls, const std::function<void(int64_t)>& body) {
  if (!row.is_missing()) row.timing = time(most_calls, body);
  results_.rows.push_back(std::move(row));
}

}  // namespace deepinfer::bench
