// Argument checks of every op, once for all backends, then the call through the stream's table. Arguments come from the
// model, never from a user, so a violation is a bug.
#include <algorithm>

#include "base/check.h"
#include "ops/op_table.h"

namespace deepinfer::ops {
namespace {

template <typename A, typename B>
void check_rows(const MatrixView<A>& a, const MatrixView<B>& b, const char* op) {
  DI_CHECK(a.rows == b.rows, "{}: {} rows against {}", op, a.rows, b.rows);
}

template <typename A, typename B>
void check_same_shape(const MatrixView<A>& a, const MatrixView<B>& b, const char* op) {
  DI_CHECK(a.rows == b.rows && a.cols == b.cols, "{}: [{}, {}] against [{}, {}]", op, a.rows, a.cols, b.rows, b.cols);
}

}  // namespace

PackedWeight pack_weight(Stream& stream, const WeightSource& source) {
  DI_CHECK(source.rows > 0 && source.cols > 0 && source.cols % 32 == 0, "pack_weight: [{}, {}]", source.rows,
           source.cols);
  const bool scaled = source.format == WeightFormat::kF8Tile32 || source.format == WeightFormat::kMxfp4;
  DI_CHECK(source.data != nullptr && scaled == (source.scales != nullptr), "pack_weight: data or scales missing");
  return stream.ops().pack_weight(stream, source);
}

void linear(Stream& stream, std::span<const LinearTask> tasks) {
  for (const LinearTask& task : tasks) {
    DI_CHECK(task.weight != nullptr && task.in.cols == task.weight->cols && task.out.cols == task.weight->rows,
             "linear: in {} columns, out {} columns", task.in.cols, task.out.cols);
    check_rows(task.in, task.out, "linear");
  }
  stream.ops().linear(stream, tasks);
}

void embed(Stream& stream, const EmbedArgs& args) {
  DI_CHECK(args.out.rows == static_cast<int64_t>(args.tokens.size()) && args.out.cols % args.hidden == 0,
           "embed: [{}, {}]", args.out.rows, args.out.cols);
  stream.ops().embed(stream, args);
}

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  check_same_shape(args.out, args.in, "rms_norm");
  DI_CHECK(args.in.cols % 16 == 0, "rms_norm: width {}", args.in.cols);
  stream.ops().rms_norm(stream, args);
}

void fake_quant(Stream& stream, const FakeQuantArgs& args) {
  check_same_shape(args.out, args.in, "fake_quant");
  DI_CHECK(args.in.cols % quantiser_group(args.kind) == 0, "fake_quant: width {}", args.in.cols);
  stream.ops().fake_quant(stream, args);
}

void rope_angles(Stream& stream, const RopeAnglesArgs& args) {
  check_same_shape(args.cosine, args.sine, "rope_angles");
  DI_CHECK(args.cosine.rows == static_cast<int64_t>(args.positions.size()) &&
               args.cosine.cols == static_cast<int64_t>(args.frequencies.size()),
           "rope_angles: [{}, {}]", args.cosine.rows, args.cosine.cols);
  stream.ops().rope_angles(stream, args);
}

void rope(Stream& stream, const RopeArgs& args) {
  check_same_shape(args.cosine, args.sine, "rope");
  check_rows(args.data, args.cosine, "rope");
  DI_CHECK(args.data.cols % args.num_heads == 0 && args.data.cols / args.num_heads >= 2 * args.cosine.cols,
           "rope: {} channels in {} heads", args.data.cols, args.num_heads);
  stream.ops().rope(stream, args);
}

void swiglu(Stream& stream, const SwigluArgs& args) {
  check_same_shape(args.out, args.gate, "swiglu");
  check_same_shape(args.out, args.up, "swiglu");
  DI_CHECK(args.out.cols % 16 == 0, "swiglu: width {}", args.out.cols);
  stream.ops().swiglu(stream, args);
}

void gather_rows(Stream& stream, const GatherRowsArgs& args) {
  DI_CHECK(args.out.rows == static_cast<int64_t>(args.rows.size()) && args.out.cols == args.in.cols,
           "gather_rows: [{}, {}] from {} columns", args.out.rows, args.out.cols, args.in.cols);
  stream.ops().gather_rows(stream, args);
}

void write_rows(Stream& stream, const WriteRowsArgs& args) {
  DI_CHECK(args.in.rows == static_cast<int64_t>(args.tables.size()) && args.tables.size() == args.rows.size(),
           "write_rows: {} rows, {} tables", args.in.rows, args.tables.size());
  const int64_t group = args.quantise ? quantiser_group(*args.quantise) : 1;
  for (const RowTable* table : args.tables) {
    DI_CHECK(table->width == args.in.cols && table->width % std::max(group, row_group(table->type)) == 0,
             "write_rows: width {} into rows of {}", args.in.cols, table->width);
  }
  stream.ops().write_rows(stream, args);
}

void mhc_coefficients(Stream& stream, const MhcCoefficientsArgs& args) {
  const int64_t h = args.num_streams;
  DI_CHECK(h >= 1 && h <= kMaxStreams && args.projection.cols == h * (h + 2) && args.streams.cols % (16 * h) == 0,
           "mhc_coefficients: {} streams, projection of {}", h, args.projection.cols);
  DI_CHECK(args.pre.cols == h && args.post.cols == h && args.mix.cols == h * h, "mhc_coefficients: output widths");
  check_rows(args.projection, args.streams, "mhc_coefficients");
  stream.ops().mhc_coefficients(stream, args);
}

void mhc_collapse(Stream& stream, const MhcCollapseArgs& args) {
  check_rows(args.out, args.streams, "mhc_collapse");
  check_rows(args.out, args.pre, "mhc_collapse");
  DI_CHECK(args.streams.cols == args.out.cols * args.pre.cols && args.out.cols % 16 == 0, "mhc_collapse: {} of {}",
           args.out.cols, args.streams.cols);
  stream.ops().mhc_collapse(stream, args);
}

void mhc_update(Stream& stream, const MhcUpdateArgs& args) {
  check_rows(args.streams, args.y, "mhc_update");
  DI_CHECK(args.streams.cols == args.y.cols * args.post.cols && args.mix.cols == args.post.cols * args.post.cols,
           "mhc_update: {} of {}", args.y.cols, args.streams.cols);
  stream.ops().mhc_update(stream, args);
}

void attention(Stream& stream, const AttentionArgs& args) {
  check_same_shape(args.out, args.q, "attention");
  DI_CHECK(args.q.rows == static_cast<int64_t>(args.queries.size()) && args.q.cols % (16 * args.num_heads) == 0,
           "attention: [{}, {}] with {} heads", args.q.rows, args.q.cols, args.num_heads);
  stream.ops().attention(stream, args);
}

void compress(Stream& stream, const CompressArgs& args) {
  DI_CHECK(args.out.rows == static_cast<int64_t>(args.tables.size()) && args.tables.size() == args.first_rows.size() &&
               args.ratio >= 1,
           "compress: {} rows, {} tables", args.out.rows, args.tables.size());
  stream.ops().compress(stream, args);
}

void index_select(Stream& stream, const IndexSelectArgs& args) {
  DI_CHECK(args.q.rows == static_cast<int64_t>(args.queries.size()) &&
               args.num_selected.size() == args.queries.size() && args.selected.cols >= args.top_k &&
               args.head_weights.cols == args.num_heads,
           "index_select: {} queries, {} rows", args.queries.size(), args.q.rows);
  DI_CHECK(args.candidate_block == 0 || args.candidates.rows == args.q.rows, "index_select: candidate lists");
  stream.ops().index_select(stream, args);
}

void route(Stream& stream, const RouteArgs& args) {
  check_same_shape(args.experts, args.weights, "route");
  check_rows(args.experts, args.logits, "route");
  DI_CHECK(args.experts.cols <= args.logits.cols, "route: top {} of {}", args.experts.cols, args.logits.cols);
  stream.ops().route(stream, args);
}

void combine(Stream& stream, const CombineArgs& args) {
  check_same_shape(args.out, args.shared, "combine");
  check_rows(args.out, args.rows, "combine");
  stream.ops().combine(stream, args);
}

void engram_apply(Stream& stream, const EngramApplyArgs& args) {
  check_rows(args.streams, args.key_value, "engram_apply");
  DI_CHECK(args.key_value.cols * args.num_streams == args.streams.cols * (args.num_streams + 1) &&
               args.streams.cols % (16 * args.num_streams) == 0,
           "engram_apply: {} and {}", args.streams.cols, args.key_value.cols);
  stream.ops().engram_apply(stream, args);
}

}  // namespace deepinfer::ops
