// Packing of weights into the layouts of the linear kernels, and the memory they live in.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/linear.h"

namespace deepinfer::cpu {

// The order of bytes inside a line of FP8 or MXFP4, made so that a vector of the given width decodes it with the fewest
// shuffles.
enum class LineOrder { kYmm, kYmmLanes, kZmm };

// Of a matrix as it lies in the checkpoint.
int64_t weight_data_bytes(const ops::WeightSource& source);
int64_t weight_scale_bytes(const ops::WeightSource& source);

// Of one tile of 16 rows in the layout of linear_unit.h: its scales, padded to whole lines, and all of it.
int64_t tile_scales_bytes(ops::WeightFormat format, int64_t cols);
int64_t tile_bytes(ops::WeightFormat format, int64_t cols);

// Memory for a packed form of `source`: 64-byte aligned, in huge pages when large.
ops::PackedWeight allocate_weight(const ops::WeightSource& source, int64_t bytes);

ops::PackedWeight pack_tiles(ThreadPool& pool, const ops::WeightSource& source, LineOrder order);

}  // namespace deepinfer::cpu
