// What the tests of index selection share: sequences of stored keys with their block tables, steps of tokens over
// them, and the op written as plain loops.
#pragma once

#include <utility>

#include "backends/cuda/kernels.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {

// Rows of one sequence: their bytes, what they stand for, and where they lie on the card.
struct KeySequence {
  std::vector<double> values;  // [rows, width]
  OnCard<std::byte> memory;
  OnCard<std::byte*> table;
};

inline double e2m1_of(int code) {
  static constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code & 7];
}
inline double e4m3_of(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 128 ? -value : value;
}

struct TokenAt {
  int sequence = -1;  // -1: no table
  int64_t position = -1;
};

struct Selection {
  std::vector<int32_t> rows, num_rows, candidates, num_candidates;
  bool operator==(const Selection&) const = default;
};

class IndexerTest : public CudaTest {
 protected:
  // Random numbers of which sums are exact in fp32, in any order: few bits, few exponents.
  void fill_row(ops::RowType type, int64_t width, int exponent, std::byte* row, double* values) {
    std::uniform_int_distribution<int> byte(0, 255), shift(-1, 1);
    for (int64_t i = 0; i < width; ++i) {
      const double value = e2m1_of(byte(random()) & 15);
      const int code = byte(random());
      switch (type) {
        case ops::RowType::kF32: {
          values[i] = std::ldexp(value, exponent);
          const auto f = static_cast<float>(values[i]);
          std::memcpy(row + i * 4, &f, 4);
          break;
        }
        case ops::RowType::kBf16: {
          values[i] = std::ldexp(value, exponent);
          const uint16_t bits = to_bfloat16(static_cast<float>(values[i])).bits;
          std::memcpy(row + i * 2, &bits, 2);
          break;
        }
        case ops::RowType::kE4m3Group32: {
          if (i % 32 == 0) row[width + i / 32] = static_cast<std::byte>(127 + exponent + shift(random()));
          const int magnitude = (code & 7) == 0 ? 0 : 0x30 + (code & 0x1e);  // 0.5 .. 7
          row[i] = static_cast<std::byte>(magnitude | (code & 128));
          values[i] = std::ldexp(e4m3_of(magnitude | (code & 128)), static_cast<int>(row[width + i / 32]) - 127);
          break;
        }
        case ops::RowType::kE2m1Group16:
        case ops::RowType::kE2m1Group32: {
          const bool wide = type == ops::RowType::kE2m1Group32;
          std::byte& scale = row[width / 2 + i / (wide ? 32 : 16)];
          if (i % (wide ? 32 : 16) == 0) {
            scale = static_cast<std::byte>(wide ? 127 + exponent + shift(random()) : 0x38 + 8 * shift(random()));
          }
          if (i % 2 == 0) row[i / 2] = std::byte{0};
          row[i / 2] |= static_cast<std::byte>((code & 15) << (i & 1) * 4);
          values[i] = e2m1_of(code & 15) *
                      (wide ? std::ldexp(1.0, static_cast<int>(scale) - 127) : e4m3_of(static_cast<int>(scale)));
          break;
        }
      }
    }
  }

  // `blocks_of_memory` slots in random order; what no row fills is poison.
  KeySequence make_sequence(int64_t rows, int exponent = 0) {
    KeySequence made;
    made.values.resize(rows * width_);
    const int64_t per_block = int64_t{1} << block_shift_;
    const int64_t blocks = (rows + per_block - 1) / per_block;
    const int64_t row_bytes = ops::row_bytes(type_, width_);
    const int64_t block_bytes = (offset_ + per_block * row_bytes + 255) / 256 * 256;
    std::vector<std::byte> bytes(std::max<int64_t>(1, blocks) * block_bytes, std::byte{0xFF});
    std::vector<int64_t> slots(blocks);
    for (int64_t b = 0; b < blocks; ++b) slots[b] = b;
    std::shuffle(slots.begin(), slots.end(), random());
    for (int64_t r = 0; r < rows; ++r) {
      fill_row(type_, width_, exponent,
               bytes.data() + slots[r / per_block] * block_bytes + offset_ + r % per_block * row_bytes,
               made.values.data() + r * width_);
    }
    made.memory = upload(bytes);
    std::vector<std::byte*> table;
    for (const int64_t slot : slots) table.push_back(made.memory.data() + slot * block_bytes);
    table.push_back(nullptr);
    made.table = upload(table);
    return made;
  }

  int64_t visible(const TokenAt& token) const {
    return token.sequence < 0 || token.position < 0 ? 0 : (token.position + 1) / ratio_;
  }

  Floats small_integers(int64_t count, int largest) {
    std::uniform_int_distribution<int> distribution(-largest, largest);
    Floats values(count);
    for (float& value : values) value = static_cast<float>(distribution(random()));
    return values;
  }

  // Runs the op on the card. Outputs beyond what it should write come back as -7.
  Selection run(const std::vector<KeySequence>& sequences, const std::vector<TokenAt>& tokens, const Floats& q,
                const Floats& weights, const Selection* given = nullptr) {
    const auto n = static_cast<int64_t>(tokens.size());
    std::vector<std::byte* const*> tables;
    std::vector<int64_t> positions;
    int64_t max_visible = 0;
    for (const TokenAt& token : tokens) {
      tables.push_back(token.sequence < 0 ? nullptr : sequences[token.sequence].table.data());
      positions.push_back(token.position);
      max_visible = std::max(max_visible, visible(token));
    }
    const OnCard<std::byte* const*> card_tables = upload(tables);
    const OnCard<int64_t> card_positions = upload(positions);
    const Tensor card_q = tensor(q_type_, n, heads_ * width_, q, heads_ * width_ + 8);
    const Tensor card_weights = tensor(weight_type_, n, heads_, weights);
    const OnCard<int32_t> selected = upload(std::vector<int32_t>(n * top_k_, -7));
    const OnCard<int32_t> num_selected = upload(std::vector<int32_t>(n, -7));
    const OnCard<int32_t> candidates =
        upload(given ? given->candidates : std::vector<int32_t>(std::max<int64_t>(1, n * max_blocks_), -7));
    const OnCard<int32_t> num_candidates = upload(given ? given->num_candidates : std::vector<int32_t>(n, -7));
    ops::IndexSelectArgs args;
    args.selected = dense(selected.data(), n, top_k_);
    args.num_selected = num_selected.data();
    args.q = card_q.view();
    args.head_weights = card_weights.view();
    args.keys = {card_tables.data(), block_shift_, type_, width_, offset_};
    args.positions = card_positions.data();
    args.ratio = ratio_;
    args.max_visible = max_visible + slack_;
    args.num_heads = heads_;
    args.top_k = top_k_;
    if (max_blocks_ > 0) {
      args.candidate_block = candidate_block_;
      args.build_candidates = given == nullptr;
      args.candidates = dense(candidates.data(), n, max_blocks_);
      args.num_candidates = num_candidates.data();
    }
    cuda::index_select(stream(), args);
    return {selected.values(), num_selected.values(), candidates.values(), num_candidates.values()};
  }

  std::vector<double> scores_of(const KeySequence& keys, int64_t rows, const float* q, const float* weights) const {
    std::vector<double> scores(rows);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads_; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < width_; ++d) dot += q[h * width_ + d] * keys.values[r * width_ + d];
        scores[r] += std::max(0.0, dot) * weights[h];
      }
    }
    return scores;
  }

  // Positions of the `count` largest, the lower one first among equals, ascending.
  static std::vector<int32_t> largest(const std::vector<double>& values, int64_t count) {
    std::vector<int32_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const int64_t kept = std::min<int64_t>(count, static_cast<int64_t>(order.size()));
    std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                      [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
    order.resize(kept);
    std::sort(order.begin(), order.end());
    return order;
  }

  // The op as plain loops; fp64 sums.
  Selection expected(const std::vector<KeySequence>& sequences, const std::vector<TokenAt>& tokens, const Floats& q,
                     const Floats& weights, const Selection* given = nullptr) const {
    Selection out;
    const size_t n = tokens.size();
    out.rows.assign(n * top_k_, -7);
    out.num_rows.assign(n, 0);
    out.candidates = given ? given->candidates : std::vector<int32_t>(std::max<int64_t>(1, n * max_blocks_), -7);
    out.num_candidates = given ? given->num_candidates : std::vector<int32_t>(n, max_blocks_ > 0 ? 0 : -7);
    for (size_t t = 0; t < n; ++t) {
      const int64_t rows = visible(tokens[t]);
      if (rows == 0) continue;
      const std::vector<double> scores =
          scores_of(sequences[tokens[t].sequence], rows, q.data() + t * heads_ * width_, weights.data() + t * heads_);
      std::vector<int32_t> choice;
      for (int64_t r = 0; given == nullptr && r < rows; ++r) choice.push_back(static_cast<int32_t>(r));
      for (int32_t b = 0; given != nullptr && b < given->num_candidates[t]; ++b) {
        const int64_t begin = given->candidates[t * max_blocks_ + b] * candidate_block_;
        for (int64_t r = begin; r < std::min(rows, begin + candidate_block_); ++r) {
          choice.push_back(static_cast<int32_t>(r));
        }
      }
      std::vector<double> chosen;
      for (const int32_t r : choice) chosen.push_back(scores[r]);
      const std::vector<int32_t> best = largest(chosen, top_k_);
      for (size_t i = 0; i < best.size(); ++i) out.rows[t * top_k_ + i] = choice[best[i]];
      out.num_rows[t] = static_cast<int32_t>(best.size());
      if (max_blocks_ == 0 || given != nullptr) continue;
      std::vector<double> blocks((rows + candidate_block_ - 1) / candidate_block_, -INFINITY);
      for (int64_t r = 0; r < rows; ++r) {
        blocks[r / candidate_block_] = std::max(blocks[r / candidate_block_], scores[r]);
      }
      blocks.back() = INFINITY;
      const std::vector<int32_t> kept = largest(blocks, max_blocks_);
      std::copy(kept.begin(), kept.end(), out.candidates.begin() + t * max_blocks_);
      out.num_candidates[t] = static_cast<int32_t>(kept.size());
    }
    return out;
  }

  static void expect_same(const Selection& got, const Selection& want, const std::string& what) {
    const auto compare = [&](const std::vector<int32_t>& a, const std::vector<int32_t>& b, const char* name) {
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i], b[i]) << what << ": " << name << "[" << i << "] of " << a.size();
      }
    };
    compare(got.num_rows, want.num_rows, "num_selected");
    compare(got.rows, want.rows, "selected");
    compare(got.num_candidates, want.num_candidates, "num_candidates");
    compare(got.candidates, want.candidates, "candidates");
  }

  ops::RowType type_ = ops::RowType::kE2m1Group32;
  int64_t heads_ = 32, width_ = 128, top_k_ = 512, ratio_ = 1, offset_ = 4096, slack_ = 0;
  int32_t block_shift_ = 6;
  int64_t candidate_block_ = 8, max_blocks_ = 0;  // no blocks: no candidates
  ElementType q_type_ = ElementType::kBf16, weight_type_ = ElementType::kF32;
};

}  // namespace deepinfer::cuda_test
