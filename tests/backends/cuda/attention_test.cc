#include "ops/attention.h"

#include <cmath>
#include <numeric>

#include "backends/cuda/kernels.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

using ops::RowType;

struct Shape {
  int64_t heads = 4, dim = 64, pairs = 8;  // pairs 0: no rotation
  RowType window = RowType::kBf16, compressed = RowType::kBf16;
  int64_t window_size = 128, top_k = 512;
  ElementType type = ElementType::kBf16;
  bool round = true;
  float q_scale = 1;
  int lowest_scale = -1, highest_scale = -1;  // codes of the packed types; -1: such that values are near 1
};
constexpr Shape real_shape(RowType window, RowType compressed) {
  return {.heads = 64, .dim = 512, .pairs = 32, .window = window, .compressed = compressed};
}
constexpr Shape kReal = real_shape(RowType::kE4m3Group32, RowType::kE2m1Group16);
constexpr Shape kRealE4m3 = real_shape(RowType::kE4m3Group32, RowType::kE4m3Group32);
constexpr Shape kRealBf16 = real_shape(RowType::kBf16, RowType::kBf16);

// position < 0: a padding row. selected < 0: as many as there are, up to top_k.
struct Token {
  int64_t position = 0;
  int64_t selected = -1;
  int64_t first_window_row = 0;
};

// Random rows of one type in scattered blocks, and what they decode to.
class RowPool {
 public:
  RowPool(const Shape& shape, RowType type, int64_t rows, std::mt19937_64& random) : type_(type), width_(shape.dim) {
    row_bytes_ = ops::row_bytes(type, width_);
    block_bytes_ = kOffset + (row_bytes_ << kShift) + 48;
    const int64_t num_blocks = (rows >> kShift) + 1;
    bytes_.resize(num_blocks * block_bytes_);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random());
    order_.resize(num_blocks);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), random);
    for (int64_t r = 0; r < num_blocks << kShift; ++r) fill(row(r), shape, random);
  }
  Floats decode(int64_t r) const {
    Floats values(width_);
    const uint8_t* data = const_cast<RowPool*>(this)->row(r);
    for (int64_t i = 0; i < width_; ++i) {
      const uint8_t nibble = data[i / 2] >> (i % 2 * 4) & 15;
      switch (type_) {
        case RowType::kF32:
          std::memcpy(&values[i], data + 4 * i, 4);
          break;
        case RowType::kBf16: {
          BFloat16 x;
          std::memcpy(&x.bits, data + 2 * i, 2);
          values[i] = to_float(x);
          break;
        }
        case RowType::kE4m3Group32:
          values[i] = e4m3_to_float(data[i]) * e8m0_to_float(data[width_ + i / 32]);
          break;
        case RowType::kE2m1Group16:
          values[i] = e2m1_to_float(nibble) * e4m3_to_float(data[width_ / 2 + i / 16]);
          break;
        case RowType::kE2m1Group32:
          values[i] = e2m1_to_float(nibble) * e8m0_to_float(data[width_ / 2 + i / 32]);
          break;
      }
    }
    return values;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<std::byte*> table(uint8_t* base) const {
    std::vector<std::byte*> blocks;
    for (int64_t b : order_) blocks.push_back(reinterpret_cast<std::byte*>(base + b * block_bytes_));
    return blocks;
  }
  ops::RowTables tables(std::byte* const* const* blocks) const { return {blocks, kShift, type_, width_, kOffset}; }

 private:
  static constexpr int32_t kShift = 4;
  static constexpr int64_t kOffset = 32;

  uint8_t* row(int64_t r) {
    return bytes_.data() + order_[r >> kShift] * block_bytes_ + kOffset + (r & ((1 << kShift) - 1)) * row_bytes_;
  }
  void fill(uint8_t* data, const Shape& shape, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    if (type_ == RowType::kF32 || type_ == RowType::kBf16) {
      for (int64_t i = 0; i < width_; ++i) {
        const float value = normal(random);
        const uint16_t bits = to_bfloat16(value).bits;
        std::memcpy(data + i * row_bytes_ / width_, type_ == RowType::kF32 ? static_cast<const void*>(&value) : &bits,
                    row_bytes_ / width_);
      }
      return;
    }
    const int64_t scales = width_ / ops::row_group(type_), codes = row_bytes_ - scales;
    int low = shape.lowest_scale, high = shape.highest_scale;
    if (low < 0) {
      low = type_ == RowType::kE4m3Group32 ? 117 : (type_ == RowType::kE2m1Group16 ? 0x20 : 124);
      high = low + (type_ == RowType::kE2m1Group16 ? 0x12 : 2);
    }
    for (int64_t i = 0; i < row_bytes_; ++i) {
      data[i] = static_cast<uint8_t>(random());
      if (i >= codes) data[i] = static_cast<uint8_t>(low + random() % (high - low + 1));
      if (i < codes && type_ == RowType::kE4m3Group32 && (data[i] & 0x7F) == 0x7F) data[i] ^= 1;  // no NaN
    }
  }

  RowType type_;
  int64_t width_, row_bytes_, block_bytes_;
  std::vector<uint8_t> bytes_;
  std::vector<int64_t> order_;
};

void rotate(float* head, int64_t dim, const float* cosine, const float* sine, int64_t pairs, float sign, bool round) {
  float* x = head + dim - 2 * pairs;
  for (int64_t j = 0; j < pairs; ++j) {
    const float c = cosine[j], s = sine[j] * sign;
    const float first = x[2 * j] * c - x[2 * j + 1] * s, second = x[2 * j] * s + x[2 * j + 1] * c;
    x[2 * j] = round ? round_to_bfloat16(first) : first;
    x[2 * j + 1] = round ? round_to_bfloat16(second) : second;
  }
}

// Tokens of one sequence: everything that attention reads, on the host and on the card.
class Problem {
 public:
  Problem(Device& device, Stream& stream, const Shape& shape, const std::vector<Token>& tokens, std::mt19937_64& random)
      : device_(device), stream_(stream), shape_(shape), tokens_(tokens) {
    int64_t rows = 1;
    for (const Token& t : tokens) rows = std::max(rows, t.position + 1);
    window_ = std::make_unique<RowPool>(shape, shape.window, rows, random);
    compressed_ = std::make_unique<RowPool>(shape, shape.compressed, rows, random);
    const auto n = static_cast<int64_t>(tokens.size());
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> angle(-3.0f, 3.0f);
    for (int64_t i = 0; i < n * shape.heads * shape.dim; ++i) {
      const float value = normal(random) * shape.q_scale;
      q_.push_back(shape.type == ElementType::kBf16 ? round_to_bfloat16(value) : value);
    }
    for (int64_t i = 0; i < n * shape.pairs; ++i) {
      const float a = angle(random);
      cosine_.push_back(std::cos(a));
      sine_.push_back(std::sin(a));
    }
    for (int64_t h = 0; h < shape.heads; ++h) sink_.push_back(normal(random) * 2);
    for (const Token& t : tokens) {
      std::vector<int32_t> all(std::max<int64_t>(t.position + 1, 0));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      int64_t count = std::min<int64_t>(shape.top_k, all.size());
      if (t.selected >= 0) count = std::min(count, t.selected);
      all.resize(count);
      std::sort(all.begin(), all.end());
      selected_.push_back(all);
    }
  }

  // The result for some of the tokens, in this order; -1: a padding row in between.
  Floats run(const std::vector<int>& which, bool with_compressed = true) {
    const auto n = static_cast<int64_t>(which.size());
    const int64_t width = shape_.heads * shape_.dim, stride = width + 32;
    Floats q, cosine, sine;
    std::vector<int64_t> positions, first;
    std::vector<int32_t> selected, num_selected;
    for (int t : which) {
      const bool padding = t < 0 || tokens_[t].position < 0;
      positions.push_back(padding ? -1 - static_cast<int64_t>(random_() % 3) : tokens_[t].position);
      first.push_back(padding ? static_cast<int64_t>(random_()) : tokens_[t].first_window_row);
      num_selected.push_back(padding ? static_cast<int32_t>(random_()) : static_cast<int32_t>(selected_[t].size()));
      for (int64_t i = 0; i < shape_.top_k; ++i) {
        const bool there = !padding && i < static_cast<int64_t>(selected_[t].size());
        selected.push_back(there ? selected_[t][i] : static_cast<int32_t>(random_()));
      }
      const float nan = std::nanf("");
      for (int64_t i = 0; i < width; ++i) q.push_back(padding ? nan : q_[t * width + i]);
      for (int64_t i = 0; i < shape_.pairs; ++i) {
        cosine.push_back(padding ? nan : cosine_[t * shape_.pairs + i]);
        sine.push_back(padding ? nan : sine_[t * shape_.pairs + i]);
      }
    }
    const OnCard<uint8_t> window_rows(device_, stream_, window_->bytes());
    const OnCard<uint8_t> compressed_rows(device_, stream_, compressed_->bytes());
    const OnCard<std::byte*> window_table(device_, stream_, window_->table(window_rows.data()));
    const OnCard<std::byte*> compressed_table(device_, stream_, compressed_->table(compressed_rows.data()));
    std::vector<std::byte*const*> window_tables, compressed_tables;
    for (int t : which) {
      const bool padding = t < 0 || tokens_[t].position < 0;
      window_tables.push_back(padding ? nullptr : window_table.data());
      compressed_tables.push_back(padding ? nullptr : compressed_table.data());
    }
    const OnCard<std::byte* const*> window_blocks(device_, stream_, window_tables);
    const OnCard<std::byte* const*> compressed_blocks(device_, stream_, compressed_tables);
    const OnCard<int64_t> device_positions(device_, stream_, positions), device_first(device_, stream_, first);
    const OnCard<int32_t> device_selected(device_, stream_, selected), device_num(device_, stream_, num_selected);
    const OnCard<float> device_cosine(device_, stream_, cosine), device_sine(device_, stream_, sine);
    const OnCard<float> device_sink(device_, stream_, sink_);
    Tensor device_q(device_, stream_, shape_.type, n, width, stride),
        out(device_, stream_, shape_.type, n, width, stride);
    device_q.set(q);

    ops::AttentionArgs a;
    a.out = out.view();
    a.q = device_q.view();
    a.positions = device_positions.data();
    a.window = window_->tables(window_blocks.data());
    a.window_size = shape_.window_size;
    a.first_window_row = device_first.data();
    if (with_compressed) {
      a.compressed = compressed_->tables(compressed_blocks.data());
      a.selected = dense<const int32_t>(device_selected.data(), n, shape_.top_k);
      a.num_selected = device_num.data();
    }
    a.sink = device_sink.data();
    a.num_heads = shape_.heads;
    if (shape_.pairs > 0) {
      a.cosine = dense<const float>(device_cosine.data(), n, shape_.pairs);
      a.sine = dense<const float>(device_sine.data(), n, shape_.pairs);
    }
    a.round_to_bf16 = shape_.round;
    cuda::attention(stream_, a);
    return out.values();
  }

  // The same in double precision; weights are rounded where the op rounds them.
  Floats expected(int t, bool with_compressed = true) const {
    const Token& token = tokens_[t];
    const int64_t dim = shape_.dim, p = token.position;
    std::vector<Floats> keys;
    const int64_t asked = token.first_window_row > p ? 0 : token.first_window_row;
    for (int64_t r = std::max({int64_t{0}, p + 1 - shape_.window_size, asked}); r <= p; ++r) {
      keys.push_back(window_->decode(r));
    }
    if (with_compressed) {
      for (int32_t r : selected_[t]) keys.push_back(compressed_->decode(r));
    }
    Floats out;
    for (int64_t h = 0; h < shape_.heads; ++h) {
      Floats q(q_.begin() + (t * shape_.heads + h) * dim, q_.begin() + (t * shape_.heads + h + 1) * dim);
      const float* cosine = cosine_.data() + t * shape_.pairs;
      const float* sine = sine_.data() + t * shape_.pairs;
      rotate(q.data(), dim, cosine, sine, shape_.pairs, 1, shape_.round);
      double largest = -1e30, total = 0;
      std::vector<double> sums(dim, 0.0);
      for (size_t begin = 0; begin < keys.size(); begin += 64) {
        const size_t end = std::min(keys.size(), begin + 64);
        std::vector<double> scores;
        for (size_t k = begin; k < end; ++k) {
          double dot = 0;
          for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * keys[k][d];
          scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
        }
        const double before = largest;
        for (double s : scores) largest = std::max(largest, s);
        const double decay = std::exp(before - largest);
        total *= decay;
        for (double& s : sums) s *= decay;
        for (size_t k = begin; k < end; ++k) {
          const double weight = std::exp(scores[k - begin] - largest);
          total += weight;
          const double used = shape_.round ? round_to_bfloat16(static_cast<float>(weight)) : weight;
          for (int64_t d = 0; d < dim; ++d) sums[d] += used * keys[k][d];
        }
      }
      total += std::exp(sink_[h] - largest);
      Floats head(dim);
      for (int64_t d = 0; d < dim; ++d) {
        head[d] = static_cast<float>(sums[d] / total);
        if (shape_.round) head[d] = round_to_bfloat16(head[d]);
      }
      rotate(head.data(), dim, cosine, sine, shape_.pairs, -1, shape_.round);
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }

  // With rounding an output may be a step of BF16 off (2^-8 of it), twice after a rotation, and a weight that fp32 sees
  // on the other side of a rounding boundary moves the sum by 2^-8 of one key: 1 % of the head's largest value covers
  // both. Without, fp32 sums of up to 640 products: 2e-5 of it, scores being large enough to lose digits in exp.
  void expect_right(const Floats& got, const std::vector<int>& which, const std::string& what,
                    bool with_compressed = true) const {
    const int64_t width = shape_.heads * shape_.dim;
    for (size_t i = 0; i < which.size(); ++i) {
      if (which[i] < 0 || tokens_[which[i]].position < 0) continue;
      const Floats want = expected(which[i], with_compressed);
      const Floats row(got.begin() + i * width, got.begin() + (i + 1) * width);
      for (int64_t h = 0; h < shape_.heads; ++h) {
        const Floats got_head(row.begin() + h * shape_.dim, row.begin() + (h + 1) * shape_.dim);
        const Floats want_head(want.begin() + h * shape_.dim, want.begin() + (h + 1) * shape_.dim);
        double largest = 0;
        for (float x : want_head) largest = std::max<double>(largest, std::fabs(x));
        expect_close(got_head, want_head, shape_.round ? 0x1p-7 : 1e-5, largest * (shape_.round ? 1e-2 : 2e-5),
                     what + ", row " + std::to_string(i) + ", head " + std::to_string(h), shape_.dim);
        if (testing::Test::HasFailure()) return;
      }
      EXPECT_LT(relative_error(row, want), shape_.round ? 6e-3 : 1e-5) << what << ", row " << i;
    }
  }

 private:
  Device& device_;
  Stream& stream_;
  Shape shape_;
  std::vector<Token> tokens_;
  std::unique_ptr<RowPool> window_, compressed_;
  Floats q_, cosine_, sine_, sink_;
  std::vector<std::vector<int32_t>> selected_;
  std::mt19937_64 random_{7};
};

std::vector<int> all_of(const std::vector<Token>& tokens) {
  std::vector<int> which(tokens.size());
  std::iota(which.begin(), which.end(), 0);
  return which;
}

class AttentionTest : public CudaTest {
 protected:
  void check(const Shape& shape, const std::vector<Token>& tokens, const std::string& what, bool compressed = true) {
    Problem problem(device(), stream(), shape, tokens, random());
    problem.expect_right(problem.run(all_of(tokens), compressed), all_of(tokens), what, compressed);
  }
};

const std::vector<Token> kManyTokens = {
    {0},       {1},       {62},       {63, 1}, {64, 0},    {100, 28},  {127},          {128, 63},        {-1},
    {129, 64}, {300, 65}, {700, 511}, {700},   {650, 300}, {640, 512}, {500, 20, 450}, {500, 512, 1000}, {500, 7, 500},
    {130, 130}};

TEST_F(AttentionTest, AgreesWithPlainLoopsOnSmallModelsOfEveryRowType) {
  for (RowType type :
       {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group16, RowType::kE2m1Group32}) {
    for (ElementType element : kBothTypes) {
      const bool round = element == ElementType::kBf16;
      const Shape shape = {.window = type, .compressed = type, .type = element, .round = round};
      check(shape, kManyTokens,
            std::string(name_of(element)) + " rows of type " + std::to_string(static_cast<int>(type)));
    }
  }
}

TEST_F(AttentionTest, AgreesWithPlainLoopsOnOddShapes) {
  check({.heads = 1, .dim = 16, .pairs = 0, .window_size = 5, .top_k = 3}, kManyTokens, "one head of 16");
  check({.heads = 9, .dim = 144, .pairs = 16, .window_size = 200, .top_k = 100}, kManyTokens, "nine heads of 144");
  check({.heads = 20,
         .dim = 512,
         .pairs = 32,
         .window = RowType::kF32,
         .compressed = RowType::kF32,
         .type = ElementType::kF32,
         .round = false},
        {{400}, {10}}, "exact numerics");
}

TEST_F(AttentionTest, AgreesWithPlainLoopsAtRealWidths) {
  check(kReal, kManyTokens, "real widths");
  check(kRealE4m3, kManyTokens, "compressed rows of E4M3");
  check(kRealBf16, kManyTokens, "rows of BF16");
  Shape shape = kReal;
  shape.pairs = 0;
  check(shape, {{700}, {5}}, "no rotation");
  for (const Shape& real : {kReal, kRealBf16}) {
    check(real, {{700}, {5}, {127}, {128}}, "no compressed rows", false);
  }
}

// Padding rows make batches large enough for every kernel, few others leave them fast under compute-sanitizer.
TEST_F(AttentionTest, AgreesWithPlainLoopsAmongManyPaddingRows) {
  const std::vector<Token> tokens = {{700}, {500, 7, 500}};
  for (const Shape& shape : {kReal, kRealE4m3, kRealBf16}) {
    Problem problem(device(), stream(), shape, tokens, random());
    for (size_t rows : {2u, 45u, 60u, 140u}) {
      std::vector<int> which(rows, -1);
      which[0] = 0, which[rows - 1] = 1;
      problem.expect_right(problem.run(which), which, std::to_string(rows) + " rows");
    }
  }
}

TEST_F(AttentionTest, KeepsSmallestAndLargestScales) {
  Shape shape = kReal;
  shape.window = shape.compressed = RowType::kE4m3Group32;
  shape.lowest_scale = 100, shape.highest_scale = 101;
  check(shape, {{700}, {60}}, "values below 2^-17");
  shape.lowest_scale = 149, shape.highest_scale = 151;
  shape.q_scale = 1e-8f;
  check(shape, {{700}, {60}}, "values up to 2^32");
  shape = kReal;
  for (int low : {1, 0x70}) {
    shape.lowest_scale = low, shape.highest_scale = low + (low == 1 ? 8 : 14);
    shape.q_scale = low == 1 ? 100 : 0.01f;
    const Token token = {700, 512, 700};
    // Window rows would have scales of the same codes: so only one of them, and weights of its own.
    check(shape, {token, token}, "E4M3 scales from " + std::to_string(low));
  }
  shape = kReal;
  shape.q_scale = 300;  // one key takes nearly all weight
  check(shape, {{700}, {60}}, "large scores");
}

TEST_F(AttentionTest, GivesTheSameBitsForAnyBatchAndPosition) {
  const std::vector<Token> tokens = kManyTokens;
  for (const Shape& shape : {kReal, kRealE4m3, kRealBf16, Shape{}}) {
    Problem problem(device(), stream(), shape, tokens, random());
    const int64_t width = shape.heads * shape.dim;
    std::vector<Floats> alone;
    for (int t : all_of(tokens)) alone.push_back(problem.run({t}));
    for (int batch : {2, 3, 8, 17, 31, 45, 46, 64, 66, 67, 133, 256, 400}) {
      std::vector<int> which;
      for (int i = 0; i < batch; ++i) which.push_back(static_cast<int>(random()() % (tokens.size() + 1)) - 1);
      const Floats got = problem.run(which);
      for (int i = 0; i < batch; ++i) {
        if (which[i] < 0 || tokens[which[i]].position < 0) continue;
        const Floats row(got.begin() + i * width, got.begin() + (i + 1) * width);
        expect_same_bits(row, alone[which[i]], "row " + std::to_string(i) + " of " + std::to_string(batch), shape.dim);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttentionTest, LeavesABatchOfPaddingRowsAlone) {
  for (const Shape& shape : {kReal, kRealBf16}) {
    Problem problem(device(), stream(), shape, {{10}}, random());
    for (size_t rows : {3u, 200u}) {
      const Floats got = problem.run(std::vector<int>(rows, -1));
      EXPECT_EQ(got.size(), rows * 64 * 512);
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
