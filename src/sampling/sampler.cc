#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sampling/philox.h"

namespace deepinfer {
namespace {

constexpr double kGreedyBelow = 1e-5;
// No noise exceeds -log(-log(1 - 2^-33)).
constexpr double kLargestNoise = 22.9;

double gumbel_at(uint64_t key, int64_t position, int32_t id) {
  return -std::log(-std::log(uniform_at(key, position, id)));
}

// Best first, ties to the lower id: the order in which top-k and top-p keep tokens.
struct Better {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// Leaves in `ids` the smallest set of best ones with at least `top_p` of the probability of all, best first. Few are
// needed as a rule, so the order is found piece by piece.
void keep_top_p(std::vector<int32_t>& ids, std::span<const float> logits, double temperature, double top_p) {
  const Better better{logits};
  const double best = logits[*std::min_element(ids.begin(), ids.end(), better)];
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - best) / temperature); };
  double total = 0;
  for (const int32_t id : ids) total += weight(id);
  double sum = 0;
  for (size_t begin = 0, end = 64; begin < ids.size(); begin = end, end *= 4) {
    end = std::min(end, ids.size());
    if (end < ids.size()) std::nth_element(ids.begin() + begin, ids.begin() + end, ids.end(), better);
    std::sort(ids.begin() + begin, ids.begin() + end, better);
    for (size_t i = begin; i < end; ++i) {
      sum += weight(ids[i]);
      if (sum >= top_p * total) {
        ids.resize(i + 1);
        return;
      }
    }
  }
}

// Gumbel-max, starting from the best token, so that those which even the largest noise cannot lift over the best so far
// are skipped.
class Race {
 public:
  Race(std::span<const float> logits, int64_t position, double temperature, uint64_t key, int32_t best)
      : logits_(logits), position_(position), temperature_(temperature), key_(key), best_(best), winner_(best) {
    score_ = logits[best] / temperature + gumbel_at(key, position, best);
  }

  void enter(int32_t id) {
    const double base = logits_[id] / temperature_;
    if (base + kLargestNoise < score_ || id == best_) return;
    const double score = base + gumbel_at(key_, position_, id);
    if (score > score_ || (score == score_ && id < winner_)) {
      winner_ = id;
      score_ = score;
    }
  }
  int32_t winner() const { return winner_; }

 private:
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
  if (params.top_p < 1) keep_top_p(ids_, logits, params.temperature, params.top_p);
}

int32_t Sampler::sample(std::span<const float> logits, int64_t position, const SamplingParams& params, uint64_t key) {
  const int32_t best = argmax(logits);
  if (params.temperature < kGreedyBelow || logits[best] == -INFINITY) return best;
  Race race(logits, position, params.temperature, key, best);
  if (params.top_k <= 0 && params.top_p >= 1 && params.min_p <= 0) {
    for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) race.enter(id);
  } else {
    filter(logits, logits[best], params);
    for (const int32_t id : ids_) race.enter(id);
  }
  return race.winner();
}

}  // namespace deepinfer
