// Kernel of ops/indexer.h. Included by vector_ops_*.cc, once a processor level.
//
// Scores: a lane is a head, so the dot product runs along the key in order and one tree adds the heads. Queries are
// taken in groups whose scores fit the scratch; within a group, first all scores are computed, then every query
// selects.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/row_kernels.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

inline constexpr int64_t kScratchScores = int64_t{1} << 24;  // 64 MiB of scores at a time
inline constexpr int64_t kRowsPerScoreTask = 512;

// Floats in an order in which unsigned integers compare like the floats do; -0 and +0 become equal.
inline uint32_t ordered(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The count-th largest of keys[0, n), byte by byte from the top; num_greater tells how many keys are above it. Written
// out rather than std::nth_element, whose shared instantiation would carry this file's instructions to other
// processors. Requires: 1 <= count <= n.
inline uint32_t find_threshold(const uint32_t* keys, int64_t n, int64_t count, int64_t& num_greater) {
  uint32_t prefix = 0, mask = 0;
  num_greater = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t histogram[256] = {};
    for (int64_t i = 0; i < n; ++i) {
      if ((keys[i] & mask) == prefix) ++histogram[keys[i] >> shift & 255];
    }
    uint32_t digit = 255;
    while (num_greater + histogram[digit] < count) num_greater += histogram[digit--];
    prefix |= digit << shift;
    mask |= 255u << shift;
  }
  return prefix;
}

// Writes the positions of the `count` largest of values[0, n), ascending; the lower position wins a tie.
// Requires: 0 <= count <= n. `work` has room for n.
inline void select_largest(const float* values, int64_t n, int64_t count, uint32_t* work, int32_t* out) {
  if (count == n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
    return;
  }
  if (count == 0) return;
  for (int64_t i = 0; i < n; ++i) work[i] = ordered(values[i]);
  int64_t num_greater;
  const uint32_t threshold = find_threshold(work, n, count, num_greater);
  int64_t ties_left = count - num_greater;
  for (int64_t i = 0, written = 0; written < count; ++i) {
    if (work[i] > threshold || (work[i] == threshold && ties_left-- > 0)) out[written++] = static_cast<int32_t>(i);
  }
}

// q transposed to [dim][heads padded to 16] and the weights padded with zeros.
struct QueryLayout {
  int64_t dim = 0;
  int64_t padded_heads = 0;
  int64_t floats() const { return (dim + 1) * padded_heads; }
};

inline void lay_out_query(const QueryLayout& layout, int64_t num_heads, const float* q, const float* weights,
                          float* out) {
  std::memset(out, 0, layout.floats() * sizeof(float));
  for (int64_t h = 0; h < num_heads; ++h) {
    for (int64_t d = 0; d < layout.dim; ++d) out[d * layout.padded_heads + h] = q[h * layout.dim + d];
    out[layout.dim * layout.padded_heads + h] = weights[h];
  }
}

inline float index_score(const QueryLayout& layout, const float* q, const float* key) {
  const float* weights = q + layout.dim * layout.padded_heads;
  float score = 0;
  int64_t h = 0;
  for (; h + 32 <= layout.padded_heads; h += 32) {
    Vf a = broadcast(0), b = a;
    for (int64_t d = 0; d < layout.dim; ++d) {
      const Vf k = broadcast(key[d]);
      a = fmadd(load(q + d * layout.padded_heads + h), k, a);
      b = fmadd(load(q + d * layout.padded_heads + h + 16), k, b);
    }
    score += sum_lanes(add(mul(relu(a), load(weights + h)), mul(relu(b), load(weights + h + 16))));
  }
  for (; h < layout.padded_heads; h += 16) {
    Vf a = broadcast(0);
    for (int64_t d = 0; d < layout.dim; ++d) a = fmadd(load(q + d * layout.padded_heads + h), broadcast(key[d]), a);
    score += sum_lanes(mul(relu(a), load(weights + h)));
  }
  return score;
}

// Rows that a token's query sees; none of a padding row's.
inline int64_t visible_rows(const ops::IndexSelectArgs& a, int64_t token) {
  const int64_t position = a.positions[token];
  return position < 0 || a.keys.blocks[token] == nullptr ? 0 : (position + 1) / a.ratio;
}

// The rows that a query may choose from: all visible ones, or those of its candidate blocks, numbered 0..count.
struct RowChoice {
  const int32_t* blocks = nullptr;  // null: all visible rows
  int64_t block_size = 0;
  int64_t count = 0;

  int64_t row(int64_t i) const { return blocks ? blocks[i / block_size] * block_size + i % block_size : i; }
};

inline RowChoice choose_rows(const ops::IndexSelectArgs& a, int64_t query) {
  const int64_t visible = visible_rows(a, query);
  if (a.candidate_block == 0 || a.build_candidates || visible == 0) return {nullptr, 0, visible};
  const int64_t blocks = a.num_candidates[query];
  int64_t count = blocks * a.candidate_block;
  if (blocks > 0) {  // the newest block may be partly visible
    const int64_t last_begin = a.candidates.row(query)[blocks - 1] * a.candidate_block;
    count -= std::max<int64_t>(0, last_begin + a.candidate_block - visible);
  }
  return {a.candidates.row(query), a.candidate_block, count};
}

inline void build_candidates(const ops::IndexSelectArgs& a, int64_t query, const float* scores, uint32_t* work,
                             float* block_scores) {
  const int64_t visible = visible_rows(a, query);
  const int64_t num_blocks = (visible + a.candidate_block - 1) / a.candidate_block;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t end = std::min(visible, (b + 1) * a.candidate_block);
    float best = scores[b * a.candidate_block];
    for (int64_t i = b * a.candidate_block + 1; i < end; ++i) best = scores[i] > best ? scores[i] : best;
    block_scores[b] = best;
  }
  if (num_blocks > 0) block_scores[num_blocks - 1] = std::numeric_limits<float>::infinity();
  const int64_t kept = std::min(num_blocks, a.candidates.cols);
  select_largest(block_scores, num_blocks, kept, work, a.candidates.row(query));
  a.num_candidates[query] = static_cast<int32_t>(kept);
}

inline void index_select_kernel(Stream& stream, const ops::IndexSelectArgs& a) {
  const MatrixView<const float> q = a.q.f32(), head_weights = a.head_weights.f32();
  const int64_t num_queries = q.rows;
  const QueryLayout layout{q.cols / std::max<int64_t>(1, a.num_heads), (a.num_heads + 15) / 16 * 16};
  int64_t widest = 1;  // at most max_visible, and here the host can tell
  for (int64_t t = 0; t < num_queries; ++t) widest = std::max(widest, visible_rows(a, t));
  const int64_t group = std::max<int64_t>(1, std::min(num_queries, kScratchScores / widest));
  float* scores = cpu_stream(stream).shared_scratch().get<float>(group * (widest + layout.floats()));
  float* laid_out = scores + group * widest;

  for (int64_t first = 0; first < num_queries; first += group) {
    const int64_t count = std::min(group, num_queries - first);
    for_ranges(stream, count, 1, [&](int64_t i, int64_t, int) {
      lay_out_query(layout, a.num_heads, q.row(first + i), head_weights.row(first + i), laid_out + i * layout.floats());
    });
    const int64_t chunks = (widest + kRowsPerScoreTask - 1) / kRowsPerScoreTask;
    for_ranges(stream, count * chunks, 1, [&](int64_t task, int64_t, int thread) {
      const int64_t i = task / chunks;
      const RowChoice choice = choose_rows(a, first + i);
      const int64_t begin = task % chunks * kRowsPerScoreTask;
      const int64_t end = std::min(choice.count, begin + kRowsPerScoreTask);
      if (choice.count <= a.top_k && !a.build_candidates) return;  // everything is selected: no score is needed
      float* buffer = cpu_stream(stream).thread_scratch(thread).get<float>(layout.dim);
      const ops::RowTable keys = a.keys.of(first + i);
      for (int64_t r = begin; r < end; ++r) {
        const float* key = read_row(keys, choice.row(r), buffer);
        scores[i * widest + r] = index_score(layout, laid_out + i * layout.floats(), key);
      }
    });
    for_ranges(stream, count, 1, [&](int64_t i, int64_t, int thread) {
      const int64_t query = first + i;
      const RowChoice choice = choose_rows(a, query);
      const int64_t kept = std::min(choice.count, a.top_k);
      int32_t* selected = a.selected.row(query);
      auto* work = cpu_stream(stream).thread_scratch(thread).get<uint32_t>(2 * widest);
      select_largest(scores + i * widest, choice.count, kept, work, selected);
      for (int64_t j = 0; j < kept; ++j) selected[j] = static_cast<int32_t>(choice.row(selected[j]));
      a.num_selected[query] = static_cast<int32_t>(kept);
      if (a.candidate_block > 0 && a.build_candidates) {
        build_candidates(a, query, scores + i * widest, work, reinterpret_cast<float*>(work + widest));
      }
    });
  }
}

inline void fill_indexer(ops::OpTable& table) { table.index_select = index_select_kernel; }

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
