#include "model/engram_layer.h"

#include "ops/engram.h"

namespace deepinfer {

Result<EngramLookup> EngramLookup::create(const EngramConfig& config, std::vector<int32_t> token_map) {
  DI_ASSIGN_OR_RETURN(EngramHash hash, EngramHash::create(config, token_map[config.pad_token_id]));
  return EngramLookup(std::move(hash), std::move(token_map));
}

std::span<const int32_t> EngramLookup::compress(std::span<const int32_t> tokens) {
  compressed_.clear();
  for (const int32_t token : tokens) compressed_.push_back(token_map_[token]);
  return compressed_;
}

void EngramLookup::begin_step(const StepLayout& layout, const std::vector<LayerWeights>& layers,
                              const LayerPlan& plan) {
  const int64_t columns = hash_.num_columns();
  rows_.resize(hash_.num_tables());
  for (std::vector<int64_t>& rows : rows_) rows.resize(layout.num_tokens * columns);
  window_.resize(hash_.window_size());
  for (int64_t t = 0; t < layout.num_tokens; ++t) {
    hash_.look_back(layout.states[t]->engram_history().first(layout.positions[t] + 1), window_);
    for (int table = 0; table < hash_.num_tables(); ++table) {
      hash_.hash(table, window_, std::span(rows_[table]).subspan(t * columns, columns));
    }
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].engram) layers[l].engram->table->prefetch(rows_[plan.layers[l].engram_table]);
  }
}

Status EngramLookup::gather(int table, const EngramWeights& weights, StepInputs::EngramCodes out) const {
  return weights.table->gather(rows_[table], out.codes, out.scales);
}

void engram_layer(ForwardContext& c, const EngramWeights& weights, StepInputs::EngramCodes codes, TensorView streams) {
  Workspace& w = c.work;
  const int64_t n = c.num_tokens();
  const TensorView quantised = c.quantised(w.engram_quantised);
  const TensorView rows = quantised ? quantised : w.engram_rows.rows(n);
  ops::engram_rows(c.stream, {.out = rows,
                              .codes = codes.codes,
                              .scales = codes.scales,
                              .num_columns = c.config.engram.num_columns(),
                              .quantise = static_cast<bool>(quantised)});
  const TensorView key_value = w.engram_key_value.rows(n);
  const ops::LinearTask task = c.linear_task(key_value, rows, weights.wkv);
  ops::linear(c.stream, {&task, 1});
  ops::engram_apply(c.stream, {streams, key_value, weights.query_key.data(), c.config.hc_mult, c.config.rms_norm_eps,
                               c.rounding.round_to_bf16});
}

}  // namespace deepinfer
