// ops::attention on the card: chooses among the kernels of attention_kernels.h.
#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/kernels.h"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kFewTokens = 45;  // up to here eight multiprocessors each finish sooner, fifteen tokens at a time

}  // namespace

void attention(Stream& stream, const ops::AttentionArgs& args) {
  if (args.q.rows == 0) return;
  if (!attention_tiled_takes(args)) {
    attention_simple(stream, args);
  } else if (args.q.rows <= kFewTokens) {
    attention_cluster(stream, args);
  } else {
    attention_tiled(stream, args);
  }
}

}  // namespace deepinfer::cuda
