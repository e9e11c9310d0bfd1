#include "model/transformer.h"

#include "model/decoder_layer.h"
#include "model/rope_table.h"
#include "ops/mhc.h"

namespace deepinfer {

Result<std::unique_ptr<Model>> Model::load(Device& device, Checkpoint checkpoint, ModelConfig config,
                                           std::vector<int32_t> token_map, const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model(std::move(checkpoint), std::move(config)));
  model->plan_ = LayerPlan::make(model->config_);
  model->numerics_ = options.numerics;
  model->stream_ = device.make_stream();
  for (const RopeKind kind : {RopeKind::kPlain, RopeKind::kCompressed}) {
    model->frequencies_[static_cast<int>(kind)] = rope_frequencies(model->config_, kind);
  }
  if (model->config_.engram.enabled()) {
    DI_CHECK(static_cast<int64_t>(token_map.size()) == model->config_.vocab_size, "token map of {}", token_map.size());
    DI_ASSIGN_OR_RETURN(model->engram_, EngramLookup::create(model->config_.engram, std::move(token_map)));
  }
  DI_ASSIGN_OR_RETURN(model->weights_, load_weights(*model->stream_, model->checkpoint_, model->config_, model->plan_,
                                                    options.engram_cache_rows, options.progress));
  return model;
}

Status Model::forward(std::span<const SequenceStep> steps, std::vector<float>& logits) {
  logits.clear();
  layout_.reset(steps);
  if (layout_.num_tokens == 0) return Status();
  for (const SequenceStep& step : steps) {
    step.state->begin_step(static_cast<int64_t>(step.tokens.size()),
                           engram_ ? engram_->compress(step.tokens) : std::span<const int32_t>());
  }
  if (engram_) engram_->begin_step(layout_, weights_.layers, plan_);

  ForwardContext context{*stream_, config_, plan_, Rounding::of(numerics_), layout_, work_};
  const int64_t n = layout_.num_tokens;
  const int64_t pairs = config_.qk_rope_head_dim / 2;
  for (int kind = 0; kind < 2; ++kind) {
    const MatrixView<float> cosine = work_.cosine[kind].matrix(n, pairs);
    const MatrixView<float> sine = work_.sine[kind].matrix(n, pairs);
    ops::rope_angles(*stream_, {cosine, sine, layout_.positions, frequencies_[kind]});
    context.frequencies[kind] = frequencies_[kind];
    context.angles[kind] = {cosine, sine};
  }
  const MatrixView<float> streams = work_.streams.matrix(n, config_.hc_mult * config_.hidden_size);
  ops::embed(*stream_, {streams, layout_.tokens, weights_.embed, config_.hidden_size});
  // The first sublayer takes the first of the (equal) streams.
  const MatrixView<float> pre = work_.pre.matrix(n, config_.hc_mult);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t s = 0; s < config_.hc_mult; ++s) pre.row(t)[s] = s == 0 ? 1.0f : 0.0f;
  }
  DI_RETURN_IF_ERROR(run_layers(context, streams, pre));
  write_logits(context, streams, pre, logits);
  for (const SequenceStep& step : steps) step.state->end_step(static_cast<int64_t>(step.tokens.size()));
  return Status();
}

Status Model::run_layers(ForwardContext& c, MatrixView<float> streams, MatrixView<float> pre) {
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    if (layer.engram) DI_RETURN_IF_ERROR(engram_->apply(c, plan_.layers[l].engram_table, *layer.engram, streams));
    decoder_layer(c, static_cast<int>(l), layer, streams, pre);
  }
  return Status();
}

void Model::write_logits(ForwardContext& c, MatrixView<const float> streams, MatrixView<const float> pre,
                         std::vector<float>& logits) {
  const int64_t rows = static_cast<int64_t>(layout_.logit_rows.size());
  if (rows == 0) return;
  const MatrixView<float> last_streams = work_.last_streams.matrix(rows, streams.cols);
  const MatrixView<float> last_pre = work_.last_pre.matrix(rows, pre.cols);
  const MatrixView<float> hidden = work_.last_hidden.matrix(rows, config_.hidden_size);
  ops::gather_rows(*stream_, {last_streams, streams, layout_.logit_rows});
  ops::gather_rows(*stream_, {last_pre, pre, layout_.logit_rows});
  ops::mhc_collapse(
      *stream_, {hidden, last_streams, last_pre, weights_.norm.data(), config_.rms_norm_eps, c.rounding.round_to_bf16});
  logits.resize(rows * config_.vocab_size);
  const ops::LinearTask task = c.linear_task_f32(dense(logits.data(), rows, config_.vocab_size), hidden, weights_.head);
  ops::linear(*stream_, {&task, 1});
}

}  // namespace deepinfer
