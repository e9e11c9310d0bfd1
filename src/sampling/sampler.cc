#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>

#include "sampling/philox.h"

namespace deepinfer {
namespace {

constexpr double kGreedyBelow = 1e-5;
// No noise exceeds -log(-log(1 - 2^-33)).
constexpr double kLargestNoise = 22.9;

double gumbel_at(uint64_t seed, int64_t position, int32_t id) {
  return -std::log(-std::log(uniform_at(seed, position, id)));
}

// Best first, ties to the lower id: the order in which top-k and top-p keep tokens.
struct Better {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// Cuts ids, best first, after the smallest prefix that holds `top_p` of their probability.
void keep_top_p(std::vector<int32_t>& ids, std::span<const float> logits, double temperature, double top_p) {
  const double best = logits[ids.front()];
  double total = 0;
  for (const int32_t id : ids) total += std::exp((logits[id] - best) / temperature);
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    sum += std::exp((logits[ids[i]] - best) / temperature);
    if (sum >= top_p * total) {
      ids.resize(i + 1);
      return;
    }
  }
}

}  // namespace

Status SamplingParams::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return invalid_input("temperature {}: give a number of at least 0 (0 takes the best token)", temperature);
  }
  if (top_k < 0) return invalid_input("top_k {}: give a count of at least 1, or 0 for no limit", top_k);
  if (!(top_p > 0 && top_p <= 1)) return invalid_input("top_p {}: give a number above 0, up to 1", top_p);
  if (!(min_p >= 0 && min_p <= 1)) return invalid_input("min_p {}: give a number from 0 to 1", min_p);
  return Status();
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t Sampler::sample(std::span<const float> logits, int64_t position, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  if (params.temperature < kGreedyBelow) return best;
  const double temperature = params.temperature;
  const Better better{logits};
  const double floor = params.min_p > 0 ? logits[best] + std::log(params.min_p) * temperature : -INFINITY;
  ids_.clear();
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (logits[id] >= floor) ids_.push_back(id);
  }
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(ids_.size())) {
    std::nth_element(ids_.begin(), ids_.begin() + params.top_k, ids_.end(), better);
    ids_.resize(params.top_k);
  }
  if (params.top_p < 1) {
    std::sort(ids_.begin(), ids_.end(), better);
    keep_top_p(ids_, logits, temperature, params.top_p);
  }
  // The best token is always among them. Tokens that even the largest noise cannot lift over the best so far are
  // skipped.
  int32_t winner = best;
  double score = logits[best] / temperature + gumbel_at(params.seed, position, best);
  for (const int32_t id : ids_) {
    const double base = logits[id] / temperature;
    if (id == best || base + kLargestNoise < score) continue;
    const double candidate = base + gumbel_at(params.seed, position, id);
    if (candidate > score || (candidate == score && id < winner)) {
      winner = id;
      score = candidate;
    }
  }
  return winner;
}

}  // namespace deepinfer
