#define DEEPINFER_SIMD_AVX2
#include "backends/cpu/vector_ops.h"

#include "backends/cpu/attention_kernel.h"
#include "backends/cpu/elementwise_kernels.h"
#include "backends/cpu/indexer_kernel.h"
#include "backends/cpu/mhc_kernels.h"
#include "backends/cpu/moe_kernels.h"
#include "backends/cpu/row_kernels.h"

namespace deepinfer::cpu {

void fill_vector_ops_avx2(ops::OpTable& table) {
  avx2::fill_elementwise(table);
  avx2::fill_attention(table);
  avx2::fill_indexer(table);
  avx2::fill_mhc(table);
  avx2::fill_moe(table);
  avx2::fill_rows(table);
}

}  // namespace deepinfer::cpu
