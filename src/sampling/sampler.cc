#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "sampling/philox.h"

namespace deepinfer {
namespace {

constexpr double kGreedyBelow = 1e-5;
// No noise exceeds -log(-log(1 - 2^-33)).
constexpr double kLargestNoise = 22.9;

double gumbel(uint32_t word) { return -std::log(-std::log(uniform_of(word))); }

// At least gumbel(word), without a logarithm: -log(-log(u)) <= -log(1 - u), and 1 - u >= 2^-(leading ones of u + 1).
double gumbel_bound(uint32_t word) {
  constexpr double kAboveLogTwo = 0.6932;
  return (std::countl_one(word) + 1) * kAboveLogTwo;
}

// Best first, ties to the lower id: the order in which top-k and top-p keep tokens.
struct Better {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// Leaves in `ids` the smallest set of best ones with at least `top_p` of the probability of all. Without
// sorting them all: weights are summed by how far below the best their tokens are, and only the slice in which the sum
// is reached is sorted. Every sum runs in an order that the ids and logits fix.
void keep_top_p(std::vector<int32_t>& ids, std::span<const float> logits, double best, double temperature,
                double top_p) {
  constexpr int kSlices = 1024;
  constexpr double kSlicesPerUnit = 16;  // of (best - logit) / temperature; the last slice holds all the rest
  const auto slice = [&](int32_t id) {
    return static_cast<int>(std::min<double>(kSlices - 1, (best - logits[id]) / temperature * kSlicesPerUnit));
  };
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - best) / temperature); };
  std::array<double, kSlices> weights{};
  for (const int32_t id : ids) weights[slice(id)] += weight(id);
  double total = 0;
  for (const double w : weights) total += w;
  double sum = 0;
  int last = 0;
  while (last < kSlices - 1 && sum + weights[last] < top_p * total) sum += weights[last++];
  std::erase_if(ids, [&](int32_t id) { return slice(id) > last; });
  const auto begin = std::partition(ids.begin(), ids.end(), [&](int32_t id) { return slice(id) < last; });
  std::sort(begin, ids.end(), Better{logits});
  auto end = begin;
  while (end != ids.end() && sum < top_p * total) sum += weight(*end++);
  ids.erase(end, ids.end());
}

// Gumbel-max, starting from the best token, so that those which their noise cannot lift over the best so far are
// skipped before the noise is worked out.
class Race {
 public:
  Race(std::span<const float> logits, int64_t position, double temperature, uint64_t key, int32_t best)
      : logits_(logits), position_(position), temperature_(temperature), key_(key), best_(best), winner_(best) {
    score_ = logits[best] / temperature + gumbel(word(best));
  }

  void enter(int32_t id) {
    const double base = logits_[id] / temperature_;
    if (base + kLargestNoise >= score_) enter(id, base, word(id));
  }
  void enter_all() {
    const auto size = static_cast<int32_t>(logits_.size());
    for (int32_t first = 0; first < size; first += 4) {
      const int32_t end = std::min(first + 4, size);
      const float largest = *std::max_element(logits_.begin() + first, logits_.begin() + end);
      if (largest / temperature_ + kLargestNoise < score_) continue;
      const std::array<uint32_t, 4> words = random_words(key_, position_, static_cast<uint32_t>(first) / 4);
      for (int32_t id = first; id < end; ++id) enter(id, logits_[id] / temperature_, words[id - first]);
    }
  }
  int32_t winner() const { return winner_; }

 private:
  uint32_t word(int32_t id) const {
    return random_words(key_, position_, static_cast<uint32_t>(id) / 4)[static_cast<uint32_t>(id) % 4];
  }
  void enter(int32_t id, double base, uint32_t word) {
    if (base + gumbel_bound(word) < score_ || id == best_) return;
    const double score = base + gumbel(word);
    if (score > score_ || (score == score_ && id < winner_)) {
      winner_ = id;
      score_ = score;
    }
  }

  const std::span<const float> logits_;
  const int64_t position_;
  const double temperature_;
  const uint64_t key_;
  const int32_t best_;
  int32_t winner_;
  double score_;
};

}  // namespace

int32_t argmax(std::span<const float> logits) {
  constexpr size_t kLanes = 32;  // independent maxima, so that the loop runs on vectors
  std::array<float, kLanes> lanes;
  lanes.fill(logits[0]);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  float largest = *std::max_element(lanes.begin(), lanes.end());
  for (; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

void Sampler::filter(std::span<const float> logits, float best, const SamplingParams& params) {
  const double floor = params.min_p > 0 ? best + std::log(params.min_p) * params.temperature : -INFINITY;
  ids_.clear();
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (logits[id] >= floor) ids_.push_back(id);
  }
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(ids_.size())) {
    std::nth_element(ids_.begin(), ids_.begin() + params.top_k, ids_.end(), Better{logits});
    ids_.resize(params.top_k);
    std::sort(ids_.begin(), ids_.end());  // an order of summation for top-p that no library decides
  }
  if (params.top_p < 1) keep_top_p(ids_, logits, best, params.temperature, params.top_p);
}

int32_t Sampler::sample(std::span<const float> logits, int64_t position, const SamplingParams& params, uint64_t key) {
  const int32_t best = argmax(logits);
  if (params.temperature < kGreedyBelow || logits[best] == -INFINITY) return best;
  Race race(logits, position, params.temperature, key, best);
  if (params.top_k <= 0 && params.top_p >= 1 && params.min_p <= 0) {
    race.enter_all();
  } else {
    filter(logits, logits[best], params);
    for (const int32_t id : ids_) race.enter(id);
  }
  return race.winner();
}

}  // namespace deepinfer
