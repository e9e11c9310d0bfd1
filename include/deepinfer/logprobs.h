// Log-probabilities of tokens: natural logarithms, by the model itself (before penalties, temperature and filters).
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;

  bool operator==(const TokenLogprob&) const = default;
};

struct TokenLogprobs {
  int32_t token = 0;
  double logprob = 0;
  int64_t rank = 0;                // how many tokens are at least as likely, itself among them: 1 is the best alone
  std::vector<TokenLogprob> best;  // likeliest first, ties by the lower id; need not hold `token`

  bool operator==(const TokenLogprobs&) const = default;
};

}  // namespace deepinfer
