#include "backends/cuda/kernels.h"
#include "backends/cuda/quantiser_reference.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

constexpr ops::RowType kRowTypes[] = {ops::RowType::kF32, ops::RowType::kBf16, ops::RowType::kE4m3Group32,
                                      ops::RowType::kE2m1Group16, ops::RowType::kE2m1Group32};

// Blocks of rows on the card, all bits set, and the tables of some sequences.
class Cache {
 public:
  Cache(Device& device, Stream& stream, ops::RowTables shape, int64_t blocks_a_sequence, int64_t sequences)
      : shape_(shape), block_bytes_(shape.offset + (ops::row_bytes(shape.type, shape.width) << shape.block_shift)) {
    const int64_t count = blocks_a_sequence * sequences;
    bytes_ = OnCard<uint8_t>(device, stream, std::vector<uint8_t>(count * block_bytes_, 0xFF));
    std::vector<std::byte*> blocks(count);
    for (int64_t i = 0; i < count; ++i) {  // neighbours lie anywhere
      blocks[i] = reinterpret_cast<std::byte*>(bytes_.data()) + (i * 7 + 3) % count * block_bytes_;
    }
    blocks_ = blocks;
    lists_ = OnCard<std::byte*>(device, stream, blocks);
    blocks_a_sequence_ = blocks_a_sequence;
  }
  std::byte* const* list(int64_t sequence) const { return lists_.data() + sequence * blocks_a_sequence_; }
  std::vector<uint8_t> bytes() const { return bytes_.values(); }
  // Where the row lies in bytes().
  int64_t place(int64_t sequence, int64_t row) const {
    const std::byte* block = blocks_[sequence * blocks_a_sequence_ + (row >> shape_.block_shift)];
    const int64_t in_block = row & ((int64_t{1} << shape_.block_shift) - 1);
    return block - reinterpret_cast<const std::byte*>(bytes_.data()) + shape_.offset +
           in_block * ops::row_bytes(shape_.type, shape_.width);
  }

 private:
  ops::RowTables shape_;
  int64_t block_bytes_, blocks_a_sequence_ = 0;
  std::vector<std::byte*> blocks_;
  OnCard<uint8_t> bytes_;
  OnCard<std::byte*> lists_;
};

class CudaRowsTest : public CudaTest {
 protected:
  // Rotates the last channels of every head of the values.
  static void rotate(Floats& values, int64_t rows, int64_t heads, const Floats& cosine, const Floats& sine,
                     bool inverse, bool round) {
    const int64_t dim = static_cast<int64_t>(values.size()) / rows / heads;
    const int64_t pairs = static_cast<int64_t>(cosine.size()) / rows;
    for (int64_t h = 0; h < rows * heads; ++h) {
      for (int64_t j = 0; j < pairs; ++j) {
        float* x = &values[(h + 1) * dim - 2 * pairs + 2 * j];
        const float c = cosine[h / heads * pairs + j],
                    s = inverse ? -sine[h / heads * pairs + j] : sine[h / heads * pairs + j];
        // Each product rounded: volatile keeps the compiler from fusing them.
        volatile float a = x[0] * c, b = x[1] * s, d = x[0] * s, e = x[1] * c;
        const float first = a - b, second = d + e;
        x[0] = round ? round_to_bfloat16(first) : first;
        x[1] = round ? round_to_bfloat16(second) : second;
      }
    }
  }
};

TEST_F(CudaRowsTest, RopeAnglesAreThoseOfTheRoundedProduct) {
  const std::vector<int64_t> positions = {0, 1, 2, 3, 100000, 65535, 1048575, -1};
  Floats frequencies(32);
  for (int j = 0; j < 32; ++j) frequencies[j] = std::pow(160000.0f, -static_cast<float>(j) / 32.0f);
  frequencies[1] = 0.687656044960022f;
  const OnCard<int64_t> card_positions = upload(positions);
  const OnCard<float> card_frequencies = upload(frequencies);
  for (int64_t ratio : {1, 2, 3}) {
    const Tensor cosine = poisoned(ElementType::kF32, 8, 32), sine = poisoned(ElementType::kF32, 8, 32, 36);
    cuda::rope_angles(stream(), {.cosine = cosine.f32(),
                                 .sine = sine.f32(),
                                 .positions = card_positions.data(),
                                 .frequencies = card_frequencies.data(),
                                 .ratio = ratio});
    const Floats cosines = cosine.values(), sines = sine.values();
    for (int r = 0; r < 7; ++r) {
      for (int j = 0; j < 32; ++j) {
        const float angle = static_cast<float>(positions[r] / ratio * ratio) * frequencies[j];
        // The card's double functions may differ in their last bit: one of fp32 at the very most.
        EXPECT_NEAR(cosines[r * 32 + j], std::cos(static_cast<double>(angle)), 0x1p-24) << positions[r] << " " << j;
        EXPECT_NEAR(sines[r * 32 + j], std::sin(static_cast<double>(angle)), 0x1p-24) << positions[r] << " " << j;
      }
    }
    if (ratio == 1) {
      EXPECT_NEAR(cosines[4 * 32 + 1], -0.75178, 1e-5);  // in double it would be -0.75372
    }
  }
}

TEST_F(CudaRowsTest, RopeRotatesTheLastChannelsOfEveryHeadAndBack) {
  for (ElementType type : kBothTypes) {
    for (auto [heads, dim, pairs] : {std::array<int64_t, 3>{64, 512, 32}, {4, 64, 8}, {1, 32, 16}}) {
      const int64_t rows = 5;
      const bool round = type == ElementType::kBf16;
      const Floats data = random_values(rows * heads * dim, 2, type);
      const Floats angles = random_values(rows * pairs);
      Floats cosine, sine;
      for (float a : angles) cosine.push_back(std::cos(a)), sine.push_back(std::sin(a));
      const Tensor card_cosine = tensor(ElementType::kF32, rows, pairs, cosine, pairs + 4);
      const Tensor card_sine = tensor(ElementType::kF32, rows, pairs, sine);
      for (bool inverse : {false, true}) {
        const Tensor card = tensor(type, rows, heads * dim, data, heads * dim + 8);
        cuda::rope(stream(), {.data = card.view(),
                              .num_heads = heads,
                              .cosine = card_cosine.f32(),
                              .sine = card_sine.f32(),
                              .inverse = inverse,
                              .round_to_bf16 = round});
        Floats want = data;
        rotate(want, rows, heads, cosine, sine, inverse, round);
        expect_same_bits(card.values(), want, fmt::format("{} {} heads", name_of(type), heads), heads * dim);

        const Tensor quantised = tensor(type, rows, heads * dim, data, heads * dim + 8);
        cuda::rope(stream(), {.data = quantised.view(),
                              .num_heads = heads,
                              .cosine = card_cosine.f32(),
                              .sine = card_sine.f32(),
                              .inverse = inverse,
                              .round_to_bf16 = round,
                              .quantise = ops::FakeQuant::kE2m1Group32});
        expect_same_bits(quantised.values(), quantise_reference(ops::FakeQuant::kE2m1Group32, want).values,
                         fmt::format("{} {} heads, quantised", name_of(type), heads), heads * dim);
      }
    }
  }
}

TEST_F(CudaRowsTest, WritesRowsOfEveryTypeWithTheBytesOfThePlainQuantisersAndNothingElse) {
  using ops::FakeQuant;
  constexpr int64_t kPairs = 8, kSequences = 3;
  for (ElementType type : kBothTypes) {
    for (ops::RowType row_type : kRowTypes) {
      for (int64_t width : {32, 96, 128, 512}) {
        for (int64_t ratio : {1, 2}) {
          for (std::optional<FakeQuant> quantise :
               {std::optional<FakeQuant>(), std::optional(FakeQuant::kE4m3Group32),
                std::optional(FakeQuant::kE2m1Group16), std::optional(FakeQuant::kE2m1Group32)}) {
            const std::string what =
                fmt::format("{} row type {} width {} ratio {} quantiser {}", name_of(type), static_cast<int>(row_type),
                            width, ratio, quantise ? static_cast<int>(*quantise) : -1);
            const bool round = type == ElementType::kBf16, rotated = width != 96;
            ops::RowTables tables{nullptr, 2, row_type, width, 64};
            const Cache cache(device(), stream(), tables, 8, kSequences);
            // Tokens of three sequences, a padding row of each kind among them.
            std::vector<int64_t> positions;
            std::vector<std::byte* const*> lists;
            std::vector<int64_t> sequences;
            for (int64_t t = 0; t < 24; ++t) {
              sequences.push_back(t % kSequences);
              positions.push_back(t == 5 ? -1 : 3 + t / kSequences);
              lists.push_back(t == 7 ? nullptr : cache.list(sequences.back()));
            }
            const auto tokens = static_cast<int64_t>(positions.size());
            const OnCard<int64_t> card_positions = upload(positions);
            const OnCard<std::byte* const*> card_lists = upload(lists);
            tables.blocks = card_lists.data();
            Floats in = random_values(tokens * width, 1, type), cosine, sine;
            for (int64_t i = 0; i < tokens * width; ++i) in[i] = std::ldexp(in[i], static_cast<int>(i / width) - 12);
            for (float a : random_values(tokens * kPairs)) cosine.push_back(std::cos(a)), sine.push_back(std::sin(a));
            const Tensor card_in = tensor(type, tokens, width, in, width + 8);
            const Tensor card_cosine = tensor(ElementType::kF32, tokens, kPairs, cosine);
            const Tensor card_sine = tensor(ElementType::kF32, tokens, kPairs, sine);
            ops::WriteRowsArgs args{.in = card_in.view(),
                                    .tables = tables,
                                    .positions = card_positions.data(),
                                    .ratio = ratio,
                                    .quantise = quantise};
            args.round_to_bf16 = round;
            if (rotated) args.cosine = card_cosine.f32(), args.sine = card_sine.f32();
            cuda::write_rows(stream(), args);

            if (rotated) rotate(in, tokens, 1, cosine, sine, false, round);
            std::vector<uint8_t> want(cache.bytes().size(), 0xFF);
            for (int64_t t = 0; t < tokens; ++t) {
              if (positions[t] < 0 || lists[t] == nullptr || (positions[t] + 1) % ratio != 0) continue;
              Floats row(in.begin() + t * width, in.begin() + (t + 1) * width);
              const bool own =
                  quantise && row_type == (*quantise == FakeQuant::kE4m3Group32
                                               ? ops::RowType::kE4m3Group32
                                               : (*quantise == FakeQuant::kE2m1Group16 ? ops::RowType::kE2m1Group16
                                                                                       : ops::RowType::kE2m1Group32));
              if (quantise && !own) row = quantise_reference(*quantise, row).values;
              const std::vector<uint8_t> bytes = row_reference(row_type, row);
              std::copy(bytes.begin(), bytes.end(), want.begin() + cache.place(sequences[t], positions[t] / ratio));
            }
            const std::vector<uint8_t> got = cache.bytes();
            const auto first = std::mismatch(got.begin(), got.end(), want.begin());
            ASSERT_TRUE(first.first == got.end())
                << what << ": first at byte " << first.first - got.begin() << " of " << got.size() << ": got "
                << int{*first.first} << ", expected " << int{*first.second};
          }
        }
      }
    }
  }
}

TEST_F(CudaRowsTest, CompressPoolsTheGroupThatATokenClosesChannelByChannel) {
  for (ElementType type : kBothTypes) {
    for (int64_t ratio : {2, 4}) {
      for (int64_t width : {64, 512}) {
        const bool round = type == ElementType::kBf16;
        ops::RowTables tables{nullptr, 1, ops::RowType::kF32, 2 * width, 32};
        const Cache cache(device(), stream(), tables, 8, 2);
        std::vector<int64_t> positions;
        std::vector<std::byte* const*> lists;
        for (int64_t t = 0; t < 26; ++t) {
          positions.push_back(t == 24 ? -1 : t / 2);
          lists.push_back(t == 25 ? nullptr : cache.list(t % 2));
        }
        const OnCard<int64_t> card_positions = upload(positions);
        const OnCard<std::byte* const*> card_lists = upload(lists);
        tables.blocks = card_lists.data();
        const Floats rows = random_values(26 * 2 * width, 3);
        const Tensor card_rows = tensor(ElementType::kF32, 26, 2 * width, rows);
        cuda::write_rows(stream(), {.in = card_rows.view(), .tables = tables, .positions = card_positions.data()});
        const Tensor out = poisoned(type, 26, width);
        cuda::compress(stream(), {.out = out.view(),
                                  .rows = tables,
                                  .positions = card_positions.data(),
                                  .ratio = ratio,
                                  .round_to_bf16 = round});
        Floats want(26 * width, 0);
        for (int64_t t = 0; t < 24; ++t) {
          if ((positions[t] + 1) % ratio != 0) continue;
          for (int64_t c = 0; c < width; ++c) {
            double total = 0, pooled = 0;
            for (int64_t i = 0; i < ratio; ++i) {  // tokens of a sequence lie two apart
              const float* row = &rows[(t - 2 * (ratio - 1 - i)) * 2 * width];
              const double weight = std::exp(static_cast<double>(row[width + c]));
              total += weight;
              pooled += weight * row[c];
            }
            want[t * width + c] = static_cast<float>(pooled / total);
          }
        }
        Floats got = out.values();
        std::fill(got.begin() + 24 * width, got.end(), 0.0f);  // padding rows: undefined
        expect_close(got, want, round ? 0x1.02p-8 : 1e-6, 2e-6, fmt::format("{} ratio {}", name_of(type), ratio),
                     width);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
