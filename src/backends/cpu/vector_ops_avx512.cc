#define DEEPINFER_SIMD_AVX512
#include "backends/cpu/vector_ops.h"

#include "backends/cpu/attention_kernel.h"
#include "backends/cpu/elementwise_kernels.h"
#include "backends/cpu/indexer_kernel.h"
#include "backends/cpu/mhc_kernels.h"
#include "backends/cpu/moe_kernels.h"
#include "backends/cpu/row_kernels.h"

namespace deepinfer::cpu {

void fill_vector_ops_avx512(ops::OpTable& table) {
  avx512::fill_elementwise(table);
  avx512::fill_attention(table);
  avx512::fill_indexer(table);
  avx512::fill_mhc(table);
  avx512::fill_moe(table);
  avx512::fill_rows(table);
}

}  // namespace deepinfer::cpu
