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

// A little below gumbel(word), from fp32 logarithms. Where u is almost 1 its distance from 1 says more.
__device__ inline float noise_at_least(uint32_t word) {
  const float u = (static_cast<float>(word) + 0.5f) * 0x1p-32f, rest = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;
  return (rest < 1e-3f ? -logf(rest) : -logf(-logf(u))) - 0.01f;
}

__device__ inline double score_of(const Row& row, float x, uint32_t word) {
  return static_cast<double>(x) / row.temperature + gumbel(word);
}
__device__ inline uint32_t random_word(const Row& row, uint32_t id) {
  const Words words = random_words(row.noise_key, row.position, id / 4);
  return id % 4 == 0 ? words.word[0] : id % 4 == 1 ? words.word[1] : id % 4 == 2 ? words.word[2] : words.word[3];
}

// An id with `leading` leading ones in its word has a noise below (leading + 1) * kNoisePerBit, because 1 - u is at
// least 2^-(leading + 1). With logits below limit - (leading + 1) * kNoisePerBit * temperature it loses; the limit is
// low enough for what fp32 rounds.
inline constexpr double kNoisePerBit = 0.6932;  // above ln 2
__device__ inline float limit_of(const Row& row, double score) {
  const double at = row.temperature * score;
  return __double2float_rd(at - 1e-6 * (fabs(at) + 34 * kNoisePerBit * row.temperature));
}

// Of this block's ids, in thread 0: the best score and its id, of those that are not surely below the row's best logit.
// What passes the bound is listed first and worked out together; a full list is no reason to stop: then at once.
__device__ inline void race(const Row& row, const Filter& filter, float best, uint32_t best_id, double& score,
                            uint32_t& id) {
  Shared& s = *row.shared;
  if (threadIdx.x == 0) {
    s.num_listed = 0;
    s.race_limit = key_of(limit_of(row, best / row.temperature + noise_at_least(random_word(row, best_id))));
  }
  __syncthreads();
  score = -__builtin_huge_val();
  id = kNoId;
  const auto run = [&](float x, uint32_t this_id, uint32_t word) {
    const double this_score = score_of(row, x, word);
    if (this_score > score || (this_score == score && this_id < id)) score = this_score, id = this_id;
    return this_score;
  };
  const float per_bit = __double2float_ru(kNoisePerBit * row.temperature);
  const volatile uint32_t& limit_key = s.race_limit;  // only rises: an old one skips less
#pragma unroll 2
  for (uint32_t i = threadIdx.x * 4; i < row.count; i += kThreads * 4) {
    const float4 x4 = *reinterpret_cast<const float4*>(s.values + i);
    const float x[4] = {x4.x, x4.y, x4.z, x4.w};
    const float limit = value_of(limit_key);
    const float largest = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    // Written so that a limit that is no number skips nothing.
    if (largest < limit - 33 * per_bit || key_of(largest) < filter.low_key) continue;
    const Words words = random_words(row.noise_key, row.position, (row.first_id + i) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int leading = __clz(~words.word[j]);
      if (x[j] < limit - static_cast<float>(leading + 1) * per_bit) continue;
      const uint32_t this_id = row.first_id + i + j;
      if (!filter.keeps(key_of(x[j]), this_id)) continue;
      const uint32_t at = atomicAdd(&s.num_listed, 1);
      if (at < kListSize) {
        s.list[at] = static_cast<uint64_t>(__float_as_uint(x[j])) << 32 | this_id;
      } else {
        atomicMax(&s.race_limit, key_of(limit_of(row, run(x[j], this_id, words.word[j]))));
      }
    }
  }
  __syncthreads();
  const uint32_t count = min(s.num_listed, kListSize);
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const auto this_id = static_cast<uint32_t>(s.list[i]);
    run(__uint_as_float(static_cast<uint32_t>(s.list[i] >> 32)), this_id, random_word(row, this_id));
  }
  reduce_scores(s, score, id);
}

}  // namespace deepinfer::cuda::sampling
