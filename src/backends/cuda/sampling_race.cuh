// Gumbel-max on a row: noise of (key, position, id) as sampling/philox.h defines it, and the race of ids by logit over
// temperature plus noise. The largest score and among equals the lowest id win, whoever is looked at first; ids whose
// noise cannot lift them over a score that was seen are left out without a logarithm.
#pragma once

#include "backends/cuda/sampling_row.cuh"

namespace deepinfer::cuda::sampling {

struct Words {
  uint32_t word[4];
};

// random_words of sampling/philox.h: of ids 4 * group .. 4 * group + 3.
__device__ inline Words random_words(uint64_t key, int64_t position, uint32_t group) {
  const auto p = static_cast<uint64_t>(position);
  uint32_t c0 = group, c1 = static_cast<uint32_t>(p), c2 = static_cast<uint32_t>(p >> 32), c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

__device__ inline double gumbel(uint32_t word) { return -log(-log((word + 0.5) * 0x1p-32)); }

__device__ inline double score_of(const Row& row, float x, uint32_t word) {
  return static_cast<double>(x) / row.temperature + gumbel(word);
}
__device__ inline double score_of(const Row& row, float x, uint32_t id, double) {
  const Words words = random_words(row.noise_key, row.position, id / 4);
  const uint32_t word = id % 4 == 0 ? words.word[0] : id % 4 == 1 ? words.word[1] : id % 4 == 2 ? words.word[2] : words.word[3];
  return score_of(row, x, word);
}

// An id with `leading` leading ones in its word has a noise below (leading + 1) * kNoisePerBit, because 1 - u is at
// least 2^-(leading + 1). With logits below limit - (leading + 1) * kNoisePerBit * temperature it loses; the limit is
// low enough for what fp32 rounds.
inline constexpr double kNoisePerBit = 0.6932;  // above ln 2
__device__ inline float limit_of(const Row& row, double score) {
  const double at = row.temperature * score;
  return __double2float_rd(at - 1e-6 * (fabs(at) + 34 * kNoisePerBit * row.temperature));
}

// Of this block's ids, in thread 0: the best score and its id. Starts from the row's best logit.
__device__ inline void race(const Row& row, const Filter& filter, float best, uint32_t best_id, double& score,
                            uint32_t& id) {
  Shared& s = *row.shared;
  if (threadIdx.x == 0) {
    s.warp_scores[0] = score_of(row, best, best_id, 0.0);
    s.race_limit = key_of(limit_of(row, s.warp_scores[0]));
  }
  __syncthreads();
  score = s.warp_scores[0];
  id = best_id;
  __syncthreads();
  const float per_bit = __double2float_ru(kNoisePerBit * row.temperature);
  const volatile uint32_t& limit_key = s.race_limit;  // only rises: an old one skips less
  for (uint32_t i = threadIdx.x * 4; i < row.count; i += kThreads * 4) {
    const float4 x4 = *reinterpret_cast<const float4*>(s.values + i);
    const float x[4] = {x4.x, x4.y, x4.z, x4.w};
    const float limit = value_of(limit_key);
    // Written so that a limit that is no number skips nothing.
    if (fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])) < limit - 33 * per_bit) continue;
    const Words words = random_words(row.noise_key, row.position, (row.first_id + i) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int leading = __clz(~words.word[j]);
      if (x[j] < limit - static_cast<float>(leading + 1) * per_bit) continue;
      const uint32_t this_id = row.first_id + i + j;
      if (!filter.keeps(key_of(x[j]), this_id)) continue;
      const double this_score = score_of(row, x[j], words.word[j]);
      if (this_score > score) atomicMax(&s.race_limit, key_of(limit_of(row, this_score)));
      if (this_score > score || (this_score == score && this_id < id)) score = this_score, id = this_id;
    }
  }
  reduce_scores(s, score, id);
}

}  // namespace deepinfer::cuda::sampling
