// Exact selection of the largest of many values: which positions, ascending, the lower position winning a tie.
//
// A block of threads takes a row. Values come with maxima over runs of kMaximaRows of them (or are their own maxima).
// The k-th largest of the maxima of a partition into parts, each of many values, is a bound that at least k values
// reach and few more do; these are gathered in order, and the exact threshold is searched among them. If ties make
// more of them than fit, a radix select over the whole row finds the threshold instead. Every path is exact, so the
// result does not depend on which one was taken; counts alone are added atomically, positions come from ordered scans.
// Floor: one read of the maxima and of the values in the runs that hold a selected one.
#pragma once

#include "backends/cuda/indexer_rows.cuh"

namespace deepinfer::cuda {

struct TopKParams {
  IndexChoice choice;
  IndexScores scores;
  bool has_maxima = false;  // of the scores
  // Selects rows, or, if set, candidate blocks: their scores are the entries of `maxima`, the newest counts as largest.
  bool of_blocks = false;
  int32_t block_size = 1;
  int64_t k = 0;
  int32_t* selected = nullptr;
  int64_t selected_stride = 0;
  int32_t* num_selected = nullptr;
};

// Selects for every token of params.scores. No row has more than max_count scores.
void launch_top_k(Stream& stream, const TopKParams& params, int64_t max_count);

}  // namespace deepinfer::cuda
