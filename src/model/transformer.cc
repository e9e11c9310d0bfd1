#include "model/transformer.h"

#include <algorithm>

#include "model/decoder_layer.h"
#include "model/rope_table.h"
#include "ops/mhc.h"
#include "ops/op_table.h"

namespace deepinfer {

Model::Model(Device& device, Checkpoint checkpoint, ModelConfig config, const ModelOptions& options)
    : device_(device),
      checkpoint_(std::move(checkpoint)),
      config_(std::move(config)),
      plan_(LayerPlan::make(config_)),
      numerics_(options.numerics),
      kv_layout_(std::make_shared<const KvLayout>(KvLayout::make(config_, options.numerics, options.kv_format))),
      stream_(device.make_stream()),
      inputs_(device, *stream_, config_, *kv_layout_),
      work_(device, config_, plan_, device.activation_type(Rounding::of(numerics_).round_to_bf16)),
      inputs_read_(stream_->make_event()) {}

Result<std::unique_ptr<Model>> Model::load(Device& device, Checkpoint checkpoint, ModelConfig config,
                                           std::vector<int32_t> token_map, const ModelOptions& options) {
  DI_RETURN_IF_ERROR(check_kv_format(options.kv_format, options.numerics));
  std::unique_ptr<Model> model(new Model(device, std::move(checkpoint), std::move(config), options));
  for (const RopeKind kind : {RopeKind::kPlain, RopeKind::kCompressed}) {
    const std::vector<float> frequencies = rope_frequencies(model->config_, kind);
    DI_ASSIGN_OR_RETURN(model->frequencies_[static_cast<int>(kind)],
                        DeviceArray<float>::make(device, *model->stream_, frequencies));
  }
  if (model->config_.engram.enabled()) {
    DI_CHECK(static_cast<int64_t>(token_map.size()) == model->config_.vocab_size, "token map of {}", token_map.size());
    DI_ASSIGN_OR_RETURN(model->engram_, EngramLookup::create(model->config_.engram, std::move(token_map)));
  }
  DI_ASSIGN_OR_RETURN(model->weights_, load_weights(device, *model->stream_, model->checkpoint_, model->config_,
                                                    model->plan_, options.engram_cache_rows, options.progress));
  return model;
}

bool Model::can_draw() const { return stream_->ops().sample != nullptr; }

Status Model::restart(SequenceState& state, std::span<const int32_t> tokens, int64_t max_tokens) {
  return state.restart(static_cast<int64_t>(tokens.size()),
                       engram_ ? engram_->compress(tokens) : std::span<const int32_t>(), max_tokens);
}

Status Model::reserve(const StepInputs::Shape& rows) {
  const bool holds = inputs_.holds(rows) && work_.tokens.holds(rows.tokens) && work_.kept.holds(rows.kept) &&
                     work_.outputs.holds(rows.logits);
  if (!holds) DI_RETURN_IF_ERROR(stream_->synchronize());  // what runs names the memory that is about to move
  DI_RETURN_IF_ERROR(inputs_.reserve(rows));
  DI_RETURN_IF_ERROR(work_.tokens.reserve(rows.tokens));
  DI_RETURN_IF_ERROR(work_.kept.reserve(rows.kept));
  return work_.outputs.reserve(rows.logits);
}

Status Model::forward(std::span<const SequenceStep> steps, std::vector<float>& logits) {
  logits.clear();
  StepOutputs outputs;
  Status status = begin(steps);
  if (status.ok()) status = complete(steps, outputs);
  if (status.ok()) {
    const MatrixView<const float>& rows = outputs.logits;
    logits.resize(rows.rows * rows.cols);
    if (rows.rows > 0) stream_->copy(logits.data(), rows.data, static_cast<int64_t>(logits.size() * sizeof(float)));
  }
  // Also what came before a failure has to have run: the next step writes where it reads.
  Status ran = stream_->synchronize();
  return status.ok() ? std::move(ran) : std::move(status);
}

Status Model::begin(std::span<const SequenceStep> steps, Event* started) {
  layout_.reset(steps);
  plan_of_step_ = {};
  if (layout_.num_tokens == 0) {
    if (started != nullptr) stream_->record(*started);
    return Status();
  }
  plan_of_step_ = plan_step(steps);
  plan_of_step_.started = started;
  const Plan& plan = plan_of_step_;
  DI_RETURN_IF_ERROR(wait_for_inputs());
  DI_RETURN_IF_ERROR(reserve(plan.shape));
  for (const SequenceStep& step : steps) {
    DI_RETURN_IF_ERROR(step.state->begin_step(static_cast<int64_t>(step.tokens.size()), {}));
  }
  inputs_.fill(plan.shape, layout_, kept_layout_, kept_rows_);
  for (const SequenceStep& step : steps) step.state->upload_tables(*stream_);
  inputs_.upload(*stream_);
  stream_->record(*inputs_read_);
  if (!plan.recordable) return Status();
  mark_start();
  DI_RETURN_IF_ERROR(graphs_.run(*stream_, {plan.shape.tokens, plan.max_length, 0},
                                 inputs_.generation() + work_.generation(), [&] { return run_first(plan); }));
  return stream_->check();
}

Status Model::complete(std::span<const SequenceStep> steps, StepOutputs& outputs) {
  outputs = {};
  if (layout_.num_tokens == 0) return Status();
  const Plan& plan = plan_of_step_;
  if (engram_) DI_RETURN_IF_ERROR(upload_engram(steps));
  if (!plan.recordable) {
    mark_start();
    DI_RETURN_IF_ERROR(run(plan));
    stream_->record(*inputs_read_);
  } else if (first_engram_layer() < weights_.layers.size()) {
    DI_RETURN_IF_ERROR(graphs_.run(*stream_, {plan.shape.tokens, plan.max_length, 1},
                                   inputs_.generation() + work_.generation(), [&] { return run_rest(plan); }));
  }
  DI_RETURN_IF_ERROR(stream_->check());
  const auto wanted = static_cast<int64_t>((plan.skips ? kept_layout_ : layout_).logit_rows.size());
  if (wanted > 0) outputs = {work_.logits.rows(wanted), work_.drawn.rows(wanted).data};
  for (const SequenceStep& step : steps) step.state->end_step(static_cast<int64_t>(step.tokens.size()));
  return Status();
}

void Model::mark_start() {
  if (plan_of_step_.started != nullptr) stream_->record(*plan_of_step_.started);
}

Model::Plan Model::plan_step(std::span<const SequenceStep> steps) {
  Plan plan;
  bool decodes = true;  // one token a sequence, and its logits
  for (const SequenceStep& step : steps) {
    DI_CHECK(step.decoder_begin == 0 || plan_.first_decoder_layer >= 0, "this model has no decoder to skip");
    plan.skips |= step.state->length() < step.decoder_begin && !step.mask_only;
    decodes &= step.tokens.size() == 1 && step.logits == LogitRows::kLast;
  }
  plan.recordable = stream_->can_record() && decodes && !plan.skips;
  plan.max_length = layout_.max_length();
  plan.shape.tokens = layout_.num_tokens;
  if (plan.recordable) {
    plan.shape.tokens = plan.shape.logits = row_bucket(layout_.num_tokens);
    plan.max_length = length_bucket(plan.max_length);
  } else if (plan.skips) {
    kept_layout_.keep_decoder_rows(layout_, steps, kept_rows_);
    plan.shape.kept = kept_layout_.num_tokens;
    plan.shape.logits = static_cast<int64_t>(kept_layout_.logit_rows.size());
  } else {
    plan.shape.logits = static_cast<int64_t>(layout_.logit_rows.size());
  }
  return plan;
}

// Looks the step's rows up. Those of a step that is not recorded are gathered when their layer is reached, which gives
// them most time to come.
Status Model::upload_engram(std::span<const SequenceStep> steps) {
  for (const SequenceStep& step : steps) step.state->append_history(engram_->compress(step.tokens));
  engram_->begin_step(layout_, weights_.layers, plan_);
  if (!plan_of_step_.recordable) return Status();
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    if (!weights_.layers[l].engram) continue;
    const int table = plan_.layers[l].engram_table;
    DI_RETURN_IF_ERROR(engram_->gather(table, *weights_.layers[l].engram, inputs_.engram_on_host(table)));
  }
  inputs_.upload_all_engram(*stream_);
  stream_->record(*inputs_read_);
  return Status();
}

ForwardContext Model::context_of(const Plan& plan, const StepLayout& layout, const StepRows& rows) {
  return {.stream = *stream_,
          .config = config_,
          .plan = plan_,
          .kv = *kv_layout_,
          .rounding = Rounding::of(numerics_),
          .layout = layout,
          .rows = rows,
          .work = work_,
          .recordable = plan.recordable,
          .max_length = plan.max_length};
}

void Model::use_angles(ForwardContext& c, const AngleBuffers& plain, const AngleBuffers& compressed) {
  const int64_t n = c.num_tokens();
  c.angles[static_cast<int>(RopeKind::kPlain)] = {plain.cosine.rows(n), plain.sine.rows(n)};
  c.angles[static_cast<int>(RopeKind::kCompressed)] = {compressed.cosine.rows(n), compressed.sine.rows(n)};
}

void Model::set_angles(ForwardContext& c, const AngleBuffers& plain, const AngleBuffers& compressed) {
  const auto set = [&](RopeKind kind, const AngleBuffers& buffers, int ratio) {
    const int64_t n = c.num_tokens();
    ops::rope_angles(*stream_, {buffers.cosine.rows(n), buffers.sine.rows(n), c.rows.positions,
                                frequencies_[static_cast<int>(kind)].data(), ratio});
  };
  set(RopeKind::kPlain, plain, 1);
  set(RopeKind::kCompressed, compressed, 1);
  use_angles(c, plain, compressed);
  if (&c.layout == &kept_layout_) return;  // compressed rows are written before tokens leave
  for (size_t i = 0; i < plan_.group_ratios.size(); ++i) {
    if (c.may_close_groups(plan_.group_ratios[i]))
      set(RopeKind::kCompressed, work_.group_angles[i], plan_.group_ratios[i]);
  }
}

size_t Model::first_engram_layer() const {
  const auto found = std::find_if(weights_.layers.begin(), weights_.layers.end(),
                                  [](const LayerWeights& layer) { return layer.engram.has_value(); });
  return static_cast<size_t>(found - weights_.layers.begin());
}

Residual Model::residual_of(const ForwardContext& c) {
  const int64_t n = c.num_tokens();
  return {work_.streams.rows(n), {inputs_.mix(), work_.post.rows(n), work_.mix.rows(n)}, {}};
}

// A recorded step comes in two pieces: down to the first Engram layer, whose rows the host looks up meanwhile, and from
// there on; without such a layer, the first piece is all of it.
Status Model::run_first(const Plan& plan) {
  const size_t end = first_engram_layer();
  ForwardContext context = context_of(plan, layout_, inputs_.rows());
  set_angles(context, work_.plain_angles, work_.compressed_angles);
  Residual residual = residual_of(context);
  embed_tokens(residual.streams);
  DI_RETURN_IF_ERROR(run_layers(context, 0, end, residual));
  if (end == weights_.layers.size()) {
    write_logits(context, residual, plan.shape.logits);
  } else {
    settle(context, residual);
  }
  return Status();
}

Status Model::run_rest(const Plan& plan) {
  ForwardContext context = context_of(plan, layout_, inputs_.rows());
  use_angles(context, work_.plain_angles, work_.compressed_angles);
  // As the layers before left it; those that select anew replace it.
  const int64_t n = context.num_tokens();
  context.selection = {work_.selected.rows(n), work_.num_selected.rows(n).data, work_.candidates.rows(n),
                       work_.num_candidates.rows(n).data};
  Residual residual = residual_of(context);
  DI_RETURN_IF_ERROR(run_layers(context, first_engram_layer(), weights_.layers.size(), residual));
  write_logits(context, residual, plan.shape.logits);
  return Status();
}

void Model::embed_tokens(TensorView streams) {
  const int32_t* tokens = inputs_.tokens();
  if (draws()) {
    const MatrixView<int32_t> ids = work_.token_ids.rows(streams.rows);
    ops::gather_rows(*stream_, {dense(reinterpret_cast<float*>(ids.data), ids.rows, 1), inputs_.token_sources(),
                                inputs_.token_rows()});
    tokens = ids.data;
  }
  ops::embed(*stream_, {streams, tokens, weights_.embed.get(), config_.hidden_size});
}

Status Model::run(const Plan& plan) {
  ForwardContext context = context_of(plan, layout_, inputs_.rows());
  set_angles(context, work_.plain_angles, work_.compressed_angles);
  Residual residual = residual_of(context);
  embed_tokens(residual.streams);
  if (!plan.skips) {
    DI_RETURN_IF_ERROR(run_layers(context, 0, weights_.layers.size(), residual));
    write_logits(context, residual, plan.shape.logits);
    return Status();
  }
  const size_t cut = plan_.first_decoder_layer;
  DI_RETURN_IF_ERROR(run_layers(context, 0, cut, residual));
  ForwardContext rest = context_of(plan, kept_layout_, inputs_.kept());
  const int64_t kept = rest.num_tokens();
  Residual kept_residual;
  if (kept > 0) {
    set_angles(rest, work_.kept_plain_angles, work_.kept_compressed_angles);
    kept_residual = {
        work_.kept_streams.rows(kept), {work_.kept_pre.rows(kept), work_.post.rows(kept), work_.mix.rows(kept)}, {}};
  }
  decoder_layer_keeping(context, rest, inputs_.kept_rows(), static_cast<int>(cut), weights_.layers[cut], residual,
                        kept_residual);
  if (kept == 0) return Status();
  DI_RETURN_IF_ERROR(run_layers(rest, cut + 1, weights_.layers.size(), kept_residual));
  write_logits(rest, kept_residual, plan.shape.logits);
  return Status();
}

Status Model::run_layers(ForwardContext& c, size_t begin, size_t end, Residual& residual) {
  for (size_t l = begin; l < end; ++l) {
    const LayerWeights& layer = weights_.layers[l];
    if (layer.engram) {
      const int table = plan_.layers[l].engram_table;
      if (!c.recordable) {
        DI_RETURN_IF_ERROR(engram_->gather(table, *layer.engram, inputs_.engram_on_host(table)));
        inputs_.upload_engram(*stream_, table);
      }
      settle(c, residual);
      engram_layer(c, *layer.engram, inputs_.engram(table), residual.streams);
    }
    decoder_layer(c, static_cast<int>(l), layer, residual);
  }
  return Status();
}

void Model::write_logits(ForwardContext& c, Residual& residual, int64_t num_rows) {
  if (num_rows == 0) return;
  settle(c, residual);
  const TensorView streams = work_.last_streams.rows(num_rows), hidden = work_.last_hidden.rows(num_rows);
  const MatrixView<float> pre = work_.last_pre.rows(num_rows);
  ops::gather_rows(*stream_, {streams, residual.streams, inputs_.logit_rows()});
  ops::gather_rows(*stream_, {pre, residual.coefficients.pre, inputs_.logit_rows()});
  ops::mhc_collapse(*stream_,
                    {hidden, streams, pre, weights_.norm.data(), config_.rms_norm_eps, c.rounding.round_to_bf16});
  const MatrixView<float> logits = work_.logits.rows(num_rows);
  const ops::LinearTask task = c.linear_task_f32(logits, hidden, weights_.head);
  ops::linear(*stream_, {&task, 1});
  if (!draws()) return;
  ops::sample(*stream_, {.tokens = work_.drawn.rows(num_rows).data,
                         .logits = logits,
                         .rows = inputs_.draws(),
                         .last_tokens = inputs_.last_tokens()});
}

}  // namespace deepinfer
