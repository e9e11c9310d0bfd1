// linear: which tasks run on the tensor cores, and which by the exact kernel.
#include "backends/cuda/kernels.h"
#include "backends/cuda/linear_exact.cuh"
#include "backends/cuda/linear_gemm.cuh"

namespace deepinfer::cuda {
namespace {

void check_task(const ops::LinearTask& task) {
  DI_CHECK(task.weight != nullptr && task.weight->data != nullptr, "a product without a weight");
  DI_CHECK(task.in.cols == task.weight->cols && task.out.cols == task.weight->rows && task.in.rows == task.out.rows,
           "[{}, {}] = [{}, {}] times [{}, {}]", task.out.rows, task.out.cols, task.in.rows, task.in.cols,
           task.weight->rows, task.weight->cols);
  DI_CHECK(task.out.type == ElementType::kF32 || task.round_output_to_bf16, "BF16 outputs that are not to be rounded");
  DI_CHECK(!task.quantise_output || task.weight->rows % 32 == 0, "{} outputs to quantise in groups of 32",
           task.weight->rows);
}

}  // namespace

void linear(Stream& stream, std::span<const ops::LinearTask> tasks) {
  ops::LinearTask batch[kMaxGemmTasks];
  size_t count = 0;
  for (const ops::LinearTask& task : tasks) {
    check_task(task);
    if (task.in.rows == 0) continue;
    if (!gemm_supports(task)) {
      run_exact(cuda_stream(stream), task);
      continue;
    }
    batch[count++] = task;
    if (count == kMaxGemmTasks) run_gemm(cuda_stream(stream), {batch, count}), count = 0;
  }
  if (count > 0) run_gemm(cuda_stream(stream), {batch, count});
}

}  // namespace deepinfer::cuda
