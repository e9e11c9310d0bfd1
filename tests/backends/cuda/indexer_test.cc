#include <bit>

#include "backends/cuda/indexer_rig.h"

namespace deepinfer::cuda_test {
namespace {

using ops::RowType;

constexpr RowType kAllTypes[] = {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group16,
                                 RowType::kE2m1Group32};

std::string named(RowType type) { return "row type " + std::to_string(static_cast<int>(type)); }

// A step of everything: a prompt's chunk, tokens that decode, verified drafts, padding.
std::vector<TokenAt> mixed_step(const std::vector<int64_t>& lengths) {
  std::vector<TokenAt> tokens;
  for (int64_t i = 21; i > 0; --i) tokens.push_back({0, lengths[0] - i});
  tokens.push_back({-1, -1});
  for (int s = 1; s < static_cast<int>(lengths.size()); ++s) tokens.push_back({s, lengths[s] - 1});
  tokens.push_back({1, -1});
  for (int64_t i = 6; i > 0; --i) tokens.push_back({1, lengths[1] - i});
  tokens.push_back({0, 0});
  tokens.push_back({0, 1});
  tokens.push_back({0, 2});
  return tokens;
}

class IndexSelect : public IndexerTest {
 protected:
  // Every token's selection is the plain loops'.
  void check(const std::vector<KeySequence>& sequences, const std::vector<TokenAt>& tokens, const std::string& what) {
    const auto n = static_cast<int64_t>(tokens.size());
    const Floats q = small_integers(n * heads_ * width_, 2);
    Floats weights = small_integers(n * heads_, 15);
    for (float& weight : weights) weight /= 8;
    const Selection got = run(sequences, tokens, q, weights);
    expect_same(got, expected(sequences, tokens, q, weights), what);
    if (max_blocks_ > 0) {
      const Floats other = small_integers(n * heads_ * width_, 2);
      expect_same(run(sequences, tokens, other, weights, &got), expected(sequences, tokens, other, weights, &got),
                  what + ", restricted");
    }
  }

  void check_mixed(const std::vector<int64_t>& lengths, const std::string& what, int exponent = 0) {
    std::vector<KeySequence> sequences;
    for (const int64_t length : lengths) sequences.push_back(make_sequence((length + ratio_ - 1) / ratio_, exponent));
    check(sequences, mixed_step(lengths), what);
  }
};

TEST_F(IndexSelect, SelectsWhatPlainLoopsDoForEveryTypeOfRow) {
  for (const RowType type : kAllTypes) {
    type_ = type;
    check_mixed({1500, 700, 513, 512, 90}, named(type));
  }
}

TEST_F(IndexSelect, TakesQueriesAndWeightsOfBothTypes) {
  for (const ElementType q : kBothTypes) {
    for (const ElementType weights : kBothTypes) {
      q_type_ = q;
      weight_type_ = weights;
      check_mixed({900, 600}, std::string(name_of(q)) + " " + name_of(weights));
    }
  }
}

TEST_F(IndexSelect, TakesAnyNumberOfHeadsAndWidth) {
  top_k_ = 16;
  for (const auto& [heads, width] : {std::pair<int64_t, int64_t>{1, 32}, {3, 64}, {4, 32}, {40, 96}, {64, 128}}) {
    heads_ = heads;
    width_ = width;
    for (const RowType type : kAllTypes) {
      type_ = type;
      check_mixed({150, 70, 17, 16, 9}, named(type) + ", heads " + std::to_string(heads));
    }
  }
}

TEST_F(IndexSelect, TakesBlocksOfAnySize) {
  top_k_ = 64;
  for (const int32_t shift : {0, 4, 5, 7, 8}) {
    block_shift_ = shift;
    check_mixed({900, 300}, "shift " + std::to_string(shift));
  }
}

TEST_F(IndexSelect, SeesARowForEveryRatioTokens) {
  top_k_ = 100;
  for (const int64_t ratio : {2, 4}) {
    ratio_ = ratio;
    check_mixed({1501, 902, 403, 201, 199}, "ratio " + std::to_string(ratio));
  }
}

TEST_F(IndexSelect, KeepsKeysOfExtremeScale) {
  for (const RowType type : {RowType::kE2m1Group32, RowType::kE4m3Group32, RowType::kBf16}) {
    type_ = type;
    for (const int exponent : {-90, -30, 2, 30, 90}) {
      check_mixed({700, 600}, named(type) + ", exponent " + std::to_string(exponent), exponent);
    }
  }
}

TEST_F(IndexSelect, AWiderBoundChangesNothing) {
  for (const int64_t slack : {1, 100, 5000}) {
    slack_ = slack;
    check_mixed({700, 513}, "slack " + std::to_string(slack));
  }
}

TEST_F(IndexSelect, BuildsCandidatesAndRestrictsToThem) {
  for (const RowType type : {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group32}) {
    type_ = type;
    for (const int64_t blocks : {80, 120}) {
      max_blocks_ = blocks;
      top_k_ = blocks * 4;
      check_mixed({1500, 1204, 700, 97, 8}, named(type) + ", blocks " + std::to_string(blocks));
    }
  }
}

TEST_F(IndexSelect, TakesCandidateBlocksOfAnySize) {
  for (const int64_t size : {1, 3, 16}) {
    candidate_block_ = size;
    max_blocks_ = 20;
    top_k_ = 19;
    check_mixed({500, 304, 100, 7}, "block " + std::to_string(size));
  }
}

TEST_F(IndexSelect, SelectsAmongLongContextsAndManyBlocks) {
  const std::vector<int64_t> lengths = {70000, 30001};
  std::vector<KeySequence> sequences;
  for (const int64_t length : lengths) sequences.push_back(make_sequence(length));
  std::vector<TokenAt> tokens = {{0, 69999}, {1, 30000}, {0, 69000}, {0, 69001}, {-1, -1}, {0, 65535}};
  check(sequences, tokens, "rows");
  max_blocks_ = 2048;
  check(sequences, tokens, "candidates");
}

TEST_F(IndexSelect, SelectsForAPromptsManyTokensAmongOthers) {
  top_k_ = 60;
  for (const RowType type : {RowType::kE2m1Group32, RowType::kE4m3Group32, RowType::kBf16}) {
    type_ = type;
    const std::vector<KeySequence> sequences = {make_sequence(300), make_sequence(520), make_sequence(90)};
    std::vector<TokenAt> tokens = {{1, 519}, {2, 89}, {-1, -1}};
    for (int64_t i = 0; i < 300; ++i) tokens.push_back({0, i});
    tokens.push_back({2, 80});
    for (int64_t i = 290; i < 520; ++i) tokens.push_back({1, i});
    for (int64_t i = 0; i < 5; ++i) tokens.push_back({-1, -1});
    tokens.push_back({0, 299});
    check(sequences, tokens, named(type));
  }
}

TEST_F(IndexSelect, APaddedStepSelectsNothing) {
  const std::vector<KeySequence> sequences = {};
  max_blocks_ = 4;
  slack_ = 1000;
  check(sequences, {{-1, -1}, {-1, -1}, {-1, 50}}, "padding");
}

// Values with many bits: what differs in the last one is found by comparing scores, which lie in the stream's scratch.
TEST_F(IndexSelect, ScoresAreTheSameBitsInAnyCompany) {
  for (const RowType type : {RowType::kE2m1Group32, RowType::kE4m3Group32, RowType::kBf16}) {
    type_ = type;
    const int64_t length = 3000;
    const std::vector<KeySequence> sequences = {make_sequence(length), make_sequence(length)};
    std::vector<TokenAt> tokens;
    for (int64_t i = 0; i < 600; ++i) tokens.push_back({0, length - 600 + i});
    for (int64_t i = 0; i < 5; ++i) tokens.push_back({static_cast<int>(i % 2), length - 1});
    const auto n = static_cast<int64_t>(tokens.size());
    const Floats q = random_values(n * heads_ * width_, 1, ElementType::kBf16), weights = random_values(n * heads_);
    const int64_t stride = (length + 63) / 64 * 64;
    const auto scores = [&](int64_t rows) {
      std::vector<uint32_t> out(rows * stride);
      EXPECT_TRUE(stream().synchronize().ok());
      stream().copy(out.data(), cuda::cuda_stream(stream()).scratch(0), static_cast<int64_t>(out.size() * 4));
      EXPECT_TRUE(stream().synchronize().ok());
      return out;
    };
    slack_ = 0;
    const Selection all = run(sequences, tokens, q, weights);
    const std::vector<uint32_t> together = scores(n);
    for (const int64_t size : {1, 2, 3, 7, 16, 300, 550}) {
      for (int64_t first = 0; first < n; first += std::max(size, n / 12)) {
        const int64_t count = std::min(size, n - first);
        int64_t longest = 0;
        for (int64_t t = first; t < first + count; ++t) longest = std::max(longest, visible(tokens[t]));
        slack_ = length - longest;  // the scores are laid out alike
        const Selection part =
            run(sequences, {tokens.begin() + first, tokens.begin() + first + count},
                Floats(q.begin() + first * heads_ * width_, q.begin() + (first + count) * heads_ * width_),
                Floats(weights.begin() + first * heads_, weights.begin() + (first + count) * heads_));
        ASSERT_TRUE(std::equal(part.rows.begin(), part.rows.end(), all.rows.begin() + first * top_k_));
        const std::vector<uint32_t> apart = scores(count);
        for (int64_t t = 0; t < count; ++t) {
          for (int64_t r = 0; r < visible(tokens[first + t]); ++r) {
            ASSERT_EQ(apart[t * stride + r], together[(first + t) * stride + r])
                << named(type) << ": token " << first + t << " row " << r << " of " << count << " tokens";
          }
        }
      }
    }
    // And they are close to the sums in double precision.
    for (int64_t t = 0; t < n; t += 67) {
      const std::vector<double> want = scores_of(sequences[tokens[t].sequence], visible(tokens[t]),
                                                 q.data() + t * heads_ * width_, weights.data() + t * heads_);
      double norm = 0, error = 0;
      for (size_t r = 0; r < want.size(); ++r) {
        const uint32_t bits = together[t * stride + r];
        const float got = std::bit_cast<float>(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
        norm += want[r] * want[r];
        error += (got - want[r]) * (got - want[r]);
      }
      EXPECT_LT(std::sqrt(error / norm), 1e-6) << named(type) << ": token " << t;
    }
  }
}

// More scores than fit the scratch at once.
TEST_F(IndexSelect, AChunkThatNeedsManySlabsSelectsWhatItsTokensDo) {
  const int64_t length = 40000, count = 2100;
  const std::vector<KeySequence> sequences = {make_sequence(length)};
  std::vector<TokenAt> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back({0, length - count + i});
  const Floats q = random_values(count * heads_ * width_, 1, ElementType::kBf16);
  const Floats weights = random_values(count * heads_);
  const Selection all = run(sequences, tokens, q, weights);
  for (const int64_t t : {int64_t{0}, int64_t{7}, int64_t{1495}, int64_t{1496}, int64_t{1500}, count - 1}) {
    const Selection one =
        run(sequences, {tokens[t]}, Floats(q.begin() + t * heads_ * width_, q.begin() + (t + 1) * heads_ * width_),
            Floats(weights.begin() + t * heads_, weights.begin() + (t + 1) * heads_));
    EXPECT_EQ(one.num_rows[0], all.num_rows[t]);
    EXPECT_TRUE(std::equal(one.rows.begin(), one.rows.end(), all.rows.begin() + t * top_k_)) << "token " << t;
  }
}

TEST_F(IndexSelect, CanBeRecordedAndFollowsWhatThePositionsHoldByThen) {
  const std::vector<KeySequence> sequences = {make_sequence(2000)};
  const Floats q = small_integers(heads_ * width_, 2), weights = small_integers(heads_, 3);
  const OnCard<std::byte* const*> tables = upload(std::vector<std::byte* const*>{sequences[0].table.data()});
  const OnCard<int64_t> positions = upload(std::vector<int64_t>{1999});
  const Tensor card_q = tensor(q_type_, 1, heads_ * width_, q), card_weights = tensor(weight_type_, 1, heads_, weights);
  const OnCard<int32_t> selected = upload(std::vector<int32_t>(top_k_, -7));
  const OnCard<int32_t> num_selected = upload(std::vector<int32_t>(1, -7));
  ops::IndexSelectArgs args;
  args.selected = dense(selected.data(), 1, top_k_);
  args.num_selected = num_selected.data();
  args.q = card_q.view();
  args.head_weights = card_weights.view();
  args.keys = {tables.data(), block_shift_, type_, width_, offset_};
  args.positions = positions.data();
  args.max_visible = 2000;
  args.num_heads = heads_;
  args.top_k = top_k_;
  cuda::index_select(stream(), args);
  ASSERT_TRUE(stream().synchronize().ok());
  stream().begin_recording();
  cuda::index_select(stream(), args);
  const std::unique_ptr<Graph> graph = stream().end_recording();
  for (const int64_t position : {1999, 600, 511, 3, -1, 1500}) {
    const std::vector<int32_t> poison(top_k_, -7);
    stream().copy(selected.data(), poison.data(), top_k_ * 4);
    stream().copy(positions.data(), &position, 8);
    stream().launch(*graph);
    const Selection want = expected(sequences, {{0, position}}, q, weights);
    EXPECT_EQ(num_selected.values(), want.num_rows) << position;
    EXPECT_EQ(selected.values(), want.rows) << position;
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
