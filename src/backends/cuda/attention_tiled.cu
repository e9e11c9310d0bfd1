// Attention of 64 heads of 512 channels on the tensor cores: BF16 rows in shared memory, fp32 sums.
//
// Floor: 4 * 64 * 512 flops a key at the BF16 rate; bytes (288 or 528 a key) matter less from one token up.
//
// A thread block takes token after token (attention_pipeline.cuh). All heads are one tile of 64 rows, so nothing but
// the query's own keys enters its sums.
//
// Of few tokens, two thread blocks (kParts) have one together: each has all its scores and the sums of half of the
// channels. They know nothing of each other.
#include <algorithm>

#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/attention_scores.cuh"
#include "backends/cuda/attention_values.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 3 * kWarpgroup;

template <RowKind kWindow, RowKind kCompressed, int kParts>
__global__ void __launch_bounds__(kThreads, 1) tiled_kernel(const __grid_constant__ AttentionParams p) {
#ifdef DI_SM90A
  extern __shared__ std::byte memory[];
  PipelineShared& s = *reinterpret_cast<PipelineShared*>(memory + (-shared_address(memory) & 1023));
  if (threadIdx.x == 0) init_barriers(s, TileFiller<kWindow>::kFullArrivals);
  wait_for_kernel_before();
  let_next_kernel_start();
  find_first_rows<kWindow, kCompressed>(p, s);
  __syncthreads();
  const int role = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (role < 2) {
    take_registers<kParts == 1 ? 200 : 184>();
    sum_values<kWindow, kParts>(p, s, role);
  } else {
    give_registers<kParts == 1 ? 104 : 136>();
    weigh_keys<kWindow, kCompressed>(p, s);
  }
#else
  __trap();
#endif
}

template <RowKind kWindow, RowKind kCompressed, int kParts>
void launch_parts(Stream& stream, const AttentionParams& p) {
  constexpr size_t kBytes = sizeof(PipelineShared) + 1024;
  static const bool once = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(tiled_kernel<kWindow, kCompressed, kParts>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)once;
  const int blocks = std::min(p.num_tokens, cuda_stream(stream).num_sms() / kParts);
  launch(stream, Start::kEarly, dim3(blocks, kParts), kThreads, kBytes, tiled_kernel<kWindow, kCompressed, kParts>, p);
}

template <RowKind kWindow, RowKind kCompressed>
void launch_tiled(Stream& stream, const AttentionParams& p) {
  if (p.num_tokens * 2 <= cuda_stream(stream).num_sms()) {
    launch_parts<kWindow, kCompressed, 2>(stream, p);
  } else {
    launch_parts<kWindow, kCompressed, 1>(stream, p);
  }
}

bool starts_at_16(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

bool attention_tiled_takes(const ops::AttentionArgs& a) {
  using enum ops::RowType;
  const bool compressed = a.compressed.blocks != nullptr;
  const bool rows = a.window.type == kBf16
                        ? !compressed || a.compressed.type == kBf16
                        : a.window.type == kE4m3Group32 &&
                              (!compressed || a.compressed.type == kE2m1Group16 || a.compressed.type == kE4m3Group32);
  return a.q.type == ElementType::kBf16 && a.out.type == ElementType::kBf16 && a.round_to_bf16 &&
         a.num_heads == kHeads && a.q.cols == kHeads * kDim && (a.cosine.data == nullptr || a.cosine.cols == kPairs) &&
         a.window_size <= kMaxWindow && rows && a.window.offset % 16 == 0 &&
         (!compressed || (a.selected.cols <= kMaxSelected && a.compressed.offset % 16 == 0)) &&
         starts_at_16(a.q.data, a.q.stride * 2) && starts_at_16(a.out.data, a.out.stride * 2);
}

void attention_tiled(Stream& stream, const ops::AttentionArgs& args) {
  using enum RowKind;
  const AttentionParams p = params_of(args);
  if (args.window.type == ops::RowType::kBf16) {
    launch_tiled<kBf16, kBf16>(stream, p);
  } else if (args.compressed.blocks != nullptr && args.compressed.type == ops::RowType::kE4m3Group32) {
    launch_tiled<kE4m3, kE4m3>(stream, p);
  } else {
    launch_tiled<kE4m3, kE2m1>(stream, p);
  }
}

}  // namespace deepinfer::cuda
