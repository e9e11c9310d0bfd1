#include "model/transformer.h"

#include <algorithm>

#include "model/decoder_layer.h"
#include "model/rope_table.h"
#include "ops/mhc.h"

namespace deepinfer {

Result<std::unique_ptr<Model>> Model::load(Device& device, Checkpoint checkpoint, ModelConfig config,
                                           std::vector<int32_t> token_map, const ModelOptions& options) {
  DI_RETURN_IF_ERROR(check_kv_format(options.kv_format, options.numerics));
  std::unique_ptr<Model> model(new Model(std::move(checkpoint), std::move(config)));
  model->plan_ = LayerPlan::make(model->config_);
  model->numerics_ = options.numerics;
  model->kv_layout_ =
      std::make_shared<const KvLayout>(KvLayout::make(model->config_, options.numerics, options.kv_format));
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

void Model::restart(SequenceState& state, std::span<const int32_t> tokens, int64_t max_tokens) {
  state.restart(static_cast<int64_t>(tokens.size()), engram_ ? engram_->compress(tokens) : std::span<const int32_t>(),
                max_tokens);
}

void Model::set_angles(ForwardContext& context, MatrixBuffer<float> (&cosine)[2], MatrixBuffer<float> (&sine)[2]) {
  const int64_t pairs = config_.qk_rope_head_dim / 2;
  for (int kind = 0; kind < 2; ++kind) {
    const MatrixView<float> c = cosine[kind].matrix(context.num_tokens(), pairs);
    const MatrixView<float> s = sine[kind].matrix(context.num_tokens(), pairs);
    ops::rope_angles(*stream_, {c, s, context.layout.positions, frequencies_[kind]});
    context.frequencies[kind] = frequencies_[kind];
    context.angles[kind] = {c, s};
  }
}

Status Model::forward(std::span<const SequenceStep> steps, std::vector<float>& logits) {
  logits.clear();
  layout_.reset(steps);
  if (layout_.num_tokens == 0) return Status();
  for (const SequenceStep& step : steps) {
    DI_CHECK(step.decoder_begin == 0 || plan_.first_decoder_layer >= 0, "this model has no decoder to skip");
    step.state->begin_step(static_cast<int64_t>(step.tokens.size()),
                           engram_ ? engram_->compress(step.tokens) : std::span<const int32_t>());
  }
  if (engram_) engram_->begin_step(layout_, weights_.layers, plan_);

  ForwardContext context{*stream_, config_, plan_, Rounding::of(numerics_), layout_, work_};
  set_angles(context, work_.cosine, work_.sine);
  const int64_t n = layout_.num_tokens;
  const MatrixView<float> streams = work_.streams.matrix(n, config_.hc_mult * config_.hidden_size);
  ops::embed(*stream_, {streams, layout_.tokens, weights_.embed, config_.hidden_size});
  // The first sublayer takes the first of the (equal) streams.
  const MatrixView<float> pre = work_.pre.matrix(n, config_.hc_mult);
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t s = 0; s < config_.hc_mult; ++s) pre.row(t)[s] = s == 0 ? 1.0f : 0.0f;
  }

  const bool skips = std::any_of(steps.begin(), steps.end(), [](const SequenceStep& step) {
    return step.state->length() < step.decoder_begin && !step.mask_only;
  });
  if (!skips) {
    DI_RETURN_IF_ERROR(run_layers(context, 0, weights_.layers.size(), streams, pre));
    write_logits(context, streams, pre, logits);
  } else {
    const size_t cut = plan_.first_decoder_layer;
    kept_layout_.keep_decoder_rows(layout_, steps, work_.kept_rows);
    const int64_t kept = kept_layout_.num_tokens;
    DI_RETURN_IF_ERROR(run_layers(context, 0, cut, streams, pre));
    ForwardContext rest{*stream_, config_, plan_, context.rounding, kept_layout_, work_};
    set_angles(rest, work_.kept_cosine, work_.kept_sine);
    const MatrixView<float> kept_streams = work_.kept_streams.matrix(kept, streams.cols);
    const MatrixView<float> kept_pre = work_.kept_pre.matrix(kept, pre.cols);
    decoder_layer_keeping(context, rest, work_.kept_rows, static_cast<int>(cut), weights_.layers[cut], streams, pre,
                          kept_streams, kept_pre);
    if (kept > 0) {
      DI_RETURN_IF_ERROR(run_layers(rest, cut + 1, weights_.layers.size(), kept_streams, kept_pre));
      write_logits(rest, kept_streams, kept_pre, logits);
    }
  }
  for (const SequenceStep& step : steps) step.state->end_step(static_cast<int64_t>(step.tokens.size()));
  return Status();
}

Status Model::run_layers(ForwardContext& c, size_t begin, size_t end, MatrixView<float> streams,
                         MatrixView<float> pre) {
  for (size_t l = begin; l < end; ++l) {
    const LayerWeights& layer = weights_.layers[l];
    if (layer.engram) DI_RETURN_IF_ERROR(engram_->apply(c, plan_.layers[l].engram_table, *layer.engram, streams));
    decoder_layer(c, static_cast<int>(l), layer, streams, pre);
  }
  return Status();
}

void Model::write_logits(ForwardContext& c, MatrixView<const float> streams, MatrixView<const float> pre,
                         std::vector<float>& logits) {
  const int64_t rows = static_cast<int64_t>(c.layout.logit_rows.size());
  if (rows == 0) return;
  const MatrixView<float> last_streams = work_.last_streams.matrix(rows, streams.cols);
  const MatrixView<float> last_pre = work_.last_pre.matrix(rows, pre.cols);
  const MatrixView<float> hidden = work_.last_hidden.matrix(rows, config_.hidden_size);
  ops::gather_rows(*stream_, {last_streams, streams, c.layout.logit_rows});
  ops::gather_rows(*stream_, {last_pre, pre, c.layout.logit_rows});
  ops::mhc_collapse(
      *stream_, {hidden, last_streams, last_pre, weights_.norm.data(), config_.rms_norm_eps, c.rounding.round_to_bf16});
  logits.resize(rows * config_.vocab_size);
  const ops::LinearTask task = c.linear_task_f32(dense(logits.data(), rows, config_.vocab_size), hidden, weights_.head);
  ops::linear(*stream_, {&task, 1});
}

}  // namespace deepinfer
