// The products of the experts on the tensor cores: who gets which kernel, and the launches of that for few rows.
#include "backends/cuda/experts_gemm.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/experts_few.cuh"
#include "backends/cuda/tensor_map.h"

namespace deepinfer::cuda {
namespace {

using Few8 = FewRows<8, 3>;
using Few16 = FewRows<16, 3>;
using Direct = FewRows<kDirectTileRows, 2, true>;
// For w2 and one token, whose items of 128 rows would be one for every block and a few more that all wait for.
using DirectSmall = FewRows<kDirectTileRows, 5, true, 1>;

// What the routed experts' rows and the shared expert's are copied from. BF16.
struct RowSources {
  ConstTensorView routed, shared;
};

// The rows of a stage in one box, where whole column tiles allow it.
template <class Kind>
RowBoxes row_boxes(const ConstTensorView& rows, WeightFormat format) {
  RowBoxes boxes;
  boxes.tiles = rows.cols % kTileCols == 0 ? stage_tiles<Kind>(format) : 1;
  boxes.map = token_slabs_map(rows.data, rows.rows, rows.cols, rows.stride, width<Kind>(format), boxes.tiles);
  return boxes;
}

template <class Kind, bool kGateUp>
void launch_few(CudaStream& stream, const PlanShape& shape, const RowSources& rows, FewParams& params) {
  params.routed_rows = row_boxes<Kind>(rows.routed, params.routed_format);
  params.shared_rows = row_boxes<Kind>(rows.shared, params.shared_format);
  auto* kernel = few_rows_kernel<Kind, kGateUp>;
  static_assert(kSharedBytes<Kind> <= 227 * 1024 / Kind::kBlocksPerSm - (Kind::kBlocksPerSm - 1) * 512);
  params.items_per_tile = kGateUp ? params.row_tiles : (params.row_tiles + Kind::kGroups - 1) / Kind::kGroups;
  DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Kind>));
  const int64_t most = int64_t{shape.most_tiles()} * params.items_per_tile;
  launch(stream, Start::kEarly,
         dim3(static_cast<unsigned>(std::min<int64_t>(most, stream.num_sms() * Kind::kBlocksPerSm))), Kind::kThreads,
         kSharedBytes<Kind>, kernel, params);
}

}  // namespace

ExpertsVariant choose_variant(int num_tokens, int top_k, const PreparedExperts& bank) {
  const int64_t rows = int64_t{num_tokens} * top_k, experts = bank.num_experts;
  if (rows <= 20 && num_tokens <= 8) return {kDirectTileRows, kDirectTileRows, ExpertsKernel::kDirect, true};
  const WeightFormat routed = bank.routed_format, shared = bank.shared_format;
  if (rows <= 6 * experts) {
    if (num_tokens <= 8) return {8, 8, ExpertsKernel::kFew8, true};
    return {width<Few8>(routed), width<Few8>(shared), ExpertsKernel::kFew8};
  }
  if (rows <= 12 * experts) return {width<Few16>(routed), width<Few16>(shared), ExpertsKernel::kFew16};
  return {most_rows_of_item(bank.routed_format), most_rows_of_item(bank.shared_format), ExpertsKernel::kMany};
}

namespace {

template <bool kGateUp>
void launch_variant(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape, const RowSources& rows,
                    FewParams& params) {
  switch (variant.kernel) {
    case ExpertsKernel::kDirect:
      if (!kGateUp && shape.num_tokens == 1) return launch_few<DirectSmall, false>(stream, shape, rows, params);
      return launch_few<Direct, kGateUp>(stream, shape, rows, params);
    case ExpertsKernel::kFew8:
      return launch_few<Few8, kGateUp>(stream, shape, rows, params);
    case ExpertsKernel::kFew16:
      return launch_few<Few16, kGateUp>(stream, shape, rows, params);
    case ExpertsKernel::kMany:
      DI_CHECK(false, "many rows in a kernel for few");
  }
}

DirectShape direct_shape(const PlanShape& shape, const PreparedExperts& bank, const ops::ExpertsArgs& args) {
  return {shape.num_tokens,
          shape.top_k,
          {args.experts.data, args.experts.stride},
          {args.weights.data, args.weights.stride},
          reinterpret_cast<const ExpertMatrices*>(bank.matrices.get()),
          bank.num_experts};
}

}  // namespace

void multiply_gate_up(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                      const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                      const ExpertsMemory& memory) {
  if (variant.is_many()) return multiply_gate_up_many(stream, shape, bank, args, plan, memory);
  FewParams p;
  set_product(p, bank, plan, bank.inner, bank.hidden);
  set_activation(p, shape, plan, args);
  const ConstTensorView in(args.in.data, ElementType::kBf16, args.in.rows, bank.hidden, args.in.stride);
  const ConstTensorView copies(memory.in_rows, ElementType::kBf16, shape.num_rows(), bank.hidden, bank.hidden);
  p.all_tokens = variant.all_tokens;
  p.row_token = plan.row_token;
  p.out = {reinterpret_cast<__nv_bfloat16*>(memory.activated), bank.inner, bank.inner};
  p.prefetch[0] = args.bank->shared.w1.data.get(), p.prefetch[1] = args.bank->shared.w3.data.get();
  p.prefetch_bytes = args.bank->shared.w1.bytes;
  p.direct = direct_shape(shape, bank, args);
  launch_variant<true>(stream, variant, shape, {variant.all_tokens ? in : copies, in}, p);
}

void multiply_down(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                   const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                   const ExpertsMemory& memory) {
  if (variant.is_many()) return multiply_down_many(stream, shape, bank, plan, memory);
  FewParams p;
  set_product(p, bank, plan, bank.hidden, bank.inner);
  const ConstTensorView rows(memory.activated, ElementType::kBf16, shape.num_rows() + shape.num_tokens, bank.inner,
                             bank.inner);
  p.out = {reinterpret_cast<__nv_bfloat16*>(memory.out_rows), bank.hidden, bank.hidden};
  p.direct = direct_shape(shape, bank, args);
  p.arrivals = reinterpret_cast<unsigned*>(bank.arrivals.get());
  with_element(args.out.type, [&]<typename T>(T) { p.sums = reinterpret_cast<std::byte*>(rows_of<T>(args.out).data); });
  p.sums_stride = args.out.stride, p.sums_are_bf16 = args.out.type == ElementType::kBf16;
  launch_variant<false>(stream, variant, shape, {rows, rows}, p);
}

}  // namespace deepinfer::cuda
