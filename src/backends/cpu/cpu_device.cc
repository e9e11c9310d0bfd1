#include "backends/cpu/cpu_device.h"

#include <algorithm>
#include <array>

#include "backends/cpu/cpu_stream.h"
#include "base/cpu_affinity.h"
#include "backends/cpu/linear.h"
#include "backends/cpu/vector_ops.h"
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
constexpr std::array<KernelSet, 4> kKernelSets = {{
    {cpu::reference_linear, cpu::fill_vector_ops_reference, true},
    {cpu::avx2_linear, cpu::fill_vector_ops_avx2, true},
    {cpu::avx512_linear, cpu::fill_vector_ops_avx512, true},
    {cpu::avx512_bf16_linear, cpu::fill_vector_ops_avx512, false},
}};

template <size_t kSet>
void fill_linear(ops::OpTable& table) {
  table.pack_weight = [](Stream& stream, const ops::WeightSource& source) {
    return kKernelSets[kSet].linear().pack(cpu::cpu_stream(stream).pool(), source);
  };
  table.linear = [](Stream& stream, std::span<const ops::LinearTask> tasks) {
    kKernelSets[kSet].linear().run(cpu::cpu_stream(stream).pool(), tasks);
  };
}

// Builds one table only: even filling in another set's could run instructions that this processor lacks.
ops::OpTable make_op_table(size_t set) {
  constexpr void (*kFillLinear[])(ops::OpTable&) = {fill_linear<0>, fill_linear<1>, fill_linear<2>, fill_linear<3>};
  ops::OpTable table;
  kFillLinear[set](table);
  kKernelSets[set].fill_vector_ops(table);
  return table;
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
