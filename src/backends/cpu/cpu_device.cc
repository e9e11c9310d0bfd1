#include "backends/cpu/cpu_device.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "backends/cpu/cpu_stream.h"
#include "backends/cpu/experts.h"
#include "backends/cpu/linear.h"
#include "backends/cpu/vector_ops.h"
#include "base/cpu_affinity.h"
#include "base/memory_info.h"
#include "ops/op_table.h"

namespace deepinfer {
namespace {

using cpu::CpuStream;
using cpu::LinearKernels;

struct KernelSet {
  const LinearKernels& (*linear)();
  void (*fill_vector_ops)(ops::OpTable&);
  bool is_automatic;  // gives the bits that every machine gives
};

// From the slowest to the fastest.
constexpr std::array<KernelSet, 5> kKernelSets = {{
    {cpu::reference_linear, cpu::fill_vector_ops_reference, true},
    {cpu::avx2_linear, cpu::fill_vector_ops_avx2, true},
    {cpu::avx512_linear, cpu::fill_vector_ops_avx512, true},
    {cpu::avx512_bf16_linear, cpu::fill_vector_ops_avx512, false},
    {cpu::amx_linear, cpu::fill_vector_ops_avx512, false},
}};

// Quantises the outputs that ask for it. Those that lie side by side in one matrix are taken together.
void quantise_outputs(Stream& stream, std::span<const ops::LinearTask> tasks) {
  TensorView whole;
  const auto quantise = [&] {
    if (whole) stream.ops().fake_quant(stream, {ops::FakeQuant::kE4m3Group32, whole, whole});
  };
  for (const ops::LinearTask& task : tasks) {
    if (!task.quantise_output) continue;
    const TensorView& out = task.out;
    const bool follows = whole && whole.rows == out.rows && whole.stride == out.stride &&
                         whole.data + whole.cols * element_bytes(whole.type) == out.data;
    if (follows) {
      whole.cols += out.cols;
      continue;
    }
    quantise();
    whole = out;
  }
  quantise();
}

template <size_t kSet>
void fill_linear(ops::OpTable& table) {
  table.pack_weight = [](Stream& stream, const ops::WeightSource& source) {
    return kKernelSets[kSet].linear().pack(cpu::cpu_stream(stream).pool(), source);
  };
  table.linear = [](Stream& stream, std::span<const ops::LinearTask> tasks) {
    kKernelSets[kSet].linear().run(cpu::cpu_stream(stream).pool(), tasks);
    quantise_outputs(stream, tasks);
  };
}

// Builds one table only: even filling in another set's could run instructions that this processor lacks.
ops::OpTable make_op_table(size_t set) {
  constexpr void (*kFillLinear[])(ops::OpTable&) = {fill_linear<0>, fill_linear<1>, fill_linear<2>, fill_linear<3>,
                                                    fill_linear<4>};
  ops::OpTable table;
  kFillLinear[set](table);
  kKernelSets[set].fill_vector_ops(table);
  cpu::fill_experts(table);
  // `sample` stays null: logits lie in host memory, and the host's sampler reads them there.
  return table;
}

// Requires: bytes >= 0.
Result<std::shared_ptr<std::byte>> allocate_aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  DI_CHECK(bytes >= 0, "{} bytes of memory", bytes);
  const int64_t whole = std::max<int64_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(whole)));
  if (data == nullptr) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("no memory for {} bytes, of which the system has {} available; use a smaller cache",
                              bytes, memory_info("MemAvailable")));
  }
  return std::shared_ptr<std::byte>(data, [](std::byte* memory) { std::free(memory); });
}

class CpuDevice final : public Device {
 public:
  CpuDevice(size_t set, int num_threads, std::vector<int> cpus)
      : set_(set), table_(make_op_table(set)), cpus_(std::move(cpus)), pool_(num_threads, 0, cpus_) {}

  std::string description() const override {
    return fmt::format("cpu, {} thread{}, {} kernels", pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s",
                       kernel_set());
  }
  std::string kernel_set() const override { return kKernelSets[set_].linear().name; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(&table_, &pool_); }
  void adopt_this_thread() override {
    if (!cpus_.empty()) bind_this_thread(cpus_[0]);
  }

  ElementType activation_type(bool /*rounds_to_bf16*/) const override { return ElementType::kF32; }
  Result<std::shared_ptr<std::byte>> allocate(int64_t bytes) override { return allocate_aligned(bytes); }
  Result<std::shared_ptr<std::byte>> allocate_pinned(int64_t bytes) override { return allocate_aligned(bytes); }
  Result<std::shared_ptr<const std::byte>> make_resident(std::span<const std::byte> host) override {
    return std::shared_ptr<const std::byte>(std::shared_ptr<void>(), host.data());  // owns nothing: the caller does
  }
  bool shares_host_memory() const override { return true; }
  int64_t free_bytes() const override { return static_cast<int64_t>(memory_info("MemAvailable")); }

 private:
  size_t set_;
  ops::OpTable table_;
  std::vector<int> cpus_;  // empty: threads are not bound
  ThreadPool pool_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(const CpuOptions& options) {
  constexpr int kMostThreads = 1024;
  if (options.num_threads < 0 || options.num_threads > kMostThreads) {
    return invalid_input("{} threads: give a number from 1 to {}, or 0 for all of this machine", options.num_threads,
                         kMostThreads);
  }
  std::vector<int> cpus = usable_cpus();
  const int num_threads = options.num_threads > 0 ? options.num_threads : static_cast<int>(cpus.size());
  if (!options.bind_threads) cpus.clear();
  std::string present;
  for (size_t set = kKernelSets.size(); set-- > 0;) {
    const LinearKernels& linear = kKernelSets[set].linear();
    if (!linear.supported()) {
      if (options.kernels == linear.name) {
        return unsupported("kernel set {} needs instructions that this processor lacks; use --kernels auto",
                           linear.name);
      }
      continue;
    }
    if (options.kernels == linear.name || (options.kernels == "auto" && kKernelSets[set].is_automatic)) {
      return std::unique_ptr<Device>(std::make_unique<CpuDevice>(set, num_threads, std::move(cpus)));
    }
    present += (present.empty() ? "" : ", ") + std::string(linear.name);
  }
  return invalid_input("unknown kernel set '{}': this processor has auto, {}", options.kernels, present);
}

}  // namespace deepinfer
