// The forward pass with packed caches. fp4 is another way to store the same numbers: the logits are those of bf16 bit
// by bit. fp8 is not, but is as invariant as everything else.
#include "model/kv_format.h"

#include <cmath>
#include <cstdio>
#include <random>

#include "model/golden_model.h"

namespace deepinfer {
namespace {

using Row = std::vector<float>;

// Logits after every token, the tokens cut into steps of the given sizes (the last size repeats). rollback: before each
// step some wrong tokens run and are taken back.
std::vector<Row> run(Model& model, const std::vector<int32_t>& tokens, const std::vector<int64_t>& sizes,
                     bool rollback = false) {
  constexpr int64_t kRollback = 4;
  SequenceState state = model.make_sequence(rollback ? kRollback : 0);
  std::mt19937 random(9);
  std::vector<Row> rows;
  std::vector<float> logits;
  const int64_t vocab = model.config().vocab_size, end = static_cast<int64_t>(tokens.size());
  int64_t longest = 0;
  for (size_t i = 0; state.length() < end; ++i) {
    const int64_t wrong = rollback ? kRollback - (longest - state.length()) : 0;
    if (wrong > 0) {
      const std::vector<int32_t> draft = random_tokens(wrong, vocab, random());
      const SequenceStep step{&state, draft, LogitRows::kNone};
      EXPECT_TRUE(model.forward({&step, 1}, logits).ok());
      longest = std::max(longest, state.length());
      EXPECT_TRUE(state.roll_back(wrong).ok());
    }
    const int64_t begin = state.length(), count = std::min(sizes[std::min(i, sizes.size() - 1)], end - begin);
    const SequenceStep step{&state, std::span(tokens).subspan(begin, count), LogitRows::kAll};
    EXPECT_TRUE(model.forward({&step, 1}, logits).ok());
    longest = std::max(longest, state.length());
    for (int64_t r = 0; r < count; ++r) rows.emplace_back(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
  }
  return rows;
}

const std::vector<std::vector<int64_t>> kCuts = {{1}, {7, 1, 1, 20}, {64, 3}};

class PackedCache : public testing::TestWithParam<const char*> {
 protected:
  // Longer than windows, selections and cache blocks (64 rows, of up to 2 tokens each).
  std::vector<int32_t> tokens() { return random_tokens(135, 64, 1); }
};
INSTANTIATE_TEST_SUITE_P(Models, PackedCache, testing::Values("tiny_full", "tiny_noengram", "tiny_smooth"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(PackedCache, Fp4GivesTheBitsOfBf16HoweverTokensAreCutAndTakenBack) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kBf16Activations}) {
    GoldenModel bf16(GetParam(), numerics), fp4(GetParam(), numerics, "auto", 2, KvFormat::kFp4);
    const std::vector<Row> expected = run(*bf16, tokens(), {1000});
    for (const std::vector<int64_t>& cuts : kCuts) {
      EXPECT_EQ(run(*fp4, tokens(), cuts), expected) << "first step " << cuts[0];
    }
    EXPECT_EQ(run(*fp4, tokens(), {1, 3, 2}, /*rollback=*/true), expected);
  }
}

TEST_P(PackedCache, Fp4GivesTheBitsOfBf16OnEveryKernelSet) {
  GoldenModel reference(GetParam(), Numerics::kOfficial, "reference", 1);
  const std::vector<Row> expected = run(*reference, tokens(), {11});
  for (const char* kernels : {"reference", "avx2", "avx512"}) {
    if (!make_cpu_device({.kernels = kernels}).ok()) continue;  // this processor lacks the instructions
    GoldenModel fp4(GetParam(), Numerics::kOfficial, kernels, 3, KvFormat::kFp4);
    EXPECT_EQ(run(*fp4, tokens(), {11}), expected) << kernels;
  }
}

TEST_P(PackedCache, Fp8GivesBitsOfItsOwnAlwaysTheSame) {
  GoldenModel reference(GetParam(), Numerics::kOfficial, "reference", 1, KvFormat::kFp8);
  const std::vector<Row> expected = run(*reference, tokens(), {11});
  GoldenModel bf16(GetParam(), Numerics::kOfficial);
  EXPECT_NE(run(*bf16, tokens(), {11}), expected);
  for (const char* kernels : {"avx2", "avx512"}) {
    if (!make_cpu_device({.kernels = kernels}).ok()) continue;
    GoldenModel fp8(GetParam(), Numerics::kOfficial, kernels, 3, KvFormat::kFp8);
    for (const std::vector<int64_t>& cuts : kCuts) {
      EXPECT_EQ(run(*fp8, tokens(), cuts), expected) << kernels << ", first step " << cuts[0];
    }
    EXPECT_EQ(run(*fp8, tokens(), {1, 3, 2}, /*rollback=*/true), expected) << kernels;
  }
}

// Largest difference of a row's logits over their largest. A value of a compressed row is off by up to 2^-4 of itself.
// In tiny_smooth this moves no choice of rows or experts; in the others it now and then does.
TEST_P(PackedCache, Fp8StaysCloseToBf16) {
  GoldenModel bf16(GetParam(), Numerics::kOfficial), fp8(GetParam(), Numerics::kOfficial, "auto", 2, KvFormat::kFp8);
  std::vector<double> errors;
  size_t same = 0;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const std::vector<int32_t> some = random_tokens(135, bf16->config().vocab_size, seed);
    const std::vector<Row> expected = run(*bf16, some, {1000}), rows = run(*fp8, some, {1000});
    for (size_t r = 0; r < rows.size(); ++r) {
      double error = 0, scale = 0;
      for (size_t i = 0; i < rows[r].size(); ++i) {
        error = std::max<double>(error, std::fabs(rows[r][i] - expected[r][i]));
        scale = std::max<double>(scale, std::fabs(expected[r][i]));
      }
      errors.push_back(error / scale);
      const auto best = [](const Row& row) { return std::max_element(row.begin(), row.end()) - row.begin(); };
      same += best(rows[r]) == best(expected[r]);
    }
  }
  std::sort(errors.begin(), errors.end());
  const double median = errors[errors.size() / 2], largest = errors.back();
  std::printf("%s fp8 against bf16: median %.2e, 99th of 100 %.2e, largest %.2e; same best token in %zu of %zu rows\n",
              GetParam(), median, errors[errors.size() * 99 / 100], largest, same, errors.size());
  const bool smooth = std::string(GetParam()) == "tiny_smooth";
  EXPECT_LE(median, smooth ? 0.012 : 0.035);
  EXPECT_LE(largest, smooth ? 0.05 : 0.15);
}

TEST(PackedCache, IsRefusedWithExactNumerics) {
  auto device = make_cpu_device({.num_threads = 1}).value();
  auto loaded = Model::load(*device, Checkpoint::open(golden_folder("tiny_noengram")).value(),
                            ModelConfig::from_file(golden_folder("tiny_noengram") + "/config.json").value(), {},
                            {.numerics = Numerics::kExact, .kv_format = KvFormat::kFp4});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("fp4"), std::string::npos) << loaded.status().message();
}

}  // namespace
}  // namespace deepinfer
