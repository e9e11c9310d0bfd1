#define DEEPINFER_SIMD_REFERENCE
#include "backends/cpu/vector_ops.h"

#include "backends/cpu/attention_kernel.h"
#include "backends/cpu/elementwise_kernels.h"
#include "backends/cpu/indexer_kernel.h"
#include "backends/cpu/mhc_kernels.h"
#include "backends/cpu/moe_kernels.h"
#include "backends/cpu/row_kernels.h"

namespace deepinfer::cpu {

void fill_vector_ops_reference(ops::OpTable& table) {
  reference::fill_elementwise(table);
  reference::fill_attention(table);
  reference::fill_indexer(table);
  reference::fill_mhc(table);
  reference::fill_moe(table);
  reference::fill_rows(table);
}

}  // namespace deepinfer::cpu
