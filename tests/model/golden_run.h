// What tests of the forward pass against recorded logits share: the recordings, running tokens cut into steps, errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/golden_model.h"

namespace deepinfer {

using Row = std::vector<float>;

struct GoldenPrompt {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<std::vector<double>> exact;  // after the prompt, then after each greedy token
  std::vector<std::vector<double>> official;
  std::vector<int32_t> all() const {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    return tokens;
  }
};

inline std::vector<GoldenPrompt> read_golden(const std::string& name) {
  std::ifstream file(golden_folder(name) + "/golden.json");
  std::vector<GoldenPrompt> prompts;
  for (const auto& record : nlohmann::json::parse(file)) {
    prompts.push_back({record["prompt"], record["greedy_f64"], record["logits_f64"], record["logits_official"]});
  }
  return prompts;
}

// Logits after every token, the tokens cut into steps of the given sizes (the last size repeats).
inline std::vector<Row> run(Model& model, const std::vector<int32_t>& tokens, const std::vector<int>& sizes) {
  SequenceState state = model.make_sequence();
  std::vector<Row> rows;
  std::vector<float> logits;
  const int64_t vocab = model.config().vocab_size;
  for (size_t begin = 0, i = 0; begin < tokens.size(); ++i) {
    const size_t count = std::min<size_t>(sizes[std::min(i, sizes.size() - 1)], tokens.size() - begin);
    const SequenceStep step{&state, std::span(tokens).subspan(begin, count), LogitRows::kAll};
    EXPECT_TRUE(model.forward({&step, 1}, logits).ok());
    for (size_t r = 0; r < count; ++r) rows.emplace_back(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
    begin += count;
  }
  EXPECT_EQ(state.length(), static_cast<int64_t>(tokens.size()));
  return rows;
}

// Largest difference over the largest golden value.
inline double relative_error(const Row& row, const std::vector<double>& golden) {
  double error = 0, scale = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    error = std::max(error, std::fabs(row[i] - golden[i]));
    scale = std::max(scale, std::fabs(golden[i]));
  }
  return error / scale;
}

struct Errors {
  std::vector<double> all;
  double largest() const { return *std::max_element(all.begin(), all.end()); }
  double median() {
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
  }
};

// Where the golden's best two logits are further apart than `share` of its largest, the argmax must agree.
inline void expect_same_argmax(const Row& row, const std::vector<double>& golden, double share) {
  std::vector<size_t> order(golden.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                    [&](size_t a, size_t b) { return golden[a] > golden[b]; });
  double scale = 0;
  for (const double value : golden) scale = std::max(scale, std::fabs(value));
  if (golden[order[0]] - golden[order[1]] <= share * scale) return;
  EXPECT_EQ(static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin()), order[0]);
}

// Logits after every golden token in exact numerics.
inline void expect_exact_logits(Model& model, const std::string& name) {
  Errors errors;
  for (const GoldenPrompt& golden : read_golden(name)) {
    const std::vector<Row> rows = run(model, golden.all(), {1000});
    for (size_t i = 0; i < golden.exact.size(); ++i) {
      errors.all.push_back(relative_error(rows[golden.prompt.size() - 1 + i], golden.exact[i]));
      EXPECT_LE(errors.all.back(), 1e-4) << "prompt of " << golden.prompt.size() << ", row " << i;
    }
  }
  std::printf("%s exact: largest %.2e, median %.2e\n", name.c_str(), errors.largest(), errors.median());
}

// The same in official numerics. tiny_smooth makes no discrete choice; in the others a rounding can flip one.
inline void expect_official_logits(Model& model, const std::string& name) {
  const bool smooth = name == "tiny_smooth";
  Errors errors;
  for (const GoldenPrompt& golden : read_golden(name)) {
    const std::vector<Row> rows = run(model, golden.all(), {1000});
    for (size_t i = 0; i < golden.official.size(); ++i) {
      const Row& row = rows[golden.prompt.size() - 1 + i];
      errors.all.push_back(relative_error(row, golden.official[i]));
      EXPECT_LE(errors.all.back(), smooth ? 0.015 : 0.06) << "prompt of " << golden.prompt.size() << ", row " << i;
      expect_same_argmax(row, golden.official[i], 0.06);
    }
  }
  std::printf("%s official: largest %.2e, median %.2e\n", name.c_str(), errors.largest(), errors.median());
  EXPECT_LE(errors.median(), smooth ? 0.005 : 0.015);
}

// However the tokens are cut into steps, the bits are those of one step.
inline void expect_no_cut_changes_a_bit(Model& model, const std::string& name) {
  for (const GoldenPrompt& golden : read_golden(name)) {
    const std::vector<int32_t> tokens = golden.all();
    const std::vector<Row> whole = run(model, tokens, {1000});
    const int prompt = static_cast<int>(golden.prompt.size());
    for (const std::vector<int>& sizes :
         std::vector<std::vector<int>>{{1}, {2}, {3}, {7, 1, 1, 20}, {5, 8}, {prompt, 1}, {prompt, 3}, {1, 1000}}) {
      ASSERT_EQ(run(model, tokens, sizes), whole) << "prompt of " << prompt << ", first step " << sizes[0];
    }
  }
}

}  // namespace deepinfer
