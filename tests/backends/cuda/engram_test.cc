#include "backends/cuda/kernels.h"
#include "backends/cuda/quantiser_reference.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

class CudaEngramTest : public CudaTest {};

TEST_F(CudaEngramTest, RowsComeFromDeviceOrPinnedMemoryByNumberOrInOrder) {
  for (ElementType type : kBothTypes) {
    for (bool pinned : {false, true}) {
      for (bool by_number : {false, true}) {
        for (int64_t shift : {0, 3}) {  // bytes, of the codes
          constexpr int64_t kTable = 500, kDim = 256, kColumns = 24, kTokens = 11;
          std::vector<uint8_t> codes(shift + kTable * kDim), scales(kTable * kDim / 32);
          for (uint8_t& c : codes) {
            c = static_cast<uint8_t>(random()());
            if ((c & 0x7F) == 0x7F) c ^= 1;
          }
          for (uint8_t& s : scales) s = static_cast<uint8_t>(100 + random()() % 50);
          scales[3] = 0;
          const OnCard<uint8_t> card_codes = upload(codes), card_scales = upload(scales);
          const std::shared_ptr<std::byte> host = device().allocate_pinned(static_cast<int64_t>(codes.size())).value();
          std::memcpy(host.get(), codes.data(), codes.size());
          std::vector<int64_t> rows(kTokens * kColumns);
          for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(random()() % kTable);
          rows[5] = 0;
          const OnCard<int64_t> card_rows = upload(rows);
          const Tensor out = poisoned(type, kTokens, kColumns * kDim, kColumns * kDim + 8);
          const uint8_t* source = pinned ? reinterpret_cast<const uint8_t*>(host.get()) : card_codes.data();
          cuda::engram_rows(stream(), {.out = out.view(),
                                       .codes = source + shift,
                                       .scales = card_scales.data(),
                                       .rows = by_number ? card_rows.data() : nullptr,
                                       .num_columns = kColumns});
          Floats want;
          for (int64_t i = 0; i < kTokens * kColumns; ++i) {
            const int64_t row = by_number ? rows[i] : i;
            for (int64_t c = 0; c < kDim; ++c) {
              const float value =
                  e4m3_to_float(codes[shift + row * kDim + c]) * e8m0_to_float(scales[row * kDim / 32 + c / 32]);
              want.push_back(type == ElementType::kBf16 ? round_to_bfloat16(value) : value);
            }
          }
          expect_same_bits(out.values(), want,
                           fmt::format("{} pinned {} by number {}", name_of(type), pinned, by_number), kColumns * kDim);
          cuda::engram_rows(stream(), {.out = out.view(),
                                       .codes = source + shift,
                                       .scales = card_scales.data(),
                                       .rows = by_number ? card_rows.data() : nullptr,
                                       .num_columns = kColumns,
                                       .quantise = true});
          expect_same_bits(out.values(), quantise_reference(ops::FakeQuant::kE4m3Group32, want).values,
                           fmt::format("{} quantised", name_of(type)), kColumns * kDim);
        }
      }
    }
  }
}

TEST_F(CudaEngramTest, ApplyAddsTheValueThroughAGateAStream) {
  for (ElementType type : kBothTypes) {
    for (int64_t hidden : {128, 5120, 9216}) {
      for (float scale : {1e-3f, 1.0f, 30.0f}) {
        constexpr int64_t kStreams = 4, kTokens = 6;
        const bool round = type == ElementType::kBf16;
        const Floats streams = random_values(kTokens * kStreams * hidden, scale, type);
        Floats key_value = random_values(kTokens * (kStreams + 1) * hidden, scale, type);
        const Floats weight = random_values(kStreams * hidden);
        for (int64_t i = 0; i < hidden; ++i) key_value[i] = streams[i] * 3;  // a gate that is open
        if (round) {
          for (float& x : key_value) x = round_to_bfloat16(x);
        }
        const Tensor card = tensor(type, kTokens, kStreams * hidden, streams);
        const Tensor card_key_value = tensor(type, kTokens, (kStreams + 1) * hidden, key_value);
        const OnCard<float> card_weight = upload(weight);
        ops::EngramApplyArgs args{.streams = card.view(),
                                  .key_value = card_key_value.view(),
                                  .query_key_weight = card_weight.data(),
                                  .num_streams = kStreams,
                                  .norm_eps = 1e-20f,
                                  .round_to_bf16 = round};
        cuda::engram_apply(stream(), args);
        Floats want = streams;
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t s = 0; s < kStreams; ++s) {
            const float* x = &streams[(t * kStreams + s) * hidden];
            const float* key = &key_value[(t * (kStreams + 1) + s) * hidden];
            const float* value = &key_value[(t * (kStreams + 1) + kStreams) * hidden];
            double dot = 0, xx = 0, kk = 0;
            for (int64_t c = 0; c < hidden; ++c) {
              dot += double{x[c]} * weight[s * hidden + c] * key[c];
              xx += double{x[c]} * x[c];
              kk += double{key[c]} * key[c];
            }
            const double width = static_cast<double>(hidden);
            const double g = dot / std::sqrt(xx / width + 1e-20) / std::sqrt(kk / width + 1e-20) / std::sqrt(width);
            const double z = std::copysign(std::sqrt(std::max(std::fabs(g), 1e-6)), g);
            for (int64_t c = 0; c < hidden; ++c) {
              want[(t * kStreams + s) * hidden + c] = static_cast<float>(x[c] + value[c] / (1 + std::exp(-z)));
            }
          }
        }
        const std::string what = fmt::format("{} hidden {} scale {}", name_of(type), hidden, scale);
        const Floats got = card.values();
        expect_close(got, want, round ? 0x1.02p-8 : 1e-5, 1e-5 * scale, what, kStreams * hidden);
        // A row alone has the same bits.
        const Floats row(streams.begin() + 4 * kStreams * hidden, streams.begin() + 5 * kStreams * hidden);
        const Tensor alone = tensor(type, 1, kStreams * hidden, row);
        args.streams = alone.view();
        args.key_value = ConstTensorView(card_key_value.view()).row_range(4, 5);
        cuda::engram_apply(stream(), args);
        expect_same_bits(alone.values(),
                         Floats(got.begin() + 4 * kStreams * hidden, got.begin() + 5 * kStreams * hidden),
                         "alone, " + what);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
