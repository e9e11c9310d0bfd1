#include "model/rope_table.h"

#include <cmath>

#include <gtest/gtest.h>

#include "golden_json.h"

namespace deepinfer {
namespace {

ModelConfig released() {
  ModelConfig config;
  config.qk_rope_head_dim = 64;
  config.rope_theta = 10000;
  config.compress_rope_theta = 160000;
  config.rope_scaling = RopeScaling{16, 32, 1, 65536};
  return config;
}

// Last bits of pow differ between libraries.
void expect_frequencies(const std::vector<float>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(actual[j] / expected[j], 1, 3e-7) << "pair " << j;
}

TEST(RopeTable, has_the_released_model_s_frequencies) {
  expect_frequencies(rope_frequencies(released(), RopeKind::kCompressed), {1,
                                                                           0.687656044960022,
                                                                           0.472870796918869,
                                                                           0.32517242431640625,
                                                                           0.22360679507255554,
                                                                           0.15376456081867218,
                                                                           0.10573713481426239,
                                                                           0.07271077483892441,
                                                                           0.05000000074505806,
                                                                           0.03438280150294304,
                                                                           0.02364353835582733,
                                                                           0.01625862345099449,
                                                                           0.011180340312421322,
                                                                           0.007688228040933609,
                                                                           0.005286856088787317,
                                                                           0.0036355385091155767,
                                                                           0.0022656249348074198,
                                                                           0.0013968013226985931,
                                                                           0.0008496897062286735,
                                                                           0.0005080819828435779,
                                                                           0.0002969777851831168,
                                                                           0.00016817997675389051,
                                                                           9.08678412088193e-05,
                                                                           4.544422699837014e-05,
                                                                           1.953125320142135e-05,
                                                                           5.372312443796545e-06,
                                                                           3.6943033592251595e-06,
                                                                           2.540409695939161e-06,
                                                                           1.7469279782744707e-06,
                                                                           1.2012856132059824e-06,
                                                                           8.260713002528064e-07,
                                                                           5.680529397977807e-07});
  std::vector<double> plain;
  for (int j = 0; j < 32; ++j) plain.push_back(std::pow(10000.0, -2.0 * j / 64));
  expect_frequencies(rope_frequencies(released(), RopeKind::kPlain), plain);
}

TEST(RopeTable, gives_the_golden_frequencies) {
  for (const GoldenCase& golden : read_golden_cases("rope")) {
    SCOPED_TRACE(golden.name());
    const bool compressing = golden.has("yarn");
    ModelConfig config = released();
    config.qk_rope_head_dim = golden.integer("rope_dim");
    (compressing ? config.compress_rope_theta : config.rope_theta) = golden.number("theta");
    if (golden.name() == "compressing_16_over_64") config.rope_scaling->original_max_position_embeddings = 64;
    expect_frequencies(rope_frequencies(config, compressing ? RopeKind::kCompressed : RopeKind::kPlain),
                       golden.doubles("frequencies"));
  }
}

TEST(RopeTable, without_scaling_both_kinds_are_powers_of_their_theta) {
  ModelConfig config = released();
  config.rope_scaling.reset();
  std::vector<double> powers;
  for (int j = 0; j < 32; ++j) powers.push_back(std::pow(160000.0, -2.0 * j / 64));
  expect_frequencies(rope_frequencies(config, RopeKind::kCompressed), powers);
}

}  // namespace
}  // namespace deepinfer
