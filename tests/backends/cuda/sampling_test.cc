// The card's choice against sampling/sampler.h, which is the rule.
#include "sampling/sampler.h"

#include "backends/cuda/kernels.h"
#include "backends/cuda/rig.h"
#include "ops/sampling.h"

namespace deepinfer::cuda_test {
namespace {

constexpr int64_t kRealVocabulary = 129280;

// Rows of logits with a way of sampling each.
struct Batch {
  int64_t vocabulary = 0;
  std::vector<Floats> logits;
  std::vector<ops::SampleRow> rows;
  std::vector<std::vector<uint32_t>> masks;

  void add(Floats row, ops::SampleRow how) {
    vocabulary = static_cast<int64_t>(row.size());
    logits.push_back(std::move(row));
    rows.push_back(how);
  }
  Batch slice(size_t begin, size_t end) const {
    return {
        vocabulary, {logits.begin() + begin, logits.begin() + end}, {rows.begin() + begin, rows.begin() + end}, masks};
  }
};

bool is_allowed(const std::vector<uint32_t>& mask, int64_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; }

int32_t expected_token(const Batch& batch, size_t r) {
  Floats logits = batch.logits[r];
  const ops::SampleRow& how = batch.rows[r];
  for (const float x : logits) {
    if (!(x < INFINITY)) return -1;
  }
  int32_t lowest_allowed = 0;
  if (how.mask_row >= 0) {
    const std::vector<uint32_t>& mask = batch.masks[how.mask_row];
    for (int64_t id = batch.vocabulary - 1; id >= 0; --id) {
      if (is_allowed(mask, id)) {
        lowest_allowed = static_cast<int32_t>(id);
      } else {
        logits[id] = -INFINITY;
      }
    }
  }
  if (*std::max_element(logits.begin(), logits.end()) == -INFINITY) return lowest_allowed;
  SamplingParams params;
  params.temperature = how.temperature;
  params.top_p = how.top_p;
  params.min_p = how.min_p;
  params.top_k = how.top_k;
  Sampler sampler;
  return sampler.sample(logits, how.position, params, how.key);
}

std::string describe(const ops::SampleRow& r) {
  return fmt::format("temperature {} top_p {} min_p {} top_k {} key {} position {} mask {}", r.temperature, r.top_p,
                     r.min_p, r.top_k, r.key, r.position, r.mask_row);
}

class SamplingTest : public CudaTest {
 protected:
  // `stride` 0: rows without gaps.
  std::vector<int32_t> choose(const Batch& batch, int64_t stride = 0, int32_t* last_tokens = nullptr) {
    const auto num_rows = static_cast<int64_t>(batch.rows.size());
    if (stride == 0) stride = batch.vocabulary;
    Floats flat(num_rows * stride, NAN);
    for (int64_t r = 0; r < num_rows; ++r) std::copy(batch.logits[r].begin(), batch.logits[r].end(), &flat[r * stride]);
    const int64_t words = (batch.vocabulary + 31) / 32;
    std::vector<uint32_t> masks;
    for (const std::vector<uint32_t>& mask : batch.masks) masks.insert(masks.end(), mask.begin(), mask.end());
    const OnCard<float> logits = upload(flat);
    const OnCard<uint32_t> allowed = upload(masks);
    const OnCard<ops::SampleRow> rows = upload(batch.rows);
    const OnCard<int32_t> tokens = upload(std::vector<int32_t>(num_rows, -77));
    ops::SampleArgs args;
    args.tokens = tokens.data();
    args.last_tokens = last_tokens;
    args.logits = {logits.data(), num_rows, batch.vocabulary, stride};
    args.rows = rows.data();
    if (!masks.empty())
      args.allowed = dense<const uint32_t>(allowed.data(), static_cast<int64_t>(batch.masks.size()), words);
    cuda::sample(stream(), args);
    return tokens.values();
  }

  void expect_the_samplers_choice(const Batch& batch, int64_t stride = 0) {
    const std::vector<int32_t> got = choose(batch, stride);
    int wrong = 0;
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      const int32_t want = expected_token(batch, r);
      if (got[r] == want || ++wrong > 5) continue;
      ADD_FAILURE() << "row " << r << " of " << batch.rows.size() << ", vocabulary " << batch.vocabulary << ", "
                    << describe(batch.rows[r]) << ": got " << got[r] << ", expected " << want;
    }
    EXPECT_EQ(wrong, 0) << "of " << batch.rows.size();
  }

  Floats spread_logits(int64_t vocabulary, float scale = 2.5f) { return random_values(vocabulary, scale); }
  // Few different values, so that every threshold falls into a tie.
  Floats tied_logits(int64_t vocabulary, float step) {
    Floats logits = spread_logits(vocabulary);
    for (float& x : logits) x = std::round(x / step) * step;
    return logits;
  }
  ops::SampleRow way(double temperature, int32_t top_k, double top_p, double min_p, int32_t mask_row = -1) {
    ops::SampleRow row;
    row.temperature = temperature;
    row.top_k = top_k;
    row.top_p = top_p;
    row.min_p = min_p;
    row.key = random()();
    row.position = static_cast<int64_t>(random()() >> 20);
    row.mask_row = mask_row;
    return row;
  }
  std::vector<uint32_t> random_mask(int64_t vocabulary, int one_in) {
    std::vector<uint32_t> mask((vocabulary + 31) / 32);
    for (int64_t id = 0; id < vocabulary; ++id) {
      if (random()() % one_in == 0) mask[id / 32] |= 1u << (id % 32);
    }
    return mask;
  }

  static constexpr double kTemperatures[] = {0, 9e-6, 1e-5, 0.01, 0.7, 1, 3, 1e3, 1e9};
  static constexpr int32_t kTopKs[] = {0, -1, 1, 2, 50, 128, 129, 700};
  static constexpr double kTopPs[] = {1, 0.9999, 0.9, 0.5, 1e-9};
  static constexpr double kMinPs[] = {0, 1e-4, 0.1, 1};
};

TEST_F(SamplingTest, ChoosesAsTheSamplerDoesWithEveryCombinationOfFilters) {
  for (const int64_t vocabulary : {int64_t{2048}, int64_t{301}}) {
    for (const bool ties : {false, true}) {
      Batch batch;
      batch.masks = {random_mask(vocabulary, 3)};
      for (const double temperature : kTemperatures) {
        for (const int32_t top_k : kTopKs) {
          for (const double top_p : kTopPs) {
            for (const double min_p : kMinPs) {
              for (const int32_t mask : {-1, 0}) {
                batch.add(ties ? tied_logits(vocabulary, 0.5f) : spread_logits(vocabulary),
                          way(temperature, top_k, top_p, min_p, mask));
              }
            }
          }
        }
      }
      expect_the_samplers_choice(batch);
    }
  }
}

TEST_F(SamplingTest, ChoosesAsTheSamplerDoesOverTheReleasedVocabulary) {
  std::vector<Floats> logits;
  for (const float scale : {0.01f, 1.0f, 3.0f, 40.0f}) logits.push_back(spread_logits(kRealVocabulary, scale));
  logits.push_back(tied_logits(kRealVocabulary, 1.0f));
  logits.push_back(tied_logits(kRealVocabulary, 0.01f));
  logits.push_back(Floats(kRealVocabulary, 1.5f));
  Batch batch;
  batch.masks = {random_mask(kRealVocabulary, 2), random_mask(kRealVocabulary, 1000)};
  const auto any = [&](const auto& values) { return values[random()() % std::size(values)]; };
  for (int r = 0; r < 400; ++r) {
    batch.add(logits[r % logits.size()],
              way(any(kTemperatures), any(kTopKs), any(kTopPs), any(kMinPs), static_cast<int32_t>(random()() % 4) - 1));
    if (batch.rows.back().mask_row > 1) batch.rows.back().mask_row = -1;
  }
  // What most requests ask for.
  for (int r = 0; r < 60; ++r) batch.add(logits[r % 3], way(1, r % 3 == 0 ? 50 : 0, r % 3 == 1 ? 0.95 : 1, 0));
  expect_the_samplers_choice(batch);
}

TEST_F(SamplingTest, AcceptsRowsAtAnyAddress) {
  for (const int64_t vocabulary : {1, 2, 31, 32, 33, 127, 1000, 4099}) {
    Batch batch;
    for (const double temperature : {0.0, 1.0}) {
      for (const int32_t top_k : {0, 3, 200}) {
        batch.add(spread_logits(vocabulary), way(temperature, top_k, 0.8, 0));
        batch.add(spread_logits(vocabulary), way(temperature, top_k, 1, 0));
      }
    }
    expect_the_samplers_choice(batch, vocabulary + 3);
  }
}

TEST_F(SamplingTest, SaysOfARowThatIsNotFiniteThatItIs) {
  Batch batch;
  for (const float broken : {NAN, -NAN, INFINITY}) {
    for (const int64_t id : {int64_t{0}, int64_t{5}, kRealVocabulary / 2, kRealVocabulary - 1}) {
      for (const double temperature : {0.0, 1.0}) {
        Floats logits = spread_logits(kRealVocabulary);
        logits[id] = broken;
        batch.add(logits, way(temperature, temperature > 0 && id == 5 ? 50 : 0, 0.9, 0));
      }
    }
  }
  expect_the_samplers_choice(batch);
}

TEST_F(SamplingTest, TakesTheLowestIdWhereNoLogitIsAboveMinusInfinity) {
  Batch batch;
  batch.masks = {random_mask(5000, 100), std::vector<uint32_t>(157, 0)};
  for (const int32_t mask : {-1, 0, 1}) {
    for (const double temperature : {0.0, 1.0}) {
      for (const int32_t top_k : {0, 7}) batch.add(Floats(5000, -INFINITY), way(temperature, top_k, 0.9, 0, mask));
    }
  }
  expect_the_samplers_choice(batch);
}

TEST_F(SamplingTest, NeverChoosesWhatMinusInfinityOrAMaskBans) {
  Batch batch;
  for (int r = 0; r < 64; ++r) {
    Floats logits(9000, -INFINITY);
    for (int i = 0; i <= r % 7; ++i) logits[random()() % 9000] = static_cast<float>(i);
    batch.add(logits, way(r % 2 == 0 ? 1 : 1e6, r % 3 == 0 ? 50 : 0, r % 5 == 0 ? 0.5 : 1, 0));
  }
  expect_the_samplers_choice(batch);
  const std::vector<int32_t> tokens = choose(batch);
  for (size_t r = 0; r < tokens.size(); ++r) EXPECT_GT(batch.logits[r][tokens[r]], -INFINITY);
}

TEST_F(SamplingTest, TellsNoDifferenceBetweenZeros) {
  Batch batch;
  for (int r = 0; r < 40; ++r) {
    Floats logits(3000, -5);
    for (int i = 0; i < 500; ++i) logits[random()() % 3000] = i % 2 == 0 ? 0.0f : -0.0f;
    batch.add(logits, way(r % 2, r % 4 == 1 ? 20 : r % 4 == 2 ? 300 : 0, r % 3 == 0 ? 0.3 : 1, 0));
  }
  expect_the_samplers_choice(batch);
}

TEST_F(SamplingTest, HandlesTheLargestAndTheSmallestNumbers) {
  Batch batch;
  const float extremes[] = {3.4028234e38f, -3.4028234e38f, 1e-45f, -1e-45f, 1.1754944e-38f, 0.0f, 1e30f, -1e30f};
  for (int r = 0; r < 96; ++r) {
    Floats logits = spread_logits(4000);
    for (int i = 0; i < 40; ++i) logits[random()() % 4000] = extremes[random()() % (r % 2 == 0 ? 8 : 6)];
    if (r % 3 == 0) {
      for (float& x : logits) x = std::min(x, 100.0f);
    }
    batch.add(logits, way(r % 4 == 0   ? 1e30
                          : r % 4 == 1 ? 1e-5
                                       : 1,
                          r % 5 == 0   ? 30
                          : r % 5 == 1 ? 500
                                       : 0,
                          r % 7 < 3 ? 0.9 : 1, r % 11 == 0 ? 0.2 : 0));
  }
  expect_the_samplers_choice(batch);
}

TEST_F(SamplingTest, ChoosesTheSameForARowAloneAndInAnyBatch) {
  Batch batch;
  batch.masks = {random_mask(kRealVocabulary, 10)};
  std::vector<Floats> logits;
  for (int i = 0; i < 5; ++i) logits.push_back(spread_logits(kRealVocabulary));
  for (int r = 0; r < 256; ++r) {
    batch.add(logits[r % 5], way(r % 7 == 0 ? 0 : 1,
                                 r % 3 == 0   ? 50
                                 : r % 3 == 1 ? 1000
                                              : 0,
                                 r % 2 == 0 ? 0.95 : 1, 0, r % 4 == 0 ? 0 : -1));
  }
  const std::vector<int32_t> together = choose(batch);
  for (const size_t r : {0, 1, 2, 3, 100, 254, 255}) EXPECT_EQ(choose(batch.slice(r, r + 1))[0], together[r]) << r;
  const std::vector<int32_t> middle = choose(batch.slice(40, 57));
  for (size_t r = 40; r < 57; ++r) EXPECT_EQ(middle[r - 40], together[r]) << r;
}

TEST_F(SamplingTest, PutsTheTokenOnceMoreWhereItsSlotIs) {
  Batch batch;
  std::vector<int32_t> want(70, -9);
  for (int r = 0; r < 40; ++r) {
    // Every way through the kernel.
    batch.add(spread_logits(3000), way(r % 4 == 0 ? 0 : 1, r % 4 == 1 ? 50 : r % 4 == 2 ? 400 : 0, r % 3 ? 1 : 0.8, 0));
    if (r % 10 == 7) batch.logits.back()[r] = NAN;
    batch.rows.back().slot = r % 5 == 0 ? -1 : 69 - r;
    if (r % 5 != 0) want[69 - r] = std::max(expected_token(batch, r), 0);
  }
  const OnCard<int32_t> last_tokens = upload(std::vector<int32_t>(70, -9));
  choose(batch, 0, last_tokens.data());
  EXPECT_EQ(last_tokens.values(), want);
}

TEST_F(SamplingTest, PaddingRowsLeaveTheOthersAlone) {
  Batch batch;
  for (int r = 0; r < 12; ++r) {
    batch.add(spread_logits(6000), way(1, r % 2 == 0 ? 50 : 0, 0.9, 0));
    if (r % 3 == 0) {
      batch.logits.back().assign(6000, NAN);
      batch.rows.back().position = -1;
      batch.rows.back().mask_row = 1 << 30;
    }
  }
  batch.masks = {random_mask(6000, 2)};
  const std::vector<int32_t> got = choose(batch);
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    if (r % 3 != 0) EXPECT_EQ(got[r], expected_token(batch, r)) << r;
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
