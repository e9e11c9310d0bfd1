#include "cpu/layer_bench.h"

#include <cstring>
#include <memory>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/linear_pack.h"
#include "cpu/ceilings.h"
#include "cpu/measure.h"
#include "cpu/random_weights.h"
#include "model/attention_layer.h"
#include "model/decoder_layer.h"
#include "model/rope_table.h"
#include "model/step_inputs.h"
#include "ops/elementwise.h"

namespace deepinfer::bench {
namespace {

using ops::WeightFormat;

// Two layers of ratio 2: the first owns the compressed rows and is never run, the second reuses them.
ModelConfig released_widths(int64_t num_experts) {
  ModelConfig c;
  c.vocab_size = 129280;
  c.hidden_size = 5120;
  c.num_hidden_layers = 2;
  c.max_position_embeddings = 1048576;
  c.rms_norm_eps = 1e-20f;
  c.num_attention_heads = 64;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.sliding_window = 128;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.rope_scaling = RopeScaling{16, 32, 1, 65536};
  c.compress_ratios = {2, 2};
  c.kv_source_layer_ids = {0};
  c.index_source_layer_ids = {0};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.moe_intermediate_size = 2304;
  c.n_routed_experts = num_experts;
  c.num_experts_per_tok = 6;
  c.routed_scaling_factor = 1.5f;
  c.swiglu_limit = 10;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6f;
  return c;
}

// Random weights of about the size that keeps activations near one.
class RandomLayer {
 public:
  RandomLayer(Device& device, Stream& stream, int num_threads, const ModelConfig& c)
      : device_(device), stream_(stream), pool_(num_threads) {
    const int64_t heads = c.num_attention_heads * c.head_dim;
    weights.attention.norm = all(1.0f, c.hidden_size);
    weights.attention.sink = all(0.0f, c.num_attention_heads);
    weights.attention.wq_a = pack(WeightFormat::kF8Tile32, c.q_lora_rank, c.hidden_size);
    weights.attention.q_norm = all(1.0f, c.q_lora_rank);
    weights.attention.wq_b = pack(WeightFormat::kF8Tile32, heads, c.q_lora_rank);
    weights.attention.wkv = pack(WeightFormat::kF8Tile32, c.head_dim, c.hidden_size);
    weights.attention.kv_norm = all(1.0f, c.head_dim);
    for (int64_t g = 0; g < c.o_groups; ++g) {
      weights.attention.wo_a.push_back(pack(WeightFormat::kF8Tile32, c.o_lora_rank, heads / c.o_groups));
    }
    weights.attention.wo_b = pack(WeightFormat::kF8Tile32, c.hidden_size, c.o_groups * c.o_lora_rank);
    mhc(c, weights.attention_mhc);
    mhc(c, weights.ffn_mhc);
    weights.moe.norm = all(1.0f, c.hidden_size);
    weights.moe.gate = pack(WeightFormat::kBf16, c.n_routed_experts, c.hidden_size);
    weights.moe.bias = all(0.0f, c.n_routed_experts);
    ops::ExpertBank& bank = weights.moe.experts;
    for (int64_t e = 0; e < c.n_routed_experts; ++e) bank.routed.push_back(expert(c, WeightFormat::kMxfp4));
    bank.shared = expert(c, WeightFormat::kF8Tile32);
    ops::prepare_experts(stream_, bank);
  }

  // Packed bytes that one token reads.
  double bytes_per_token(int64_t num_experts) const {
    const auto of_expert = [](const ops::ExpertWeights& e) { return e.w1.bytes + e.w2.bytes + e.w3.bytes; };
    const AttentionWeights& a = weights.attention;
    int64_t bytes = a.wq_a.bytes + a.wq_b.bytes + a.wkv.bytes + a.wo_b.bytes + weights.attention_mhc.fn.bytes +
                    weights.ffn_mhc.fn.bytes + weights.moe.gate.bytes + of_expert(weights.moe.experts.shared) +
                    num_experts * of_expert(weights.moe.experts.routed.front());
    for (const ops::PackedWeight& group : a.wo_a) bytes += group.bytes;
    return static_cast<double>(bytes);
  }

  LayerWeights weights;

 private:
  DeviceArray<float> all(float value, int64_t count) {
    const std::vector<float> values(count, value);
    return DeviceArray<float>::make(device_, stream_, values).value();
  }
  ops::PackedWeight pack(WeightFormat format, int64_t rows, int64_t cols) {
    // Codes of E4M3 are about 2^7 large, those of E2M1 about 2: these scales make both about 2^-6.
    const int scale = format == WeightFormat::kF8Tile32 ? 114 : 120;
    return ops::pack_weight(stream_, RandomMatrix(pool_, format, rows, cols, ++seed_, scale, 1).source());
  }
  ops::ExpertWeights expert(const ModelConfig& c, WeightFormat format) {
    return {pack(format, c.moe_intermediate_size, c.hidden_size), pack(format, c.hidden_size, c.moe_intermediate_size),
            pack(format, c.moe_intermediate_size, c.hidden_size)};
  }
  void mhc(const ModelConfig& c, MhcWeights& out) {
    const int64_t outputs = c.hc_mult * (c.hc_mult + 2);
    out.fn = pack(WeightFormat::kF32, outputs, c.hc_mult * c.hidden_size);
    out.scale = all(0.05f, 3);
    out.base = all(0.0f, outputs);
  }

  Device& device_;
  Stream& stream_;
  ThreadPool pool_;
  uint64_t seed_ = 0;
};

// A sequence of 2,048 tokens whose caches hold random rows, and one more token to run.
class OneTokenStep {
 public:
  static constexpr int64_t kLength = 2048;

  OneTokenStep(Device& device, Stream& stream, const ModelConfig& config)
      : stream_(stream),
        config_(config),
        plan_(LayerPlan::make(config)),
        kv_(std::make_shared<const KvLayout>(KvLayout::make(config, Numerics::kOfficial))),
        state_(SequenceState::with_own_blocks(device, kv_, 0)),
        inputs_(device, stream, config, *kv_),
        work_(device, config, plan_, device.activation_type(true)),
        random_(1) {
    require(state_.begin_step(kLength + 1, {}));
    fill(state_.rows(kv_->members[kv_->window[1]]), kLength - config.sliding_window, kLength);
    fill(state_.rows(kv_->members[kv_->compressed[0]]), 0, kLength / 2);
    state_.end_step(kLength);
    require(state_.begin_step(1, {}));
    step_ = {&state_, token_, LogitRows::kNone};
    layout_.reset({&step_, 1});
    const StepInputs::Shape shape = {.tokens = 1};
    require(inputs_.reserve(shape));
    require(work_.tokens.reserve(1));
    inputs_.fill(shape, layout_, {}, {});
    state_.upload_tables(stream_);
    inputs_.upload(stream_);
    for (const RopeKind kind : {RopeKind::kPlain, RopeKind::kCompressed}) {
      frequencies_[static_cast<int>(kind)] = rope_frequencies(config, kind);
    }
    for (int64_t i = 0; i < config.index_topk; ++i) selected_.push_back(static_cast<int32_t>(2 * i));
    num_selected_ = static_cast<int32_t>(selected_.size());
    streams_.resize(config.hc_mult * config.hidden_size);
    pre_.assign(config.hc_mult, 0.4f);
    post_ = pre_;
    mix_.assign(config.hc_mult * config.hc_mult, 0.25f);
  }

  // New random streams, so that the router picks other experts.
  void next_input() {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (float& x : streams_) x = round_to_bfloat16(normal(random_));
  }

  ForwardContext context() {
    ForwardContext c{.stream = stream_,
                     .config = config_,
                     .plan = plan_,
                     .kv = *kv_,
                     .rounding = Rounding::of(Numerics::kOfficial),
                     .layout = layout_,
                     .rows = inputs_.rows(),
                     .work = work_,
                     .max_length = kLength + 1};
    const AngleBuffers* buffers[2];  // by RopeKind
    buffers[static_cast<int>(RopeKind::kPlain)] = &work_.plain_angles;
    buffers[static_cast<int>(RopeKind::kCompressed)] = &work_.compressed_angles;
    for (int kind = 0; kind < 2; ++kind) {
      const MatrixView<float> cosine = buffers[kind]->cosine.rows(1), sine = buffers[kind]->sine.rows(1);
      ops::rope_angles(stream_, {cosine, sine, c.rows.positions, frequencies_[kind].data()});
      c.angles[kind] = {cosine, sine};
    }
    c.selection.rows = dense(selected_.data(), 1, static_cast<int64_t>(selected_.size()));
    c.selection.num_rows = &num_selected_;
    return c;
  }
  MatrixView<float> streams() { return dense(streams_.data(), 1, static_cast<int64_t>(streams_.size())); }
  // As another layer leaves it: with a result that this layer's first sublayer has to put into the streams.
  Residual residual(const std::vector<float>& result) {
    const int64_t h = config_.hc_mult;
    return {streams(),
            {dense(pre_.data(), 1, h), dense(post_.data(), 1, h), dense(mix_.data(), 1, h * h)},
            dense(result.data(), 1, config_.hidden_size)};
  }

 private:
  static void require(const Status& status) { DI_CHECK(status.ok(), "{}", status.message()); }

  void fill(const ops::RowTable& table, int64_t begin, int64_t end) {
    const std::vector<float> values = random_bf16_values((end - begin) * table.width, 7);
    const std::vector<std::byte* const*> blocks(end - begin, table.blocks);
    std::vector<int64_t> rows;
    for (int64_t row = begin; row < end; ++row) rows.push_back(row);
    ops::write_rows(stream_, {.in = dense(values.data(), end - begin, table.width),
                              .tables = {blocks.data(), table.block_shift, table.type, table.width, table.offset},
                              .positions = rows.data()});
  }

  Stream& stream_;
  const ModelConfig& config_;
  LayerPlan plan_;
  std::shared_ptr<const KvLayout> kv_;
  SequenceState state_;
  StepInputs inputs_;
  Workspace work_;
  std::mt19937 random_;
  std::vector<int32_t> token_ = {1};
  SequenceStep step_;
  StepLayout layout_;
  std::vector<float> frequencies_[2];
  std::vector<int32_t> selected_;
  int32_t num_selected_ = 0;
  std::vector<float> streams_, pre_, post_, mix_;
};

}  // namespace

LayerResult bench_layer(const LayerBenchOptions& options) {
  const ModelConfig config = released_widths(options.num_experts);
  const std::unique_ptr<Device> device =
      make_cpu_device({.num_threads = options.num_threads, .kernels = options.kernels}).value();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const RandomLayer layer(*device, *stream, options.num_threads, config);
  OneTokenStep step(*device, *stream, config);
  ThreadPool read_pool(options.num_threads);

  // Pure reads go over memory of their own, as much as a shared cache holds, which also turns the layer's weights out
  // of it.
  constexpr int64_t kWindowBytes = int64_t{1} << 26;
  constexpr int64_t kNumWindows = 6;
  const int64_t read_rows = kNumWindows * kWindowBytes / (4096 * 4);
  const ops::PackedWeight memory =
      cpu::allocate_weight({ops::WeightFormat::kF32, read_rows, 4096, nullptr, nullptr}, kNumWindows * kWindowBytes);
  std::memset(memory.data.get(), 1, static_cast<size_t>(memory.bytes));
  Windows reads, layers, attention;
  const auto read_window = [&](size_t window) {
    const std::span<const std::byte> bytes(memory.data.get() + window * kWindowBytes, kWindowBytes);
    reads.add(seconds_of([&] { read_memory(read_pool, bytes); }));
  };
  std::vector<float> y(config.hidden_size), quantised(config.hidden_size);
  const std::vector<float> last_result = random_bf16_values(config.hidden_size, 8);
  double spent = 0;
  for (size_t round = 0; spent < options.seconds || layers.size() < 12; ++round) {
    ForwardContext context = step.context();
    step.next_input();
    Residual residual = step.residual(last_result);
    const double once = seconds_of([&] { decoder_layer(context, 1, layer.weights, residual); });
    step.next_input();
    const MatrixView<float> u = step.streams().columns(0, config.hidden_size);
    const MatrixView<float> linear = dense(quantised.data(), 1, config.hidden_size);
    const double half = seconds_of([&] {
      ops::fake_quant(*stream, {ops::FakeQuant::kE4m3Group32, linear, u});
      attention_layer(context, 1, layer.weights.attention, {u, linear}, dense(y.data(), 1, config.hidden_size));
    });
    if (round >= 2) {  // the first rounds grow buffers
      layers.add(once);
      attention.add(half);
      for (size_t i = 0; i < kNumWindows; ++i) read_window(i);
    }
    spent += once + half;
  }

  LayerResult result{.set = options.kernels, .num_threads = options.num_threads, .num_experts = options.num_experts};
  result.weight_bytes = layer.bytes_per_token(config.num_experts_per_tok);
  result.read_gbps = reads.rate_p50(kWindowBytes) * 1e-9;
  result.floor_ms = result.weight_bytes / reads.rate_p50(kWindowBytes) * 1e3;
  result.layer_ms = layers.p50() * 1e3;
  result.attention_ms = attention.p50() * 1e3;
  return result;
}

}  // namespace deepinfer::bench
