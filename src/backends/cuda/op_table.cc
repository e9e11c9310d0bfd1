#include "backends/cuda/op_table.h"

#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/kernels.h"

namespace deepinfer::cuda {
namespace {

// An op that is refused memory does nothing, nor do those after it, until the stream has told (Stream::check).
template <auto kOp>
struct Guarded;
template <typename Result, typename Args, Result (*kOp)(Stream&, Args)>
struct Guarded<kOp> {
  static Result call(Stream& stream, Args args) {
    CudaStream& cuda = cuda_stream(stream);
    if (cuda.has_failed()) return Result();
    try {
      return kOp(stream, args);
    } catch (OutOfMemory& refused) {
      cuda.fail(std::move(refused.status));
      return Result();
    }
  }
};
template <auto kOp>
constexpr auto guarded = Guarded<kOp>::call;

}  // namespace

// DEEPINFER_CUDA_WITHOUT_X: a program that links without the family's file leaves its ops out.
ops::OpTable make_op_table() {
  ops::OpTable table;
#ifndef DEEPINFER_CUDA_WITHOUT_LINEAR
  table.pack_weight = guarded<pack_weight>;
  table.linear = guarded<linear>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ELEMENTWISE
  table.embed = guarded<embed>;
  table.rms_norm = guarded<rms_norm>;
  table.fake_quant = guarded<fake_quant>;
  table.swiglu = guarded<swiglu>;
  table.gather_rows = guarded<gather_rows>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ROWS
  table.rope_angles = guarded<rope_angles>;
  table.rope = guarded<rope>;
  table.write_rows = guarded<write_rows>;
  table.compress = guarded<compress>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_LATENTS
  table.latents = guarded<latents>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_MHC
  table.mhc_coefficients = guarded<mhc_coefficients>;
  table.mhc_collapse = guarded<mhc_collapse>;
  table.mhc_update = guarded<mhc_update>;
  table.mhc_boundary = guarded<mhc_boundary>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ATTENTION
  table.attention = guarded<attention>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_INDEXER
  table.index_select = guarded<index_select>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ROUTE
  table.route = guarded<route>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_EXPERTS
  table.prepare_experts = guarded<prepare_experts>;
  table.experts = guarded<experts>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_ENGRAM
  table.engram_rows = guarded<engram_rows>;
  table.engram_apply = guarded<engram_apply>;
#endif
#ifndef DEEPINFER_CUDA_WITHOUT_SAMPLING
  table.sample = guarded<sample>;
#endif
  return table;
}

}  // namespace deepinfer::cuda
