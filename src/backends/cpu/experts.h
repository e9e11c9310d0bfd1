// The experts of ops/moe.h on the CPU: tokens are sorted by expert, and every expert runs once over all of its own. All
// first products go in one call of the linear kernels and all second ones in another, so that small products share a
// parallel region.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/scratch.h"
#include "device/stream.h"
#include "ops/linear.h"
#include "ops/moe.h"

namespace deepinfer::cpu {

// Buffers of one stream, reused from call to call. A (token, slot) pair is a row; rows are sorted by expert, expert e
// owning [begin[e], begin[e + 1]).
struct ExpertsWorkspace {
  std::vector<int64_t> begin;
  Scratch rows;         // int32 [num_tokens, top_k]: the pair's row
  Scratch row_tokens;   // int32 [num_rows]: the row's token
  Scratch row_weights;  // float [num_rows + num_tokens]: the shared expert's rows follow, with weight 1
  Scratch in;           // [num_rows, hidden]
  Scratch gate, up;     // [num_rows + num_tokens, inner]
  Scratch out;          // [num_rows + num_tokens, hidden]
  std::vector<ops::LinearTask> tasks;
};

// Fills the entries `prepare_experts` and `experts`.
void fill_experts(ops::OpTable& table);

}  // namespace deepinfer::cpu
