// What a layer, Engram and the head must at least take: the sum over their parts of bytes over bandwidth or operations
// over rate, whichever is more.
#include <algorithm>

#include "gpu/layer_slice.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {

using namespace shape;

double LayerSlice::layer_floor_us(LayerKind kind, const Ceilings& c) const {
  const auto part = [&](double bytes, double flops) { return KernelRow{.bytes = bytes, .flops = flops}.floor_us(c); };
  const auto n = static_cast<double>(n_);
  const bool is_source = kind == LayerKind::kFull2 || kind == LayerKind::kFull1;
  const double ratio = kind == LayerKind::kFull2 ? 2 : 1;
  // Projections, shared expert, gate, mHC mixing; then what sources and index layers project besides.
  double dense_bytes = 170.0e6, dense_flops = 324e6 * n;
  const double compressor = is_source ? ratio * kHeadDim * kHidden + kIndexDim * kHeadDim : 0;
  const double indexer = has_indexer(kind) ? kIndexHeads * kIndexDim * kQueryRank : 0;
  dense_bytes += 2 * compressor + indexer, dense_flops += 2 * n * (compressor + indexer);
  const double rows = kind == LayerKind::kSwa ? kWindow : kWindow + kIndexTopK;
  const double row_bytes = kWindow * kWindowRowBytes + (rows - kWindow) * kLatentRowBytes;
  double us = part(dense_bytes, dense_flops);
  us += part(draws_.mean_distinct() * kExpertBytes, 6.0 * kTopK * kHidden * kInner * n);
  us += part(row_bytes * n, 4.0 * kHeads * kHeadDim * rows * n);
  us += part(205e3 * n, 0);
  if (has_indexer(kind)) {
    // Keys that a token scores: all it sees, or the candidates; in prefill half of the chunk's on average.
    const bool is_prefill = n_ == caches_.context;
    double keys = static_cast<double>(caches_.context) / ratio / (is_prefill ? 2 : 1);
    if (kind == LayerKind::kReidx) keys = std::min(keys, double{kCandidateBlocks * kCandidateBlock});
    const double bytes = is_prefill ? caches_.context / ratio * kIndexRowBytes : keys * kIndexRowBytes * n;
    us += part(bytes, 2.0 * kIndexHeads * kIndexDim * keys * n);
  }
  return us;
}

double LayerSlice::engram_floor_us(const Ceilings& c) const {
  const auto n = static_cast<double>(n_);
  const double weights = (kStreams + 1.0) * kHidden * kEngramColumns * kEngramDim;
  const double row_bytes = kEngramColumns * (kEngramDim + kEngramDim / 32) + 4.0 * kStreams * kHidden;
  return KernelRow{.bytes = weights * (1 + 1.0 / 1024) + row_bytes * n, .flops = 2 * weights * n}.floor_us(c);
}

double LayerSlice::head_floor_us(const Ceilings& c) const {
  const auto n = static_cast<double>(n_);
  const double weights = static_cast<double>(kVocabulary) * kHidden;
  return KernelRow{.bytes = 2 * weights, .flops = 2 * weights * n}.floor_us(c) +
         KernelRow{.bytes = 4.0 * kVocabulary * n}.floor_us(c);
}

}  // namespace deepinfer::bench
