// Argument checks of every op, once for all backends, then the call through the stream's table. Arguments come from the
// model, never from a user, so a violation is a bug.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/op_table.h"

namespace deepinfer::ops {
namespace {

template <typename A, typename B>
void check_rows(const A& a, const B& b, const char* op) {
  DI_CHECK(a.rows == b.rows, "{}: {} rows against {}", op, a.rows, b.rows);
}

template <typename A, typename B>
void check_same_shape(const A& a, const B& b, const char* op) {
  DI_CHECK(a.rows == b.rows && a.cols == b.cols, "{}: [{}, {}] against [{}, {}]", op, a.rows, a.cols, b.rows, b.cols);
}

// What has an entry a row may be absent only if there are no rows.
void check_given(const void* data, int64_t rows, const char* what, const char* op) {
  DI_CHECK(data != nullptr || rows == 0, "{}: no {} for {} rows", op, what, rows);
}

// Rotation angles of every row for heads of `head_dim` channels, or none.
void check_angles(const MatrixView<const float>& cosine, const MatrixView<const float>& sine, int64_t rows,
                  int64_t head_dim, const char* op) {
  if (cosine.data == nullptr) return;
  check_same_shape(cosine, sine, op);
  check_given(sine.data, rows, "sines", op);
  DI_CHECK(cosine.rows == rows && 2 * cosine.cols <= head_dim, "{}: angles [{}, {}] for {} rows, heads of {}", op,
           cosine.rows, cosine.cols, rows, head_dim);
}

// A second output, through FakeQuant::kE4m3Group32.
void check_quantised(const TensorView& quantised, const TensorView& out, const char* op) {
  if (!quantised) return;
  check_same_shape(quantised, out, op);
  DI_CHECK(out.cols % 32 == 0, "{}: quantised output of width {}", op, out.cols);
}

template <typename Result, typename... Parameters, typename... Arguments>
Result call(Result (*op)(Stream&, Parameters...), const char* name, Stream& stream, Arguments&&... arguments) {
  DI_CHECK(op != nullptr, "{}: this device does not have the op", name);
  return op(stream, std::forward<Arguments>(arguments)...);
}

}  // namespace

PackedWeight pack_weight(Stream& stream, const WeightSource& source) {
  DI_CHECK(source.rows > 0 && source.cols > 0 && source.cols % 32 == 0, "pack_weight: [{}, {}]", source.rows,
           source.cols);
  const bool scaled = source.format == WeightFormat::kF8Tile32 || source.format == WeightFormat::kMxfp4;
  DI_CHECK(source.data != nullptr && scaled == (source.scales != nullptr), "pack_weight: data or scales missing");
  return call(stream.ops().pack_weight, "pack_weight", stream, source);
}

void linear(Stream& stream, std::span<const LinearTask> tasks) {
  for (const LinearTask& task : tasks) {
    DI_CHECK(task.weight != nullptr && task.in.cols == task.weight->cols && task.out.cols == task.weight->rows,
             "linear: in {} columns, out {} columns", task.in.cols, task.out.cols);
    check_rows(task.in, task.out, "linear");
    DI_CHECK(task.out.type == ElementType::kF32 || task.round_output_to_bf16, "linear: BF16 output without rounding");
    DI_CHECK(!task.quantise_output || task.weight->rows % 32 == 0, "linear: quantised output of {} columns",
             task.weight->rows);
  }
  call(stream.ops().linear, "linear", stream, tasks);
}

void embed(Stream& stream, const EmbedArgs& args) {
  DI_CHECK(args.hidden > 0 && args.out.cols % args.hidden == 0, "embed: {} columns for a hidden size of {}",
           args.out.cols, args.hidden);
  check_given(args.tokens, args.out.rows, "tokens", "embed");
  call(stream.ops().embed, "embed", stream, args);
}

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  check_same_shape(args.out, args.in, "rms_norm");
  check_quantised(args.quantised, args.out, "rms_norm");
  DI_CHECK(args.in.cols % 16 == 0, "rms_norm: width {}", args.in.cols);
  call(stream.ops().rms_norm, "rms_norm", stream, args);
}

void fake_quant(Stream& stream, const FakeQuantArgs& args) {
  check_same_shape(args.out, args.in, "fake_quant");
  DI_CHECK(args.in.cols % quantiser_group(args.kind) == 0, "fake_quant: width {}", args.in.cols);
  call(stream.ops().fake_quant, "fake_quant", stream, args);
}

void rope_angles(Stream& stream, const RopeAnglesArgs& args) {
  check_same_shape(args.cosine, args.sine, "rope_angles");
  check_given(args.positions, args.cosine.rows, "positions", "rope_angles");
  check_given(args.frequencies, args.cosine.cols, "frequencies", "rope_angles");
  DI_CHECK(args.ratio >= 1, "rope_angles: groups of {}", args.ratio);
  call(stream.ops().rope_angles, "rope_angles", stream, args);
}

void rope(Stream& stream, const RopeArgs& args) {
  DI_CHECK(args.num_heads >= 1 && args.data.cols % args.num_heads == 0, "rope: {} channels in {} heads", args.data.cols,
           args.num_heads);
  DI_CHECK(!args.quantise || args.data.cols / args.num_heads % quantiser_group(*args.quantise) == 0,
           "rope: heads of {} channels quantised", args.data.cols / args.num_heads);
  check_given(args.cosine.data, args.data.rows, "angles", "rope");
  check_angles(args.cosine, args.sine, args.data.rows, args.data.cols / args.num_heads, "rope");
  call(stream.ops().rope, "rope", stream, args);
}

void swiglu(Stream& stream, const SwigluArgs& args) {
  check_same_shape(args.out, args.gate, "swiglu");
  check_same_shape(args.out, args.up, "swiglu");
  DI_CHECK(args.out.cols % 16 == 0, "swiglu: width {}", args.out.cols);
  call(stream.ops().swiglu, "swiglu", stream, args);
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  DI_CHECK(args.out.cols == args.in.cols && args.out.type == args.in.type, "gather_rows: {} columns from {}, or types",
           args.out.cols, args.in.cols);
  check_given(args.rows, args.out.rows, "row numbers", "gather_rows");
  call(stream.ops().gather_rows, "gather_rows", stream, args);
}

namespace {

void check_write_rows(const WriteRowsArgs& args, const char* op) {
  const int64_t group = args.quantise ? quantiser_group(*args.quantise) : 1;
  DI_CHECK(args.tables.width == args.in.cols && args.tables.width % std::max(group, row_group(args.tables.type)) == 0,
           "{}: width {} into rows of {}", op, args.in.cols, args.tables.width);
  DI_CHECK(args.ratio >= 1, "{}: groups of {}", op, args.ratio);
  check_given(args.positions, args.in.rows, "positions", op);
  check_given(args.tables.blocks, args.in.rows, "tables", op);
  check_angles(args.cosine, args.sine, args.in.rows, args.in.cols, op);
}

}  // namespace

void write_rows(Stream& stream, const WriteRowsArgs& args) {
  check_write_rows(args, "write_rows");
  call(stream.ops().write_rows, "write_rows", stream, args);
}

void latents(Stream& stream, std::span<const LatentTask> tasks) {
  DI_CHECK(tasks.size() <= kMaxLatentTasks, "latents: {} tasks", tasks.size());
  for (const LatentTask& task : tasks) {
    check_rows(task.in, tasks[0].in, "latents");
    DI_CHECK(task.in.cols % 16 == 0, "latents: width {}", task.in.cols);
    if (task.out) check_same_shape(task.out, task.in, "latents");
    check_quantised(task.quantised, {nullptr, task.in.type, task.in.rows, task.in.cols, task.in.stride}, "latents");
    if (task.tables.blocks != nullptr) check_write_rows(task.rows_to_write(task.in), "latents");
  }
  call(stream.ops().latents, "latents", stream, tasks);
}

namespace {

void check_mhc(const MhcWeights& weights, const MhcCoefficients& coefficients, const ConstTensorView& streams,
               const char* op) {
  const int64_t h = weights.num_streams;
  DI_CHECK(h >= 1 && h <= kMaxStreams && streams.cols % (16 * h) == 0, "{}: {} streams in {} columns", op, h,
           streams.cols);
  DI_CHECK(weights.fn != nullptr && weights.fn->format == WeightFormat::kF32 && weights.fn->rows == h * (h + 2) &&
               weights.fn->cols == streams.cols,
           "{}: no F32 projection [{}, {}]", op, h * (h + 2), streams.cols);
  DI_CHECK(coefficients.pre.cols == h && coefficients.post.cols == h && coefficients.mix.cols == h * h,
           "{}: widths of the coefficients", op);
  check_rows(coefficients.pre, streams, op);
  check_rows(coefficients.post, streams, op);
  check_rows(coefficients.mix, streams, op);
}

}  // namespace

void mhc_coefficients(Stream& stream, const MhcCoefficientsArgs& args) {
  check_mhc(args.weights, args.out, args.streams, "mhc_coefficients");
  call(stream.ops().mhc_coefficients, "mhc_coefficients", stream, args);
}

void mhc_collapse(Stream& stream, const MhcCollapseArgs& args) {
  check_rows(args.out, args.streams, "mhc_collapse");
  check_rows(args.out, args.pre, "mhc_collapse");
  check_quantised(args.quantised, args.out, "mhc_collapse");
  DI_CHECK(args.streams.cols == args.out.cols * args.pre.cols && args.out.cols % 16 == 0, "mhc_collapse: {} of {}",
           args.out.cols, args.streams.cols);
  call(stream.ops().mhc_collapse, "mhc_collapse", stream, args);
}

void mhc_update(Stream& stream, const MhcUpdateArgs& args) {
  check_rows(args.streams, args.y, "mhc_update");
  check_rows(args.streams, args.post, "mhc_update");
  check_rows(args.streams, args.mix, "mhc_update");
  DI_CHECK(args.streams.cols == args.y.cols * args.post.cols && args.mix.cols == args.post.cols * args.post.cols,
           "mhc_update: {} of {}", args.y.cols, args.streams.cols);
  call(stream.ops().mhc_update, "mhc_update", stream, args);
}

void mhc_boundary(Stream& stream, const MhcBoundaryArgs& args) {
  check_mhc(args.weights, args.coefficients, args.streams, "mhc_boundary");
  check_rows(args.out, args.streams, "mhc_boundary");
  DI_CHECK(args.streams.cols == args.out.cols * args.weights.num_streams, "mhc_boundary: {} of {}", args.out.cols,
           args.streams.cols);
  if (args.y) check_same_shape(args.y, args.out, "mhc_boundary");
  check_quantised(args.quantised, args.out, "mhc_boundary");
  call(stream.ops().mhc_boundary, "mhc_boundary", stream, args);
}

void attention(Stream& stream, const AttentionArgs& args) {
  check_same_shape(args.out, args.q, "attention");
  DI_CHECK(args.num_heads >= 1 && args.q.cols % (16 * args.num_heads) == 0, "attention: {} columns in {} heads",
           args.q.cols, args.num_heads);
  const int64_t num_tokens = args.q.rows, head_dim = args.q.cols / args.num_heads;
  check_given(args.positions, num_tokens, "positions", "attention");
  check_given(args.window.blocks, num_tokens, "window", "attention");
  DI_CHECK(args.window.width == head_dim || num_tokens == 0, "attention: window rows of {}, heads of {}",
           args.window.width, head_dim);
  if (args.compressed.blocks != nullptr) {
    check_given(args.num_selected, num_tokens, "selection", "attention");
    DI_CHECK(args.compressed.width == head_dim && args.selected.rows == num_tokens,
             "attention: compressed rows of {}, {} selections", args.compressed.width, args.selected.rows);
  }
  check_angles(args.cosine, args.sine, num_tokens, head_dim, "attention");
  call(stream.ops().attention, "attention", stream, args);
}

void compress(Stream& stream, const CompressArgs& args) {
  DI_CHECK(args.ratio >= 1 && args.rows.type == RowType::kF32 && args.rows.width == 2 * args.out.cols,
           "compress: groups of {}, rows of {} for {} columns", args.ratio, args.rows.width, args.out.cols);
  check_given(args.positions, args.out.rows, "positions", "compress");
  check_given(args.rows.blocks, args.out.rows, "tables", "compress");
  call(stream.ops().compress, "compress", stream, args);
}

void index_select(Stream& stream, const IndexSelectArgs& args) {
  const int64_t num_tokens = args.q.rows;
  DI_CHECK(args.num_heads >= 1 && args.q.cols == args.num_heads * args.keys.width &&
               args.head_weights.cols == args.num_heads && args.selected.cols >= args.top_k && args.ratio >= 1,
           "index_select: {} heads in {} columns, keys of {}", args.num_heads, args.q.cols, args.keys.width);
  check_rows(args.selected, args.q, "index_select");
  check_rows(args.head_weights, args.q, "index_select");
  check_given(args.num_selected, num_tokens, "counts", "index_select");
  check_given(args.positions, num_tokens, "positions", "index_select");
  check_given(args.keys.blocks, num_tokens, "keys", "index_select");
  if (args.candidate_block > 0) {
    check_rows(args.candidates, args.q, "index_select");
    check_given(args.num_candidates, num_tokens, "counts of candidates", "index_select");
  }
  call(stream.ops().index_select, "index_select", stream, args);
}

void route(Stream& stream, const RouteArgs& args) {
  check_same_shape(args.experts, args.weights, "route");
  check_rows(args.experts, args.logits, "route");
  DI_CHECK(args.experts.cols <= args.logits.cols, "route: top {} of {}", args.experts.cols, args.logits.cols);
  if (args.gate != nullptr) {
    check_rows(args.in, args.logits, "route");
    DI_CHECK(args.gate->rows == args.logits.cols && args.gate->cols == args.in.cols,
             "route: a gate of [{}, {}] for {} experts and rows of {}", args.gate->rows, args.gate->cols,
             args.logits.cols, args.in.cols);
  }
  call(stream.ops().route, "route", stream, args);
}

namespace {

void check_expert(const ExpertWeights& expert, int64_t inner, int64_t hidden, const char* op) {
  const auto is = [](const PackedWeight& w, int64_t rows, int64_t cols) { return w.rows == rows && w.cols == cols; };
  DI_CHECK(is(expert.w1, inner, hidden) && is(expert.w3, inner, hidden) && is(expert.w2, hidden, inner),
           "{}: an expert of [{}, {}], [{}, {}], [{}, {}], expected an inner width of {} and a hidden one of {}", op,
           expert.w1.rows, expert.w1.cols, expert.w3.rows, expert.w3.cols, expert.w2.rows, expert.w2.cols, inner,
           hidden);
}

}  // namespace

void prepare_experts(Stream& stream, ExpertBank& bank) {
  const int64_t inner = bank.shared.w1.rows, hidden = bank.shared.w1.cols;
  DI_CHECK(inner % 32 == 0 && inner > 0 && hidden > 0, "prepare_experts: shared expert of [{}, {}]", inner, hidden);
  check_expert(bank.shared, inner, hidden, "prepare_experts");
  for (const ExpertWeights& expert : bank.routed) check_expert(expert, inner, hidden, "prepare_experts");
  call(stream.ops().prepare_experts, "prepare_experts", stream, bank);
}

void experts(Stream& stream, const ExpertsArgs& args) {
  check_same_shape(args.out, args.in, "experts");
  check_same_shape(args.experts, args.weights, "experts");
  check_rows(args.experts, args.in, "experts");
  DI_CHECK(args.bank != nullptr && args.bank->shared.w1.cols == args.in.cols, "experts: no bank for {} columns",
           args.in.cols);
  DI_CHECK(args.experts.cols <= static_cast<int64_t>(args.bank->routed.size()), "experts: top {} of {}",
           args.experts.cols, args.bank->routed.size());
  DI_CHECK(args.out.type == ElementType::kF32 || args.round_to_bf16, "experts: BF16 output without rounding");
  call(stream.ops().experts, "experts", stream, args);
}

void engram_rows(Stream& stream, const EngramRowsArgs& args) {
  DI_CHECK(args.num_columns >= 1 && args.out.cols % (32 * args.num_columns) == 0, "engram_rows: {} columns in {} rows",
           args.out.cols, args.num_columns);
  check_given(args.codes, args.out.rows, "codes", "engram_rows");
  check_given(args.scales, args.out.rows, "scales", "engram_rows");
  call(stream.ops().engram_rows, "engram_rows", stream, args);
}

void engram_apply(Stream& stream, const EngramApplyArgs& args) {
  check_rows(args.streams, args.key_value, "engram_apply");
  DI_CHECK(args.key_value.cols * args.num_streams == args.streams.cols * (args.num_streams + 1) &&
               args.streams.cols % (16 * args.num_streams) == 0,
           "engram_apply: {} and {}", args.streams.cols, args.key_value.cols);
  call(stream.ops().engram_apply, "engram_apply", stream, args);
}

void sample(Stream& stream, const SampleArgs& args) {
  check_given(args.tokens, args.logits.rows, "room for tokens", "sample");
  check_given(args.rows, args.logits.rows, "parameters", "sample");
  DI_CHECK(args.logits.cols >= 1, "sample: a vocabulary of {}", args.logits.cols);
  DI_CHECK(args.allowed.data == nullptr || args.allowed.cols * 32 >= args.logits.cols,
           "sample: masks of {} words for {}", args.allowed.cols, args.logits.cols);
  call(stream.ops().sample, "sample", stream, args);
}

}  // namespace deepinfer::ops
