// ops::attention on the card: chooses among the kernels of attention_kernels.h.
#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/kernels.h"

namespace deepinfer::cuda {

void attention(Stream& stream, const ops::AttentionArgs& args) {
  if (args.q.rows == 0) return;
  if (attention_tiled_takes(args)) {
    attention_tiled(stream, args);
  } else {
    attention_simple(stream, args);
  }
}

}  // namespace deepinfer::cuda
