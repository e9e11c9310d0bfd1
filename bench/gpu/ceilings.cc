#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "gpu/sections.h"

namespace deepinfer::bench {
namespace {

double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Host time to launch a recording of a step's worth of kernels, and the card's time between two such steps.
void measure_graphs(Card& card, Ceilings& c) {
  Stream& stream = card.stream();
  constexpr int kKernels = 600;  // fifteen a layer, forty layers
  stream.begin_recording();
  for (int i = 0; i < kKernels; ++i) cuda::launch_empty(stream, 132);
  const std::unique_ptr<Graph> step = stream.end_recording();
  const auto run = [&](int launches) {
    cuda::StopWatch watch;
    watch.start(stream);
    for (int i = 0; i < launches; ++i) stream.launch(*step);
    watch.stop(stream);
    return watch.microseconds();
  };
  run(3);
  c.empty_kernel_us = run(20) / 20 / kKernels;
  const double one = run(1), four = run(4);
  c.graph_gap_us = std::max(0.0, (four - one) / 3 - kKernels * c.empty_kernel_us);
  double host = 0;
  for (int i = 0; i < 20; ++i) {
    card.wait();
    const auto begin = std::chrono::steady_clock::now();
    stream.launch(*step);
    host += microseconds_since(begin) / 20;
  }
  card.wait();
  c.graph_launch_us = host;
}

}  // namespace

std::string missing(const std::vector<std::pair<const char*, bool>>& ops) {
  for (const auto& [name, is_there] : ops) {
    if (!is_there) return std::string("missing op: ") + name;
  }
  return "";
}

void measure_ceilings(Parts& parts) {
  Card& card = parts.card;
  Ceilings& c = card.results().ceilings;
  constexpr int64_t kBytes = int64_t{4} << 30;
  {
    const DeviceValues<std::byte> memory = card.values<std::byte>(2 * kBytes);
    card.fill(memory.data(), memory.bytes(), cuda::RandomKind::kE2m1);
    const Timing read =
        card.time(2, [&](int64_t i) { cuda::read_memory(card.stream(), memory.data() + i % 2 * kBytes, kBytes); });
    const Timing copy =
        card.time(1, [&](int64_t) { cuda::copy_memory(card.stream(), memory.data() + kBytes, memory.data(), kBytes); });
    // The runtime's own copy may take another way if it is not recorded.
    double runtime_us = copy.us;
    for (int i = 0; i < 20; ++i) {
      cuda::StopWatch watch;
      watch.start(card.stream());
      card.stream().copy(memory.data() + kBytes, memory.data(), kBytes);
      watch.stop(card.stream());
      runtime_us = std::min(runtime_us, watch.microseconds());
    }
    c.read_gbps = static_cast<double>(kBytes) / read.us * 1e-3;
    c.copy_gbps = 2.0 * static_cast<double>(kBytes) / std::min(copy.us, runtime_us) * 1e-3;
  }
  c.bf16_tflops = 790;  // measured elsewhere on this kind of card; replaced where the library is installed
  if (parts.vendor != nullptr) {
    constexpr int64_t kSize = 8192;
    const Activation a = card.random_activation(kSize, kSize), b = card.random_activation(kSize, kSize);
    const Activation out = card.poisoned_activation(kSize, kSize);
    // The best of three after a rest each: a card that has just worked lowers its clock for a while.
    c.bf16_tflops = 0;
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      const Timing gemm = card.time(4, [&](int64_t) {
        parts.vendor->run(
            card.stream(),
            {.out = out.all().data, .a = a.all().data, .b = b.all().data, .m = kSize, .n = kSize, .k = kSize});
      });
      c.bf16_tflops = std::max(c.bf16_tflops, 2.0 * kSize * kSize * kSize / gemm.us * 1e-6);
    }
  }
  measure_graphs(card, c);
}

}  // namespace deepinfer::bench
