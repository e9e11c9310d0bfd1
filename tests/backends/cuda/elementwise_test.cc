#include "backends/cuda/kernels.h"
#include "backends/cuda/quantiser_reference.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

class CudaElementwiseTest : public CudaTest {};

Floats row_of(const Floats& values, int64_t r, int64_t cols) {
  return Floats(values.begin() + r * cols, values.begin() + (r + 1) * cols);
}

TEST_F(CudaElementwiseTest, EmbedCopiesARowOfTheTableIntoEveryStreamFromAnyAlignment) {
  for (ElementType type : kBothTypes) {
    for (int64_t shift : {0, 1, 2, 8}) {  // bytes
      constexpr int64_t kVocabulary = 50, kHidden = 136, kStreams = 4;
      const Floats table = random_values(kVocabulary * kHidden, 3, ElementType::kBf16);
      std::vector<uint8_t> bytes(shift);
      for (float x : table) {
        bytes.push_back(to_bfloat16(x).bits & 0xFF);
        bytes.push_back(to_bfloat16(x).bits >> 8);
      }
      const OnCard<uint8_t> card_table = upload(bytes);
      const std::vector<int32_t> tokens = {0, 49, 7, 7, 13};
      const OnCard<int32_t> card_tokens = upload(tokens);
      const Tensor out = poisoned(type, 5, kStreams * kHidden, kStreams * kHidden + 8);
      cuda::embed(stream(), {.out = out.view(),
                             .tokens = card_tokens.data(),
                             .table = reinterpret_cast<const std::byte*>(card_table.data() + shift),
                             .hidden = kHidden});
      Floats want;
      for (int32_t token : tokens) {
        for (int s = 0; s < kStreams; ++s) {
          want.insert(want.end(), table.begin() + token * kHidden, table.begin() + (token + 1) * kHidden);
        }
      }
      expect_same_bits(out.values(), want, fmt::format("{} shift {}", name_of(type), shift), kStreams * kHidden);
    }
  }
}

TEST_F(CudaElementwiseTest, RmsNormIsThatOfTheRowAndQuantisesWhatItGives) {
  for (ElementType type : kBothTypes) {
    for (int64_t width : {32, 128, 512, 1280, 5120, 9216}) {
      for (float scale : {1e-6f, 1.0f, 1e4f}) {
        const int64_t rows = 7;
        const Floats in = random_values(rows * width, scale, type), weight = random_values(width);
        const Tensor card_in = tensor(type, rows, width, in, width + 16);
        const OnCard<float> card_weight = upload(weight);
        const Tensor out = poisoned(type, rows, width), quantised = poisoned(type, rows, width, width + 32);
        const bool round = type == ElementType::kBf16;
        const ops::RmsNormArgs args = {.out = out.view(),
                                       .in = card_in.view(),
                                       .weight = card_weight.data(),
                                       .eps = 1e-12f,
                                       .round_to_bf16 = round,
                                       .quantised = quantised.view()};
        cuda::rms_norm(stream(), args);
        Floats want(rows * width);
        for (int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (int64_t c = 0; c < width; ++c) sum += static_cast<double>(in[r * width + c]) * in[r * width + c];
          const double norm = 1.0 / std::sqrt(sum / static_cast<double>(width) + 1e-12);
          for (int64_t c = 0; c < width; ++c) {
            want[r * width + c] = static_cast<float>(weight[c] * (in[r * width + c] * norm));
          }
        }
        const std::string what = fmt::format("{} width {} scale {}", name_of(type), width, scale);
        const Floats got = out.values();
        expect_close(got, want, round ? 0x1.02p-8 : 1e-6, 1e-30, what, width);
        Floats want_quantised;
        for (int64_t r = 0; r < rows; ++r) {
          const Floats q = quantise_reference(ops::FakeQuant::kE4m3Group32, row_of(got, r, width)).values;
          want_quantised.insert(want_quantised.end(), q.begin(), q.end());
        }
        expect_same_bits(quantised.values(), want_quantised, what, width);

        // In place, and one row alone: the same bits.
        const Tensor in_place = tensor(type, rows, width, in);
        ops::RmsNormArgs again = args;
        again.out = in_place.view(), again.in = in_place.view(), again.quantised = {};
        cuda::rms_norm(stream(), again);
        expect_same_bits(in_place.values(), got, "in place, " + what, width);
        const Tensor alone = poisoned(type, 1, width);
        again.out = alone.view(), again.in = ConstTensorView(card_in.view()).row_range(5, 6);
        cuda::rms_norm(stream(), again);
        expect_same_bits(alone.values(), row_of(got, 5, width), "alone, " + what, width);
      }
    }
  }
}

TEST_F(CudaElementwiseTest, FakeQuantHasTheBitsOfThePlainQuantisers) {
  for (ElementType type : kBothTypes) {
    for (auto kind : {ops::FakeQuant::kE4m3Group32, ops::FakeQuant::kE2m1Group16, ops::FakeQuant::kE2m1Group32}) {
      const int64_t width = 5 * 96, rows = 211;
      Floats in = random_values(rows * width, 1, type);
      for (int64_t r = 0; r < rows; ++r) {  // every power of two from far below to far above what activations are
        for (int64_t c = 0; c < width; ++c) in[r * width + c] = std::ldexp(in[r * width + c], r % 140 - 110);
      }
      for (int64_t c = 0; c < 64; ++c) in[c] = c % 2 ? -0.0f : 0.0f;
      for (int64_t c = 64; c < 128; ++c) in[c] = 0.25f * static_cast<float>(c - 64);  // ties
      const Tensor card = tensor(type, rows, width, in, width + 8);
      cuda::fake_quant(stream(), {.kind = kind, .out = card.view(), .in = card.view()});
      if (type == ElementType::kBf16) {
        for (float& x : in) x = round_to_bfloat16(x);
      }
      expect_same_bits(card.values(), quantise_reference(kind, in).values,
                       fmt::format("{} kind {}", name_of(type), static_cast<int>(kind)), width);
    }
  }
}

TEST_F(CudaElementwiseTest, SwigluClampsAndWeighs) {
  for (ElementType type : kBothTypes) {
    const int64_t rows = 9, width = 2304;
    const bool round = type == ElementType::kBf16;
    const Floats gate = random_values(rows * width, 6, type), up = random_values(rows * width, 6, type);
    const Floats weight = random_values(rows);
    const Tensor card_gate = tensor(type, rows, width, gate), card_up = tensor(type, rows, width, up, width + 8);
    const OnCard<float> card_weight = upload(weight);
    for (bool weighted : {false, true}) {
      const Tensor out = poisoned(type, rows, width);
      cuda::swiglu(stream(), {.out = out.view(),
                              .gate = card_gate.view(),
                              .up = card_up.view(),
                              .row_weight = weighted ? card_weight.data() : nullptr,
                              .limit = 10,
                              .round_to_bf16 = round});
      Floats want(rows * width);
      for (int64_t i = 0; i < rows * width; ++i) {
        const double g = std::min(static_cast<double>(gate[i]), 10.0), u = std::clamp<double>(up[i], -10, 10);
        want[i] = static_cast<float>(g / (1 + std::exp(-g)) * u * (weighted ? weight[i / width] : 1.0f));
      }
      expect_close(out.values(), want, round ? 0x1.02p-8 : 2e-6, 1e-30, name_of(type), width);
    }
  }
}

TEST_F(CudaElementwiseTest, GatherRowsTakesRowsOfAnyWidth) {
  for (ElementType type : kBothTypes) {
    for (int64_t width : {1, 7, 24, 512, 1030}) {
      const Floats in = random_values(20 * width, 1, type);
      const Tensor card_in = tensor(type, 20, width, in, width + 3);
      std::vector<int32_t> rows = {19, 0, 3, 3, 7, 11};
      const OnCard<int32_t> card_rows = upload(rows);
      const Tensor out = poisoned(type, 6, width);
      cuda::gather_rows(stream(), {.out = out.view(), .in = card_in.view(), .rows = card_rows.data()});
      Floats want;
      for (int32_t r : rows) want.insert(want.end(), in.begin() + r * width, in.begin() + (r + 1) * width);
      expect_same_bits(out.values(), want, fmt::format("{} width {}", name_of(type), width), width);
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
