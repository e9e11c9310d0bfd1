#include "backends/cuda/op_table.h"

#include "backends/cuda/kernels.h"

namespace deepinfer::cuda {

// DEEPINFER_CUDA_WITHOUT_X: a program that links without the family's file leaves its ops out.
ops::OpTable make_op_table() {
  ops::OpTable table;
#ifndef DEEPINFER_CUDA_WITHOUT_LINEAR
  table.pack_weight = pack_weight;
  table.linear = linear;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ELEMENTWISE
  table.embed = embed;
  table.rms_norm = rms_norm;
  table.fake_quant = fake_quant;
  table.swiglu = swiglu;
  table.gather_rows = gather_rows;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ROWS
  table.rope_angles = rope_angles;
  table.rope = rope;
  table.write_rows = write_rows;
  table.compress = compress;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_LATENTS
  table.latents = latents;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_MHC
  table.mhc_coefficients = mhc_coefficients;
  table.mhc_collapse = mhc_collapse;
  table.mhc_update = mhc_update;
  table.mhc_boundary = mhc_boundary;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ATTENTION
  table.attention = attention;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_INDEXER
  table.index_select = index_select;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ROUTE
  table.route = route;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_EXPERTS
  table.prepare_experts = prepare_experts;
  table.experts = experts;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ENGRAM
  table.engram_rows = engram_rows;
  table.engram_apply = engram_apply;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_SAMPLING
  table.sample = sample;
#endif
  return table;
}

}  // namespace deepinfer::cuda
