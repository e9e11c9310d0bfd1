#include "ops/moe.h"

#include <algorithm>
#include <numeric>

#include "backends/cuda/kernels.h"
#include "rig.h"

namespace deepinfer::cuda_test {
namespace {

using ops::ExpertBank;
using ops::ExpertWeights;
using ops::PackedWeight;
using ops::WeightFormat;

// A matrix as in a checkpoint.
struct Matrix {
  ops::WeightSource source;
  std::vector<std::byte> data, scales;

  double value(int64_t row, int64_t col) const {
    const int64_t at = row * source.cols + col, groups = source.cols / 32;
    if (source.format == WeightFormat::kF8Tile32) {
      return static_cast<double>(e4m3_to_float(byte(data, at))) *
             e8m0_to_float(byte(scales, row / 32 * groups + col / 32));
    }
    return static_cast<double>(e2m1_to_float(byte(data, at / 2) >> (at % 2 * 4) & 15)) *
           e8m0_to_float(byte(scales, row * groups + col / 32));
  }
  static uint8_t byte(const std::vector<std::byte>& bytes, int64_t at) { return static_cast<uint8_t>(bytes[at]); }
};
struct ExpertMatrices {
  Matrix w1, w3, w2;
};

struct Routing {
  int64_t top_k = 0;
  std::vector<int32_t> experts;
  Floats weights;
};

class ExpertsTest : public CudaTest {
 protected:
  Matrix matrix(WeightFormat format, int64_t rows, int64_t cols) {
    Matrix m;
    m.source.format = format, m.source.rows = rows, m.source.cols = cols;
    m.data.resize(format == WeightFormat::kMxfp4 ? rows * cols / 2 : rows * cols);
    for (std::byte& b : m.data) {
      uint8_t code = static_cast<uint8_t>(random()());
      if (format == WeightFormat::kF8Tile32 && (code & 0x7F) == 0x7F) code ^= 1;
      b = std::byte{code};
    }
    m.scales.resize((format == WeightFormat::kMxfp4 ? rows : (rows + 31) / 32) * (cols / 32));
    const int low = format == WeightFormat::kMxfp4 ? 118 : 112;
    for (std::byte& b : m.scales) b = static_cast<std::byte>(low + random()() % 5);
    m.source.data = m.data.data(), m.source.scales = m.scales.data();
    return m;
  }
  void make_bank(int num_experts, int64_t hidden, int64_t inner, WeightFormat routed = WeightFormat::kMxfp4,
                 WeightFormat shared = WeightFormat::kF8Tile32) {
    hidden_ = hidden, inner_ = inner;
    matrices_.clear();
    bank_ = ExpertBank();
    for (int e = 0; e <= num_experts; ++e) {
      const WeightFormat format = e < num_experts ? routed : shared;
      matrices_.push_back(
          {matrix(format, inner, hidden), matrix(format, inner, hidden), matrix(format, hidden, inner)});
    }
    for (const ExpertMatrices& m : matrices_) {
      ExpertWeights w{cuda::pack_weight(stream(), m.w1.source), cuda::pack_weight(stream(), m.w2.source),
                      cuda::pack_weight(stream(), m.w3.source)};
      if (bank_.routed.size() < static_cast<size_t>(num_experts)) {
        bank_.routed.push_back(std::move(w));
      } else {
        bank_.shared = std::move(w);
      }
    }
    cuda::prepare_experts(stream(), bank_);
  }
  int num_experts() const { return static_cast<int>(bank_.routed.size()); }

  // `popular`: so many experts get all tokens; 0: any of them.
  Routing routing(int64_t tokens, int64_t top_k, int popular = 0) {
    Routing r;
    r.top_k = top_k;
    std::vector<int32_t> all(popular > 0 ? popular : num_experts());
    std::iota(all.begin(), all.end(), 0);
    std::uniform_real_distribution<float> weight(0.05f, 0.6f);
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random());
      std::sort(all.begin(), all.begin() + top_k);
      r.experts.insert(r.experts.end(), all.begin(), all.begin() + top_k);
      for (int64_t i = 0; i < top_k; ++i) r.weights.push_back(weight(random()));
    }
    return r;
  }
  static Routing part(const Routing& r, int64_t begin, int64_t end) {
    return {r.top_k,
            {r.experts.begin() + begin * r.top_k, r.experts.begin() + end * r.top_k},
            {r.weights.begin() + begin * r.top_k, r.weights.begin() + end * r.top_k}};
  }

  // Calls the op on fresh memory; the output is poisoned before.
  Floats run(const Floats& x, const Routing& r, ElementType type, bool quantise, float limit = 4) {
    const int64_t tokens = static_cast<int64_t>(r.experts.size()) / r.top_k;
    const Tensor in = tensor(type, tokens, hidden_, x, hidden_ + 64), out = poisoned(type, tokens, hidden_);
    const OnCard<int32_t> ids = upload(r.experts);
    const OnCard<float> weights = upload(r.weights);
    call(out.view(), in.view(), ids.data(), weights.data(), tokens, r.top_k, type == ElementType::kBf16, quantise,
         limit);
    EXPECT_TRUE(stream().synchronize().ok());
    return out.values();
  }
  void call(TensorView out, ConstTensorView in, const int32_t* ids, const float* weights, int64_t tokens, int64_t top_k,
            bool round, bool quantise, float limit = 4) {
    cuda::experts(
        stream(),
        {out, in, {ids, tokens, top_k, top_k}, {weights, tokens, top_k, top_k}, &bank_, limit, quantise, round});
  }

  // The same by one call of every op an expert is made of, an expert after the other.
  Floats by_single_ops(const Floats& x, const Routing& r, bool quantise, float limit) {
    const ElementType type = ElementType::kBf16;
    const int64_t tokens = static_cast<int64_t>(r.experts.size()) / r.top_k;
    std::vector<Floats> rows(tokens * r.top_k);
    Floats sums(tokens * hidden_, 0.0f), result;
    Floats shared;
    for (int e = 0; e <= num_experts(); ++e) {
      std::vector<int64_t> slots;
      Floats chosen, weights;
      for (int64_t s = 0; s < tokens * r.top_k; ++s) {
        if (e < num_experts() ? r.experts[s] != e : s % r.top_k != 0) continue;
        slots.push_back(s);
        weights.push_back(e < num_experts() ? r.weights[s] : 1.0f);
        const auto from = x.begin() + s / r.top_k * hidden_;
        chosen.insert(chosen.end(), from, from + hidden_);
      }
      if (slots.empty()) continue;
      const ExpertWeights& w = e < num_experts() ? bank_.routed[e] : bank_.shared;
      const int64_t count = static_cast<int64_t>(slots.size());
      const Tensor in = tensor(type, count, hidden_, chosen), gate = poisoned(type, count, inner_),
                   up = poisoned(type, count, inner_), out = poisoned(type, count, hidden_);
      const ops::LinearTask both[2] = {{gate.view(), in.view(), &w.w1, true, true},
                                       {up.view(), in.view(), &w.w3, true, true}};
      cuda::linear(stream(), both);
      const OnCard<float> row_weights = upload(weights);
      cuda::swiglu(stream(), {gate.view(), gate.view(), up.view(), row_weights.data(), limit, true});
      if (quantise) cuda::fake_quant(stream(), {ops::FakeQuant::kE4m3Group32, gate.view(), gate.view()});
      const ops::LinearTask down{out.view(), gate.view(), &w.w2, true, true};
      cuda::linear(stream(), {&down, 1});
      const Floats values = out.values();
      for (int64_t i = 0; i < count; ++i) {
        const Floats row(values.begin() + i * hidden_, values.begin() + (i + 1) * hidden_);
        if (e < num_experts()) rows[slots[i]] = row;
        if (e == num_experts()) shared.insert(shared.end(), row.begin(), row.end());
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < hidden_; ++c) {
        float sum = 0;
        for (int64_t i = 0; i < r.top_k; ++i) sum += rows[t * r.top_k + i][c];
        sums[t * hidden_ + c] = round_to_bfloat16(sum + shared[t * hidden_ + c]);
      }
    }
    return sums;
  }

  // By plain loops in double, with the roundings that the op is asked for; of token `t` alone.
  std::vector<double> by_loops(const Floats& x, const Routing& r, int64_t t, bool round, float limit) const {
    const auto rounded = [&](double v) { return round ? round_to_bfloat16(static_cast<float>(v)) : v; };
    std::vector<double> result(hidden_, 0.0);
    for (int64_t i = 0; i <= r.top_k; ++i) {
      const ExpertMatrices& m = matrices_[i < r.top_k ? r.experts[t * r.top_k + i] : num_experts()];
      const double weight = i < r.top_k ? r.weights[t * r.top_k + i] : 1.0;
      std::vector<double> activated(inner_);
      for (int64_t o = 0; o < inner_; ++o) {
        double gate = 0, up = 0;
        for (int64_t k = 0; k < hidden_; ++k) {
          gate += m.w1.value(o, k) * x[t * hidden_ + k];
          up += m.w3.value(o, k) * x[t * hidden_ + k];
        }
        gate = std::min<double>(rounded(gate), limit), up = std::clamp<double>(rounded(up), -limit, limit);
        activated[o] = rounded(gate / (1 + std::exp(-gate)) * up * weight);
      }
      for (int64_t o = 0; o < hidden_; ++o) {
        double sum = 0;
        for (int64_t k = 0; k < inner_; ++k) sum += m.w2.value(o, k) * activated[k];
        result[o] += rounded(sum);
      }
    }
    return result;
  }
  double error_of(const Floats& got, const Floats& x, const Routing& r, int64_t t, bool round, float limit) const {
    const std::vector<double> want = by_loops(x, r, t, round, limit);
    double error = 0, norm = 0;
    for (int64_t c = 0; c < hidden_; ++c) {
      const double difference = got[t * hidden_ + c] - want[c];
      error += difference * difference, norm += want[c] * want[c];
    }
    return std::isnan(error) ? INFINITY : std::sqrt(error / norm);
  }

  int64_t hidden_ = 0, inner_ = 0;
  std::vector<ExpertMatrices> matrices_;  // the shared one last
  ExpertBank bank_;
};

// Rounding products and activations to BF16 leaves errors of half a unit in 2^8; two roundings that fall to other sides
// in the two computations are what the bound allows.
constexpr double kRounded = 6e-3, kExact = 2e-6;

TEST_F(ExpertsTest, TokensGetTheSumOfTheirExpertsForEveryNumberOfTokens) {
  for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{128, 64}, {96, 160}, {320, 224}}) {
    make_bank(8, hidden, inner);
    for (int64_t tokens : {1, 2, 3, 7, 64, 256, 1000}) {
      const Routing r = routing(tokens, 2);
      for (ElementType type : kBothTypes) {
        const Floats x = random_values(tokens * hidden, 1, type);
        const Floats got = run(x, r, type, false);
        double worst = 0;
        for (int64_t t = 0; t < tokens; t += std::max<int64_t>(1, tokens / 40)) {
          worst = std::max(worst, error_of(got, x, r, t, type == ElementType::kBf16, 4));
        }
        EXPECT_LE(worst, type == ElementType::kBf16 ? kRounded : kExact)
            << name_of(type) << " [" << inner << ", " << hidden << "], tokens " << tokens;
      }
    }
  }
}

// At widths whose sums `linear` does not cut into parts (below 512): experts never do.
TEST_F(ExpertsTest, AnExpertGivesTheBitsOfTheOpsItIsMadeOf) {
  for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{128, 64}, {96, 288}, {448, 416}}) {
    make_bank(6, hidden, inner);
    for (int64_t tokens : {1, 5, 40, 200, 700}) {
      const Routing r = routing(tokens, 3);
      const Floats x = random_values(tokens * hidden, 1, ElementType::kBf16);
      for (bool quantise : {false, true}) {
        expect_same_bits(run(x, r, ElementType::kBf16, quantise), by_single_ops(x, r, quantise, 4),
                         "[" + std::to_string(inner) + ", " + std::to_string(hidden) + "], tokens " +
                             std::to_string(tokens) + (quantise ? ", quantised" : ""),
                         hidden);
      }
    }
  }
}

TEST_F(ExpertsTest, TheRealWidthsAreRight) {
  make_bank(6, 5120, 2304);
  for (int64_t tokens : {3, 150}) {
    const Routing r = routing(tokens, 3);
    const Floats x = random_values(tokens * 5120, 1, ElementType::kBf16);
    const Floats got = run(x, r, ElementType::kBf16, false);
    EXPECT_LE(error_of(got, x, r, tokens - 1, true, 4), kRounded) << tokens;
  }
}

TEST_F(ExpertsTest, SkewedRoutingAndExpertsWithoutTokensChangeNothing) {
  make_bank(40, 192, 96);
  for (int popular : {3, 5, 40}) {
    for (int64_t tokens : {1, 9, 33, 129, 400}) {
      const Routing r = routing(tokens, 3, popular);
      const Floats x = random_values(tokens * 192, 1, ElementType::kBf16);
      expect_same_bits(run(x, r, ElementType::kBf16, true), by_single_ops(x, r, true, 4),
                       std::to_string(popular) + " experts, tokens " + std::to_string(tokens), 192);
    }
  }
}

TEST_F(ExpertsTest, ATokenHasTheSameBitsAloneAndInAnyBatch) {
  for (const auto& [hidden, inner, num] : {std::tuple<int64_t, int64_t, int>{128, 64, 8}, {2560, 1152, 16}}) {
    make_bank(num, hidden, inner);
    const int64_t tokens = hidden > 1000 ? 600 : 1000;
    const Routing r = routing(tokens, 4);
    for (ElementType type : kBothTypes) {
      if (type == ElementType::kF32 && hidden > 1000) continue;  // minutes, and the same kernel
      const Floats x = random_values(tokens * hidden, 1, type);
      const Floats all = run(x, r, type, true);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1},
                                       {tokens - 1, tokens},
                                       {17, 19},
                                       {3, 11},
                                       {100, 117},
                                       {64, 128},
                                       {1, 300},
                                       {0, tokens - 1}}) {
        const Floats piece(x.begin() + begin * hidden, x.begin() + end * hidden);
        expect_same_bits(run(piece, part(r, begin, end), type, true),
                         Floats(all.begin() + begin * hidden, all.begin() + end * hidden),
                         std::string(name_of(type)) + " tokens " + std::to_string(begin) + " to " + std::to_string(end),
                         hidden);
      }
    }
  }
}

// So wide that every kernel fills its stages more than once: items of the two products take 24 and 13 column tiles.
// The numbers of tokens are one for every kernel.
TEST_F(ExpertsTest, StagesThatAreFilledAgainGiveEveryNumberOfTokensTheSameBits) {
  make_bank(8, 1536, 832);
  const Routing r = routing(150, 2);
  const Floats x = random_values(150 * 1536, 1, ElementType::kBf16);
  const Floats all = run(x, r, ElementType::kBf16, true);
  EXPECT_LE(error_of(run(x, r, ElementType::kBf16, false), x, r, 149, true, 4), kRounded);
  for (int64_t tokens : {1, 3, 15, 40}) {
    const Floats piece(x.begin(), x.begin() + tokens * 1536);
    expect_same_bits(run(piece, part(r, 0, tokens), ElementType::kBf16, true),
                     Floats(all.begin(), all.begin() + tokens * 1536), std::to_string(tokens) + " tokens", 1536);
  }
}

TEST_F(ExpertsTest, PaddingRowsWithAnyExpertsAndAnyValuesLeaveOthersAlone) {
  make_bank(12, 256, 128);
  for (int64_t tokens : {3, 60, 200}) {
    Routing r = routing(tokens, 4);
    Floats x = random_values(tokens * 256, 1, ElementType::kBf16);
    const Floats want = run(x, r, ElementType::kBf16, true);
    for (int64_t t = 0; t < tokens; t += 2) {  // ids need not even differ
      for (int64_t i = 0; i < 4; ++i) r.experts[t * 4 + i] = static_cast<int32_t>(t % 12), r.weights[t * 4 + i] = NAN;
      for (int64_t c = 0; c < 256; ++c) x[t * 256 + c] = t % 4 == 0 ? NAN : INFINITY;
    }
    const Floats got = run(x, r, ElementType::kBf16, true);
    for (int64_t t = 1; t < tokens; t += 2) {
      expect_same_bits(Floats(got.begin() + t * 256, got.begin() + (t + 1) * 256),
                       Floats(want.begin() + t * 256, want.begin() + (t + 1) * 256), "token " + std::to_string(t));
    }
  }
}

TEST_F(ExpertsTest, ARecordedStepFollowsTheRoutingOfEveryReplay) {
  make_bank(16, 256, 128);
  for (int64_t tokens : {1, 13, 300}) {
    const Tensor in = poisoned(ElementType::kBf16, tokens, 256), out = poisoned(ElementType::kBf16, tokens, 256);
    Routing r = routing(tokens, 4);
    const OnCard<int32_t> ids = upload(r.experts);
    const OnCard<float> weights = upload(r.weights);
    const auto step = [&] { call(out.view(), in.view(), ids.data(), weights.data(), tokens, 4, true, true); };
    step();  // makes room for what is kept between kernels
    ASSERT_TRUE(stream().synchronize().ok());
    stream().begin_recording();
    step();
    const std::unique_ptr<Graph> graph = stream().end_recording();
    for (int popular : {0, 4, 7, 0}) {
      r = routing(tokens, 4, popular);
      const Floats x = random_values(tokens * 256, 1, ElementType::kBf16);
      Tensor(in).set(x);
      stream().copy(ids.data(), r.experts.data(), static_cast<int64_t>(r.experts.size() * 4));
      stream().copy(weights.data(), r.weights.data(), static_cast<int64_t>(r.weights.size() * 4));
      stream().launch(*graph);
      ASSERT_TRUE(stream().synchronize().ok());
      const Floats got = out.values();
      expect_same_bits(got, run(x, r, ElementType::kBf16, true), "tokens " + std::to_string(tokens), 256);
    }
  }
}

TEST_F(ExpertsTest, EveryPairOfFormatsIsRight) {
  for (const auto& [routed, shared] : {std::pair{WeightFormat::kF8Tile32, WeightFormat::kF8Tile32},
                                       {WeightFormat::kMxfp4, WeightFormat::kMxfp4},
                                       {WeightFormat::kF8Tile32, WeightFormat::kMxfp4}}) {
    make_bank(12, 128, 96, routed, shared);
    for (int64_t tokens : {1, 8, 13, 30, 50}) {  // some for every kernel
      const Routing r = routing(tokens, 4);
      const Floats x = random_values(tokens * 128, 1, ElementType::kBf16);
      const Floats got = run(x, r, ElementType::kBf16, false);
      for (int64_t t = 0; t < tokens; ++t)
        EXPECT_LE(error_of(got, x, r, t, true, 4), kRounded) << t << " of " << tokens;
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
