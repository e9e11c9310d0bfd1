#include "gpu/caches.h"

#include <cmath>

#include "gpu/shapes.h"

namespace deepinfer::bench {

using cuda::RandomKind;
using ops::RowType;
using namespace shape;

RowPool::RowPool(Card& card, RowType type, int64_t width, int64_t num_sequences, int64_t first_row, int64_t end_row,
                 RandomKind kind, const std::vector<int32_t>& token_sequence)
    : type_(type), width_(width) {
  const int64_t first_block = first_row >> kBlockShift;
  const int64_t num_blocks = (end_row + (int64_t{1} << kBlockShift) - 1) >> kBlockShift;
  const int64_t held = num_blocks - first_block;
  const int64_t block_bytes = ops::row_bytes(type, width) << kBlockShift;
  rows_ = card.values<std::byte>(num_sequences * held * block_bytes);
  card.fill(rows_.data(), rows_.bytes(), kind);
  std::vector<std::byte*> blocks(num_sequences * num_blocks, nullptr);
  for (int64_t s = 0; s < num_sequences; ++s) {
    for (int64_t b = 0; b < held; ++b) {
      blocks[s * num_blocks + first_block + b] = rows_.data() + (s * held + b) * block_bytes;
    }
  }
  blocks_ = card.upload(blocks);
  std::vector<std::byte* const*> per_token;
  for (const int32_t s : token_sequence) per_token.push_back(blocks_.data() + s * num_blocks);
  per_token_ = card.upload(per_token);
}

Caches Caches::make(Card& card, int64_t num_sequences, int64_t context, int64_t first_window_row,
                    const std::vector<int64_t>& positions, const std::vector<int32_t>& token_sequence) {
  Caches c;
  c.context = context;
  c.positions = card.upload(positions);
  std::vector<float> cosine, sine;
  for (const int64_t position : positions) {
    for (int64_t pair = 0; pair < kRopeDim / 2; ++pair) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(pair) / kRopeDim);
      cosine.push_back(static_cast<float>(std::cos(angle)));
      sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  c.cosine = card.upload(cosine);
  c.sine = card.upload(sine);
  const auto pool = [&](RowType type, int64_t width, int64_t first, int64_t end, RandomKind kind) {
    return RowPool(card, type, width, num_sequences, first, end, kind, token_sequence);
  };
  c.window = pool(RowType::kE4m3Group32, kHeadDim, first_window_row, context, RandomKind::kWindowRow);
  c.open_group = pool(RowType::kF32, 2 * kHeadDim, first_window_row, context, RandomKind::kF32);
  for (const int64_t ratio : {1, 2}) {
    c.latent[ratio - 1] = pool(RowType::kE2m1Group16, kHeadDim, 0, context / ratio, RandomKind::kLatentRow);
    c.index_keys[ratio - 1] = pool(RowType::kE2m1Group32, kIndexDim, 0, context / ratio, RandomKind::kIndexRow);
  }
  card.wait();
  return c;
}

Caches Caches::for_decode(Card& card, int64_t num_sequences, int64_t context) {
  std::vector<int32_t> token_sequence;
  for (int64_t s = 0; s < num_sequences; ++s) token_sequence.push_back(static_cast<int32_t>(s));
  return make(card, num_sequences, context, context - kWindow, std::vector<int64_t>(num_sequences, context - 1),
              token_sequence);
}

Caches Caches::for_prefill(Card& card, int64_t num_tokens) {
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < num_tokens; ++t) positions.push_back(t);
  return make(card, 1, num_tokens, 0, positions, std::vector<int32_t>(num_tokens, 0));
}

}  // namespace deepinfer::bench
