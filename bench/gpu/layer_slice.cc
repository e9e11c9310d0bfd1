#include "gpu/layer_slice.h"

#include <algorithm>
#include <random>

#include "gpu/shapes.h"
#include "ops/op_table.h"

namespace deepinfer::bench {

using namespace shape;

namespace {

constexpr int64_t kDraws = 8;
constexpr int64_t kEngramDraws = 8;

ops::LinearTask task(TensorView out, ConstTensorView in, const ops::PackedWeight& weight) {
  return {out, in, &weight, true, true};
}
ops::LinearTask task_f32(MatrixView<float> out, ConstTensorView in, const ops::PackedWeight& weight) {
  return {out, in, &weight, true, false};
}

// `count` ascending numbers below `end`, a row a token; all there are where there are fewer.
std::vector<int32_t> random_ascending(int64_t tokens, int64_t count, const std::vector<int64_t>& ends,
                                      std::vector<int32_t>& lengths, std::mt19937_64& random) {
  std::vector<int32_t> out(tokens * count, 0);
  lengths.clear();
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t end = ends[t], length = std::min(count, end);
    // One of each of `length` equal ranges.
    for (int64_t i = 0; i < length; ++i) {
      const int64_t begin = i * end / length, next = (i + 1) * end / length;
      out[t * count + i] = static_cast<int32_t>(begin + static_cast<int64_t>(random() % (next - begin)));
    }
    lengths.push_back(static_cast<int32_t>(length));
  }
  return out;
}

}  // namespace

const char* name_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return "swa";
    case LayerKind::kFull2:
      return "full2";
    case LayerKind::kReuse2:
      return "reuse2";
    case LayerKind::kFull1:
      return "full1";
    case LayerKind::kReuse1:
      return "reuse1";
    case LayerKind::kReidx:
      return "reidx";
  }
  return "";
}

int64_t layers_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return 2;
    case LayerKind::kFull2:
      return 3;
    case LayerKind::kFull1:
      return 1;
    case LayerKind::kReidx:
      return 4;
    default:
      return 15;
  }
}

LayerSlice::LayerSlice(Card& card, SliceWeights& weights, const Caches& caches, int64_t num_tokens, Skew skew)
    : card_(card),
      weights_(weights),
      caches_(caches),
      n_(num_tokens),
      draws_(card, kDraws, num_tokens, kExperts, kTopK, skew, 11) {
  const auto activation = [&](int64_t cols) { return card.random_activation(n_, cols); };
  streams_ = activation(kStreams * kHidden);
  u_ = activation(kHidden), u_quantised_ = activation(kHidden), y_ = activation(kHidden);
  kv_ = activation(kHeadDim);
  q_latent_ = activation(kQueryRank), q_latent_quantised_ = activation(kQueryRank);
  q_ = activation(kHeads * kHeadDim), attended_ = activation(kHeads * kHeadDim);
  grouped_ = activation(kGroups * kGroupRank);
  compressor_latent_ = activation(kHeadDim), latent_ = activation(kHeadDim);
  index_key_ = activation(kIndexDim), index_query_ = activation(kIndexHeads * kIndexDim);
  index_weights_ = activation(kIndexHeads);
  engram_rows_ = activation(kEngramColumns * kEngramDim);
  key_value_ = activation((kStreams + 1) * kHidden);
  compressor_rows_ = card.values<float>(n_ * 2 * kHeadDim);
  pre_ = card.constant(n_ * kStreams, 0.4f), post_ = card.constant(n_ * kStreams, 0.5f);
  mix_ = card.constant(n_ * kStreams * kStreams, 0.25f);
  router_logits_ = card.values<float>(n_ * kExperts);
  route_weights_ = card.values<float>(n_ * kTopK);
  routed_ = card.values<int32_t>(n_ * kTopK);
  selected_ = card.values<int32_t>(n_ * kIndexTopK);
  num_selected_ = card.values<int32_t>(n_);
  std::mt19937_64 random(5);
  const std::vector<int64_t> positions = card.download(caches.positions.data(), n_);
  std::vector<int64_t> visible, blocks;
  for (const int64_t p : positions)
    visible.push_back((p + 1) / 2), blocks.push_back((p + kCandidateBlock) / kCandidateBlock);
  std::vector<int32_t> lengths;
  reused_ = card.upload(random_ascending(n_, kIndexTopK, visible, lengths, random));
  num_reused_ = card.upload(lengths);
  candidates_ = card.upload(random_ascending(n_, kCandidateBlocks, blocks, lengths, random));
  num_candidates_ = card.upload(lengths);
  std::vector<int64_t> ids(kEngramDraws * n_ * kEngramColumns);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % kEngramTableRows);
  engram_ids_ = card.upload(ids);
  if (n_ > 256) return;
  hidden_ = activation(kHidden);
  logits_ = card.values<float>(n_ * kVocabulary);
  tokens_ = card.values<int32_t>(n_);
  std::vector<ops::SampleRow> rows(n_);
  for (int64_t t = 0; t < n_; ++t) rows[t] = {1.0, 0.95, 0.0, static_cast<uint64_t>(t), positions[t] + 1, 50, -1};
  sampling_ = card.upload(rows);
}

void LayerSlice::boundary(const MhcPart& part) {
  ops::mhc_boundary(card_.stream(), {.weights = part.view(),
                                     .coefficients = {pre_.matrix(n_), post_.matrix(n_), mix_.matrix(n_)},
                                     .streams = streams_.all(),
                                     .y = y_.all(),
                                     .out = u_.all(),
                                     .quantised = u_quantised_.all(),
                                     .norm_weight = weights_.ones(),
                                     .round_to_bf16 = true});
}

ops::LatentTask LayerSlice::normalising(ConstTensorView in, TensorView out) const {
  return {.in = in, .norm_weight = weights_.ones(), .norm_eps = kNormEps, .round_to_bf16 = true, .out = out};
}

ops::LatentTask LayerSlice::stored(ops::LatentTask task, const RowPool& pool, int64_t ratio,
                                   ops::FakeQuant quantiser) const {
  const int64_t tokens = caches_.positions.size();
  task.tables = pool.tables();
  task.positions = caches_.positions.data();
  task.ratio = ratio;
  task.quantise = quantiser;
  task.cosine = caches_.cosine.matrix(tokens).row_range(0, n_),
  task.sine = caches_.sine.matrix(tokens).row_range(0, n_);
  return task;
}

// What becomes of everything that read u.
void LayerSlice::finish_latents(LayerKind kind) {
  ops::LatentTask query = normalising(q_latent_.all(), q_latent_.all());
  query.quantised = q_latent_quantised_.all();
  std::vector<ops::LatentTask> tasks = {
      query, stored(normalising(kv_.all(), {}), caches_.window, 1, ops::FakeQuant::kE4m3Group32)};
  if (kind == LayerKind::kFull1) tasks.push_back(normalising(compressor_latent_.all(), latent_.all()));
  if (kind == LayerKind::kFull2) {
    tasks.push_back({.in = compressor_rows_.matrix(n_),
                     .tables = caches_.open_group.tables(),
                     .positions = caches_.positions.data()});
  }
  ops::latents(card_.stream(), tasks);
}

void LayerSlice::write_compressed(int64_t ratio, const CompressorPart& part) {
  Stream& stream = card_.stream();
  const int64_t* positions = caches_.positions.data();
  const TensorView latent = latent_.all(), key = index_key_.all();
  if (ratio > 1) {
    ops::compress(stream, {latent, caches_.open_group.tables(), positions, ratio, true});
    const ops::LatentTask norm = normalising(latent, latent);
    ops::latents(stream, {&norm, 1});
  }
  const ops::LinearTask key_task = task(key, latent, part.index_wk);
  ops::linear(stream, {&key_task, 1});
  const ops::LatentTask tasks[] = {
      stored(normalising(key, {}), caches_.index_keys[ratio - 1], ratio, ops::FakeQuant::kE2m1Group32),
      stored({.in = latent, .round_to_bf16 = true}, caches_.latent[ratio - 1], ratio, ops::FakeQuant::kE2m1Group16)};
  ops::latents(stream, tasks);
}

void LayerSlice::select(LayerKind kind) {
  const int64_t ratio = kind == LayerKind::kFull2 ? 2 : 1;
  const TensorView q = index_query_.all();
  const int64_t tokens = caches_.positions.size();
  ops::rope(card_.stream(), {.data = q,
                             .num_heads = kIndexHeads,
                             .cosine = caches_.cosine.matrix(tokens).row_range(0, n_),
                             .sine = caches_.sine.matrix(tokens).row_range(0, n_),
                             .round_to_bf16 = true,
                             .quantise = ops::FakeQuant::kE2m1Group32});
  ops::IndexSelectArgs args{.selected = selected_.matrix(n_),
                            .num_selected = num_selected_.data(),
                            .q = q,
                            .head_weights = index_weights_.all(),
                            .keys = caches_.index_keys[ratio - 1].tables(),
                            .positions = caches_.positions.data(),
                            .ratio = ratio,
                            .max_visible = caches_.context / ratio,
                            .num_heads = kIndexHeads,
                            .top_k = kIndexTopK};
  if (kind != LayerKind::kFull2) {
    args.candidate_block = kCandidateBlock;
    args.build_candidates = kind == LayerKind::kFull1;
    args.candidates = candidates_.matrix(n_);
    args.num_candidates = num_candidates_.data();
  }
  ops::index_select(card_.stream(), args);
}

void LayerSlice::project_output(const LayerPart& layer) {
  std::vector<ops::LinearTask> tasks;
  constexpr int64_t kGroupIn = kHeads * kHeadDim / kGroups;
  for (int64_t g = 0; g < kGroups; ++g) {
    tasks.push_back(task(grouped_.all().columns(g * kGroupRank, (g + 1) * kGroupRank),
                         attended_.all().columns(g * kGroupIn, (g + 1) * kGroupIn), layer.wo_a[g]));
    tasks.back().quantise_output = true;
  }
  ops::linear(card_.stream(), tasks);
  const ops::LinearTask last = task(y_.all(), grouped_.all(), layer.wo_b);
  ops::linear(card_.stream(), {&last, 1});
}

void LayerSlice::attention(LayerKind kind, const LayerPart& layer) {
  Stream& stream = card_.stream();
  const int64_t* positions = caches_.positions.data();
  const int64_t tokens = caches_.positions.size();
  const MatrixView<const float> cosine = caches_.cosine.matrix(tokens).row_range(0, n_);
  const MatrixView<const float> sine = caches_.sine.matrix(tokens).row_range(0, n_);
  const int64_t ratio = kind == LayerKind::kFull2 || kind == LayerKind::kReuse2 ? 2 : 1;
  const bool is_source = kind == LayerKind::kFull2 || kind == LayerKind::kFull1;

  std::vector<ops::LinearTask> tasks = {task(q_latent_.all(), u_quantised_.all(), layer.wq_a),
                                        task(kv_.all(), u_quantised_.all(), layer.wkv)};
  if (is_source) {
    const CompressorPart& part = weights_.compressor(ratio);
    if (ratio == 1) {
      tasks.push_back(task(compressor_latent_.all(), u_.all(), part.wkv));
    } else {
      const MatrixView<float> rows = compressor_rows_.matrix(n_);
      tasks.push_back(task_f32(rows.columns(0, kHeadDim), u_.all(), part.wkv));
      tasks.push_back(task_f32(rows.columns(kHeadDim, 2 * kHeadDim), u_.all(), *part.wgate));
    }
  }
  if (has_indexer(kind)) tasks.push_back(task(index_weights_.all(), u_.all(), weights_.indexer().weights_proj));
  ops::linear(stream, tasks);
  finish_latents(kind);
  if (is_source) write_compressed(ratio, weights_.compressor(ratio));

  tasks = {task(q_.all(), q_latent_quantised_.all(), layer.wq_b)};
  if (has_indexer(kind)) tasks.push_back(task(index_query_.all(), q_latent_quantised_.all(), weights_.indexer().wq_b));
  ops::linear(stream, tasks);
  if (has_indexer(kind)) select(kind);

  ops::AttentionArgs args{.out = attended_.all(),
                          .q = q_.all(),
                          .positions = positions,
                          .window = caches_.window.tables(),
                          .window_size = kWindow,
                          .sink = weights_.zeros(),
                          .num_heads = kHeads,
                          .cosine = cosine,
                          .sine = sine,
                          .round_to_bf16 = true};
  if (kind != LayerKind::kSwa) {
    args.compressed = caches_.latent[ratio - 1].tables();
    args.selected = has_indexer(kind) ? selected_.matrix(n_) : reused_.matrix(n_);
    args.num_selected = has_indexer(kind) ? num_selected_.data() : num_reused_.data();
  }
  ops::attention(stream, args);
  project_output(layer);
}

void LayerSlice::experts(const LayerPart& layer, int64_t number) {
  ops::route(card_.stream(), {.experts = routed_.matrix(n_),
                              .weights = route_weights_.matrix(n_),
                              .logits = router_logits_.matrix(n_),
                              .bias = weights_.zeros(),
                              .scaling = 1.5f,
                              .gate = &layer.gate,
                              .in = u_.all(),
                              .input_is_bf16 = true});
  ops::experts(card_.stream(), {y_.all(), u_quantised_.all(), draws_.experts(number), draws_.weights(number),
                                &layer.bank, kSwigluLimit, true, true});
}

void LayerSlice::run(LayerKind kind, int64_t number) {
  const LayerPart& layer = weights_.layer(number % weights_.num_layers());
  boundary(layer.attention_mhc);
  attention(kind, layer);
  boundary(layer.ffn_mhc);
  experts(layer, number);
}

void LayerSlice::run_engram(int64_t number) {
  Stream& stream = card_.stream();
  const EngramPart& engram = weights_.engram();
  ops::engram_rows(stream, {engram_rows_.all(), reinterpret_cast<const uint8_t*>(engram.codes.data()),
                            reinterpret_cast<const uint8_t*>(engram.scales.data()),
                            engram_ids_.data() + number % kEngramDraws * n_ * kEngramColumns, kEngramColumns, true});
  const ops::LinearTask key_value = task(key_value_.all(), engram_rows_.all(), engram.wkv);
  ops::linear(stream, {&key_value, 1});
  ops::engram_apply(stream, {streams_.all(), key_value_.all(), engram.query_key.data(), kStreams, kNormEps, true});
}

void LayerSlice::run_head() {
  Stream& stream = card_.stream();
  ops::mhc_collapse(stream, {hidden_.all(), streams_.all(), pre_.matrix(n_), weights_.ones(), kNormEps, true});
  const ops::LinearTask head = task_f32(logits_.matrix(n_), hidden_.all(), weights_.head());
  ops::linear(stream, {&head, 1});
  ops::sample(stream, {.tokens = tokens_.data(), .logits = logits_.matrix(n_), .rows = sampling_.data()});
}

}  // namespace deepinfer::bench
