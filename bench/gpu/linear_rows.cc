// Every matrix of a layer that is a linear op, at decode and prefill sizes.
#include <algorithm>
#include <random>

#include "gpu/reference.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {
namespace {

using namespace shape;
using ops::WeightFormat;

// One call of ops::linear: matrices of one width beside each other, that read the same columns or each its own.
struct Call {
  const char* name;
  WeightFormat format;
  std::vector<int64_t> outputs;
  int64_t cols;
  bool own_columns = false;
  bool is_f32 = false;

  int64_t num_outputs() const {
    int64_t sum = 0;
    for (const int64_t o : outputs) sum += o;
    return sum;
  }
  int64_t input_cols() const { return own_columns ? cols * static_cast<int64_t>(outputs.size()) : cols; }
  double weight_bytes() const {
    const double weights = static_cast<double>(num_outputs()) * static_cast<double>(cols);
    return format == WeightFormat::kBf16 ? 2 * weights : weights * (1 + 1.0 / 1024);
  }
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"wq_a, wkv", WeightFormat::kF8Tile32, {kQueryRank, kHeadDim}, kHidden},
      {"wq_b", WeightFormat::kF8Tile32, {kHeads * kHeadDim}, kQueryRank},
      {"wo_a", WeightFormat::kF8Tile32, std::vector<int64_t>(kGroups, kGroupRank), kHeads * kHeadDim / kGroups, true},
      {"wo_b", WeightFormat::kF8Tile32, {kHidden}, kGroups * kGroupRank},
      {"router gate", WeightFormat::kBf16, {kExperts}, kHidden, false, true},
  };
  return all;
}

struct Packed {
  std::vector<ops::WeightSource> sources;
  std::vector<ops::PackedWeight> weights;
};

// Sets of one call's matrices, a gigabyte together.
std::vector<Packed> pack_sets(Parts& parts, const Call& call) {
  const auto count = std::clamp(static_cast<int64_t>(1.0e9 / call.weight_bytes()), int64_t{4}, int64_t{400});
  std::vector<Packed> sets(parts.is_quick ? std::min<int64_t>(count, 40) : count);
  for (Packed& set : sets) {
    for (const int64_t outputs : call.outputs) {
      set.sources.push_back(parts.weights.random().next(call.format, outputs, call.cols));
      set.weights.push_back(ops::pack_weight(parts.card.stream(), set.sources.back()));
    }
  }
  return sets;
}

class LinearBench {
 public:
  LinearBench(Parts& parts, const Call& call, int64_t rows)
      : parts_(parts),
        call_(call),
        n_(rows),
        in_(parts.card.random_activation(rows, call.input_cols())),
        out_(parts.card.values<float>(rows * call.num_outputs())) {}

  void run(const Packed& set) {
    std::vector<ops::LinearTask> tasks;
    int64_t column = 0;
    for (size_t i = 0; i < set.weights.size(); ++i) {
      const int64_t outputs = call_.outputs[i], from = call_.own_columns ? static_cast<int64_t>(i) * call_.cols : 0;
      tasks.push_back({out().columns(column, column + outputs), in_.all().columns(from, from + call_.cols),
                       &set.weights[i], true, !call_.is_f32});
      column += outputs;
    }
    ops::linear(parts_.card.stream(), tasks);
  }

  // A band of outputs of two rows.
  std::string check(const Packed& set) {
    Card& card = parts_.card;
    card.poison(out_.data(), out_.bytes());
    run(set);
    Check check(4e-3);
    int64_t column = 0;
    for (size_t i = 0; i < set.sources.size(); i += std::max<size_t>(1, set.sources.size() - 1)) {
      column = 0;
      for (size_t before = 0; before < i; ++before) column += call_.outputs[before];
      const auto first = static_cast<int64_t>(random_() % (call_.outputs[i] / 32)) * 32;
      const std::vector<float> weight = decoded_rows(card, set.sources[i], first, 32);
      for (const int64_t row : {static_cast<int64_t>(random_() % n_), n_ - 1}) {
        const std::vector<float> in = row_of(card, in_.all(), row), got = row_of(card, out(), row);
        const float* from = in.data() + (call_.own_columns ? static_cast<int64_t>(i) * call_.cols : 0);
        for (int64_t o = 0; o < 32; ++o) {
          check.add(got[column + first + o], dot(from, weight.data() + o * call_.cols, call_.cols));
        }
      }
    }
    return check.text();
  }

  // The vendor's library on weights expanded to BF16.
  double peer_us() {
    if (parts_.vendor == nullptr) return 0;
    Card& card = parts_.card;
    const int64_t expanded = call_.num_outputs() * call_.cols;
    const int64_t sets = std::clamp<int64_t>((int64_t{1} << 29) / expanded, 2, 24);
    const DeviceValues<uint16_t> weights = card.values<uint16_t>(sets * expanded);
    card.fill(weights.data(), weights.bytes(), cuda::RandomKind::kBf16);
    cuda::GemmCall gemm{.out = out_.data(), .a = in_.all().data, .m = n_, .n = call_.num_outputs(), .k = call_.cols};
    if (call_.own_columns) {
      gemm.batch = static_cast<int64_t>(call_.outputs.size());
      gemm.n = call_.outputs.front();
      gemm.a_stride = call_.input_cols(), gemm.a_step = call_.cols;
      gemm.out_stride = call_.num_outputs(), gemm.out_step = gemm.n;
      gemm.b_step = gemm.n * call_.cols;
    }
    return card
        .time(sets,
              [&](int64_t i) {
                gemm.b = weights.data() + i * expanded;
                parts_.vendor->run(card.stream(), gemm);
              })
        .us;
  }

  KernelRow row() const {
    KernelRow row{.section = "linear", .name = call_.name, .rows = n_};
    const auto n = static_cast<double>(n_);
    row.bytes = call_.weight_bytes() +
                n * static_cast<double>(2 * call_.input_cols() + (call_.is_f32 ? 4 : 2) * call_.num_outputs());
    row.flops = 2.0 * n * static_cast<double>(call_.num_outputs()) * static_cast<double>(call_.cols);
    return row;
  }

 private:
  TensorView out() const {
    return {reinterpret_cast<std::byte*>(out_.data()), call_.is_f32 ? ElementType::kF32 : ElementType::kBf16, n_,
            call_.num_outputs(), call_.num_outputs()};
  }

  Parts& parts_;
  const Call& call_;
  int64_t n_;
  Activation in_;
  DeviceValues<float> out_;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace

void bench_linear(Parts& parts) {
  const std::string absent = missing(
      {{"pack_weight", parts.card.ops().pack_weight != nullptr}, {"linear", parts.card.ops().linear != nullptr}});
  for (const Call& call : calls()) {
    std::vector<Packed> sets;
    if (absent.empty()) sets = pack_sets(parts, call);
    for (const int64_t rows : parts.sizes({1, 8, 64, 256, 4096})) {
      LinearBench bench(parts, call, rows);
      KernelRow row = bench.row();
      row.check = absent;
      if (absent.empty()) {
        row.check = bench.check(sets.front());
        row.peer = "cuBLAS BF16";
        row.peer_us = bench.peer_us();
      }
      parts.card.measure(row, static_cast<int64_t>(sets.size()), [&](int64_t i) { bench.run(sets[i]); });
    }
  }
}

}  // namespace deepinfer::bench
