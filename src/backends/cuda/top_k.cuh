// Exact selection of the largest of many values: which positions, ascending, the lower position winning a tie.
//
// Several kernels, all exact, so the choice between them changes no result. By default a block of threads takes a row:
// values come with maxima over runs of kMaximaRows of them (or are their own maxima); the k-th largest of the maxima of
// a partition into parts is a bound that at least k values reach and few more do. If the maxima fit its registers, they
// are read once (top_k_kept.cuh), else twice (top_k_row.cuh); of many long rows without maxima the block makes them
// (top_k_long.cuh). If ties make more values reach the bound than can be held, a radix select over the whole row finds
// the threshold instead. Where there are few rows, or long ones without maxima, a cluster of blocks takes one
// (top_k_cluster.cu), each a part of it that stays in registers; they agree on a bin by histograms and rank what is in
// it. Counts alone are added atomically, positions come from ordered scans. Floor: one read of the values, or of the
// maxima and of the values in the runs that hold a selected one.
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

// What one launch selects: from rows, and from their candidate blocks, if there are two.
struct TopKJobs {
  TopKParams job[2];
  int num = 1;
};

// Selects for the tokens of a job's scores; both jobs have the same. No row has more than max_count scores.
void launch_top_k(Stream& stream, const TopKJobs& jobs, int64_t max_count);
inline void launch_top_k(Stream& stream, const TopKParams& rows, int64_t max_count) {
  launch_top_k(stream, TopKJobs{{rows, {}}, 1}, max_count);
}

// The most blocks of a cluster.
inline constexpr int kTopKCluster = 8;

// By clusters, both jobs in one launch.
void launch_top_k_clusters(Stream& stream, const TopKJobs& jobs, int64_t max_count);

}  // namespace deepinfer::cuda
