// experts: the plan, both products of every expert with its rows, and the sum of a token's rows. Four launches; a
// handful of tokens takes the products alone, and more than eight take a fifth that copies them to their experts' rows.
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_device.h"
#include "backends/cuda/experts_exact.cuh"
#include "backends/cuda/experts_gemm.cuh"
#include "backends/cuda/kernels.h"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {
namespace {

struct Prepared : PreparedExperts {
  std::shared_ptr<std::byte> exact;  // ExactMatrices, likewise
};

bool is_packed_code(WeightFormat format) { return format == WeightFormat::kF8Tile32 || format == WeightFormat::kMxfp4; }

ExpertMatrix matrix_of(const ops::PackedWeight& weight) {
  const PackedInfo info = packed_info(weight);
  const int constant = weight.format == WeightFormat::kF8Tile32 ? kE4m3Exponent : kE2m1Exponent;
  return {weight.data.get(), constant + info.scale_bias, info.output_scale};
}

template <typename T>
std::shared_ptr<std::byte> upload(CudaStream& stream, const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  std::shared_ptr<std::byte> memory = stream.allocate(bytes, "the table of the experts' matrices");
  stream.copy(memory.get(), values.data(), bytes);
  return memory;
}

void check_shapes(const ops::ExpertsArgs& a, const Prepared& bank) {
  DI_CHECK(a.in.cols == bank.hidden && a.out.cols == bank.hidden && a.in.rows == a.out.rows &&
               a.experts.rows == a.in.rows && a.weights.rows == a.in.rows && a.experts.cols == a.weights.cols,
           "[{}, {}] = experts of [{}, {}], {} slots for {} tokens", a.out.rows, a.out.cols, a.in.rows, a.in.cols,
           a.experts.cols, a.experts.rows);
  DI_CHECK(a.out.type == ElementType::kF32 || a.round_to_bf16, "BF16 outputs that are not to be rounded");
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void prepare_experts(Stream& stream, ops::ExpertBank& bank) {
  auto prepared = std::make_shared<Prepared>();
  std::vector<ExpertMatrices> matrices;
  std::vector<ExactMatrices> exact;
  prepared->num_experts = static_cast<int>(bank.routed.size());
  prepared->hidden = static_cast<int>(bank.shared.w1.cols), prepared->inner = static_cast<int>(bank.shared.w1.rows);
  prepared->shared_format = bank.shared.w1.format;
  prepared->routed_format = bank.routed.empty() ? bank.shared.w1.format : bank.routed[0].w1.format;
  prepared->tensor_cores = true;
  const auto add = [&](const ops::ExpertWeights& e, WeightFormat format) {
    for (const ops::PackedWeight* w : {&e.w1, &e.w3, &e.w2}) {
      const bool down = w == &e.w2;
      DI_CHECK(w->rows == (down ? prepared->hidden : prepared->inner) &&
                   w->cols == (down ? prepared->inner : prepared->hidden),
               "an expert with a [{}, {}] matrix among experts of width {} and {}", w->rows, w->cols, prepared->hidden,
               prepared->inner);
      prepared->tensor_cores =
          prepared->tensor_cores && w->format == format && is_packed_code(format) && !packed_info(*w).exact_only;
    }
    matrices.push_back({matrix_of(e.w1), matrix_of(e.w3), matrix_of(e.w2)});
    exact.push_back({{e.w1.data.get(), e.w1.format}, {e.w3.data.get(), e.w3.format}, {e.w2.data.get(), e.w2.format}});
  };
  for (const ops::ExpertWeights& expert : bank.routed) add(expert, prepared->routed_format);
  add(bank.shared, prepared->shared_format);
  CudaStream& cuda = cuda_stream(stream);
  prepared->matrices = upload(cuda, matrices);
  prepared->exact = upload(cuda, exact);
  prepared->arrivals = upload(cuda, std::vector<unsigned>((prepared->hidden + kTileRows - 1) / kTileRows, 0u));
  bank.prepared = std::move(prepared);
}

void experts(Stream& stream, const ops::ExpertsArgs& args) {
  CudaStream& cuda = cuda_stream(stream);
  DI_CHECK(args.bank != nullptr && args.bank->prepared != nullptr, "experts without prepare_experts");
  const auto& bank = *static_cast<const Prepared*>(args.bank->prepared.get());
  check_shapes(args, bank);
  const int num_tokens = static_cast<int>(args.in.rows);
  if (num_tokens == 0) return;
  PlanShape shape{num_tokens, static_cast<int>(args.experts.cols), bank.num_experts, kExactTileRows, kExactTileRows};
  const auto* matrices = reinterpret_cast<const ExpertMatrices*>(bank.matrices.get());
  const int64_t all_rows = shape.num_rows() + num_tokens;
  const bool fast = bank.tensor_cores && args.in.type == ElementType::kBf16 && args.round_to_bf16 &&
                    reinterpret_cast<uintptr_t>(args.in.data) % 16 == 0 && args.in.stride % 8 == 0;
  if (!fast) {
    const int64_t plan_size = aligned(plan_bytes(shape)), activated_size = aligned(all_rows * bank.inner * 4);
    auto* memory = static_cast<std::byte*>(cuda.scratch(plan_size + activated_size + all_rows * bank.hidden * 4));
    const ExpertsPlan plan = plan_at(memory, shape);
    auto* activated = reinterpret_cast<float*>(memory + plan_size);
    std::byte* out_rows = memory + plan_size + activated_size;
    make_plan(cuda, shape, args, matrices, plan);
    exact_experts(cuda, shape, reinterpret_cast<const ExactMatrices*>(bank.exact.get()), args, plan, activated,
                  reinterpret_cast<float*>(out_rows));
    return combine_rows(cuda, shape, plan, out_rows, ElementType::kF32, args);
  }
  const ExpertsVariant variant = choose_variant(num_tokens, shape.top_k, bank);
  shape.tile_rows = variant.tile_rows, shape.shared_tile_rows = variant.shared_tile_rows;
  const int64_t plan_size = aligned(plan_bytes(shape)), activated_size = aligned(all_rows * bank.inner * 2);
  auto* memory = static_cast<std::byte*>(cuda.scratch(plan_size + activated_size + all_rows * bank.hidden * 2));
  const ExpertsPlan plan = plan_at(memory, shape);
  // The tokens' copies have been read when the second product writes its rows.
  std::byte* rows = memory + plan_size + activated_size;
  const ExpertsMemory where{rows, memory + plan_size, rows};
  if (!variant.is_direct()) make_plan(cuda, shape, args, matrices, plan);
  if (!variant.all_tokens) scatter_tokens(cuda, shape, plan, args.in, rows);
  multiply_gate_up(cuda, variant, shape, bank, args, plan, where);
  multiply_down(cuda, variant, shape, bank, args, plan, where);
  if (!variant.is_direct()) combine_rows(cuda, shape, plan, rows, ElementType::kBf16, args);
}

}  // namespace deepinfer::cuda
