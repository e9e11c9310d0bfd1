// Kernels of ops/mhc.h. Two kernels a boundary: one passes over the streams (mhc_streams.cuh: update, collapse, partial
// projections and squares), one ends what needs whole rows (mhc_finish.cuh: norm and quantiser of the collapsed row;
// coefficients; from the partial sums, added in order). The same kernels with parts left out make the single ops, so
// the bits agree.
//
// Floor a row of width 5120: 41 KB of streams and 10 KB of y read, 41 KB of streams and 10 KB (20 with the quantised
// form) written: 26 us for 1024 rows at 4.3 TB/s; at few rows two kernels' latency. Very many rows go in pieces, to
// bound the partial sums (4.5 KB a row).
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_finish.cuh"
#include "backends/cuda/mhc_generic.cuh"
#include "backends/cuda/mhc_streams.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kRowsAtOnce = 8192;
constexpr int64_t kMostFastHidden = 256 * kManyNormVecs * kVec;  // so that 256 threads normalise a row
constexpr int kFewRows = 64;                                     // up to here the kernel for few rows is the faster one
constexpr int kMediumRows = 1024;
constexpr int kFewCoefficientBlocks = 12;                        // most, of few rows
constexpr int kCoefficientBlocks = 128;                          // at least, where there are so many rows

// What one call does: parts that are absent are left out.
struct Boundary {
  TensorView streams;
  ConstTensorView y;  // update
  MatrixView<const float> pre, post, mix;
  TensorView out;  // collapse
  TensorView quantised;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  const ops::MhcWeights* weights = nullptr;  // coefficients
  ops::MhcCoefficients coefficients;
  int64_t h = 0;
  bool round = false;

  int64_t hidden() const { return streams.cols / h; }
  Boundary of_rows(int64_t begin, int64_t end) const {
    const auto cut = [&](auto view) { return view.data ? decltype(view)(view.row_range(begin, end)) : view; };
    Boundary b = *this;
    b.streams = cut(streams), b.y = cut(y), b.out = cut(out), b.quantised = cut(quantised);
    b.pre = cut(pre), b.post = cut(post), b.mix = cut(mix);
    b.coefficients = {cut(coefficients.pre), cut(coefficients.post), cut(coefficients.mix)};
    return b;
  }
};

bool is_fast(const Boundary& b) {
  const auto in_fours = [](const MatrixView<const float>& m) {
    return m.stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
  };
  return b.streams.type == ElementType::kBf16 && b.h == kMhcStreams && b.hidden() <= kMostFastHidden &&
         in_fours(b.pre) && in_fours(b.post) && in_fours(b.mix);
}

// How the sums of a boundary are cut, and where they lie.
struct Parts {
  bool fast = false, few = false;
  int slices = 1;
  float* sums = nullptr;     // [rows, slices, places_of_row]
  float* squares = nullptr;  // [rows, slices], of the collapsed row; of few rows
};

// Of passes over the streams that do not project, all are for few rows: they have no weights to keep.
Parts parts_of(Stream& stream, const Boundary& b) {
  Parts parts;
  parts.fast = is_fast(b);
  parts.few = !b.weights || b.streams.rows <= kFewRows;
  if (parts.fast) parts.slices = static_cast<int>((b.hidden() + kMhcSlice - 1) / kMhcSlice);
  const int64_t cells = parts.slices * b.streams.rows;
  const int64_t sums = b.weights ? cells * places_of_row(static_cast<int>(b.h)) : 0;
  const int64_t squares = parts.fast && parts.few && b.out ? cells : 0;
  if (sums + squares == 0) return parts;
  auto* memory =
      static_cast<float*>(cuda_stream(stream).scratch((sums + squares) * static_cast<int64_t>(sizeof(float))));
  parts.sums = memory;
  if (squares > 0) parts.squares = memory + sums;
  return parts;
}

template <bool kUpdate, bool kCollapse, bool kProject>
void launch_streams(Stream& stream, const MhcStreamsParams& p, const Parts& parts) {
  const int slices = parts.slices;
  if (parts.few) {
    constexpr auto kKernel = mhc_few_rows_kernel<kUpdate, kCollapse, kProject>;
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(MhcFewShared));
    DI_CUDA_CHECK(allowed);
    // Blocks in as many rows of them as run at once, one a multiprocessor.
    const int groups = (p.rows + kMhcGroupRows - 1) / kMhcGroupRows;
    const int most = kProject ? std::max(1, cuda_stream(stream).num_sms() / slices) : groups;
    const int teams = std::clamp((groups + most - 1) / most, 1, kMhcFewTeams);
    launch(stream, Start::kEarly, dim3(slices, (groups + teams - 1) / teams), kMhcTeamThreads * teams,
           kProject ? sizeof(MhcFewShared) : offsetof(MhcFewShared, weights), kKernel, p);
    return;
  }
  if constexpr (kProject) {
    constexpr auto kKernel = mhc_many_rows_kernel<kUpdate, kCollapse>;
    static const cudaError_t allowed = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                            static_cast<int>(sizeof(MhcManyShared)));
    DI_CUDA_CHECK(allowed);
    // As many blocks as run at once, one a multiprocessor: the weights are split once a block.
    const int tiles = (p.rows + kMhcTeams * kMhcTeamRows - 1) / (kMhcTeams * kMhcTeamRows);
    const int most = std::max(1, cuda_stream(stream).num_sms() / slices);
    launch(stream, Start::kEarly, dim3(slices, std::min(tiles, most)), kMhcManyThreads, sizeof(MhcManyShared), kKernel,
           p);
  }
}

void pass_streams(Stream& stream, const Boundary& b, const Parts& parts) {
  MhcStreamsParams p = {};
  p.streams = rows_of<Bf16>(b.streams).data;
  p.streams_stride = b.streams.stride;
  p.y = rows_of<const Bf16>(b.y).data;
  p.y_stride = b.y.stride;
  p.collapsed = rows_of<Bf16>(b.out).data;
  p.collapsed_stride = b.out.stride;
  p.pre = b.pre.data, p.post = b.post.data, p.mix = b.mix.data;
  p.pre_stride = b.pre.stride, p.post_stride = b.post.stride, p.mix_stride = b.mix.stride;
  p.fn = b.weights ? reinterpret_cast<const float*>(b.weights->fn->data.get()) : nullptr;
  p.sums = parts.sums, p.squares = parts.squares;
  p.rows = static_cast<int>(b.streams.rows);
  p.hidden = static_cast<int>(b.hidden());
  if (b.y && b.out && b.weights) return launch_streams<true, true, true>(stream, p, parts);
  if (b.out && b.weights) return launch_streams<false, true, true>(stream, p, parts);
  if (b.weights) return launch_streams<false, false, true>(stream, p, parts);
  if (b.out) return launch_streams<false, true, false>(stream, p, parts);
  launch_streams<true, false, false>(stream, p, parts);
}

template <typename T>
void pass_streams_generic(Stream& stream, const Boundary& b, float* sums) {
  const auto hidden = static_cast<int>(b.hidden());
  dim3 blocks = blocks_for(hidden / kVec, kMhcFlatThreads);
  blocks.y = static_cast<unsigned>(b.streams.rows);
  if (b.y) {
    launch(stream, Start::kInOrder, blocks, kMhcFlatThreads, 0, mhc_update_kernel<T>, rows_of<T>(b.streams),
           rows_of<const T>(b.y), b.post, b.mix, hidden, b.round);
  }
  if (b.out) {
    launch(stream, Start::kInOrder, blocks, kMhcFlatThreads, 0, mhc_collapse_kernel<T>, rows_of<T>(b.out),
           rows_of<const T>(b.streams), b.pre, hidden, b.round);
  }
  if (b.weights) {
    launch(stream, Start::kInOrder, dim3(static_cast<unsigned>(b.streams.rows)), kMhcProjectThreads, 0,
           mhc_project_kernel<T>, sums, rows_of<const T>(b.streams),
           reinterpret_cast<const float*>(b.weights->fn->data.get()), b.h * (b.h + 2), b.streams.cols,
           places_of_row(static_cast<int>(b.h)));
  }
}

CoefficientsParams coefficients_params(const Boundary& b, const Parts& parts) {
  const ops::MhcWeights& w = *b.weights;
  CoefficientsParams c = {};
  c.sums = parts.sums;
  c.slices = parts.slices;
  c.scale = w.scale, c.base = w.base;
  c.pre = b.coefficients.pre, c.post = b.coefficients.post, c.mix = b.coefficients.mix;
  c.rows = static_cast<int>(b.streams.rows);
  // Few blocks leave multiprocessors to the next kernel; of many rows, few a block are sooner done.
  c.rows_a_block = c.rows <= kFewRows ? (c.rows + kFewCoefficientBlocks - 1) / kFewCoefficientBlocks
                                      : std::clamp(c.rows / kCoefficientBlocks, 1, kCoefficientRows);
  c.h = static_cast<int>(b.h);
  c.iterations = w.iterations;
  c.eps = w.eps, c.norm_eps = w.norm_eps;
  c.inverse_width = 1.0f / static_cast<float>(b.streams.cols);
  return c;
}

template <typename T>
NormParams<T> norm_params(const Boundary& b, const Parts& parts, int blocks_a_row) {
  const Rows<T> out = rows_of<T>(b.out), quantised = rows_of<T>(b.quantised);
  NormParams<T> n = {};
  n.rows = out.data, n.stride = out.stride;
  n.quantised = quantised.data, n.quantised_stride = quantised.stride;
  n.weight = b.norm_weight;
  n.squares = parts.squares;
  n.slices = parts.slices;
  n.blocks_a_row = blocks_a_row;
  n.width = static_cast<int>(b.hidden());
  n.inverse_width = 1.0f / static_cast<float>(n.width);
  n.eps = b.norm_eps;
  n.round = b.round;
  return n;
}

template <typename T, int kH, NormBy kNorm>
void launch_finish(Stream& stream, const Boundary& b, const Parts& parts, int threads, int blocks_a_row = 1) {
  CoefficientsParams c = {};
  NormParams<T> n = {};
  int coefficient_blocks = 0, norm_blocks = 0;
  if (b.weights) {
    c = coefficients_params(b, parts);
    coefficient_blocks = (c.rows + c.rows_a_block - 1) / c.rows_a_block;
  }
  if (b.out) {
    n = norm_params<T>(b, parts, blocks_a_row);
    norm_blocks = static_cast<int>(b.out.rows) * blocks_a_row;
  }
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(coefficient_blocks + norm_blocks)), threads, 0,
         mhc_finish_kernel<T, kH, kNorm>, c, n, coefficient_blocks);
}

template <typename T>
void finish(Stream& stream, const Boundary& b, const Parts& parts) {
  const int threads = std::max(norm_threads(b.hidden(), kManyNormVecs), 128);
  if constexpr (std::is_same_v<T, Bf16>) {
    constexpr int kFewThreads = 256;
    const auto of_row = static_cast<int>((b.hidden() + kFewThreads * kVec - 1) / (kFewThreads * kVec));
    if (parts.fast && parts.few) {
      return launch_finish<T, kMhcStreams, NormBy::kChannels>(stream, b, parts, kFewThreads, of_row);
    }
    if (parts.fast) {
      // More warps make coefficients sooner; from some thousand rows on, blocks that just fit a row are faster.
      const int of_block = b.streams.rows <= kMediumRows ? 256 : threads;
      return launch_finish<T, kMhcStreams, NormBy::kWholeRow>(stream, b, parts, of_block);
    }
  }
  switch (b.h) {
    case 1:
      return launch_finish<T, 1, NormBy::kGeneric>(stream, b, parts, threads);
    case 2:
      return launch_finish<T, 2, NormBy::kGeneric>(stream, b, parts, threads);
    case 4:
      return launch_finish<T, 4, NormBy::kGeneric>(stream, b, parts, threads);
    case 8:
      return launch_finish<T, 8, NormBy::kGeneric>(stream, b, parts, threads);
    default:
      DI_CHECK(false, "{} streams: 1, 2, 4 or 8", b.h);
  }
}

void run(Stream& stream, const Boundary& whole) {
  for (int64_t begin = 0; begin < whole.streams.rows; begin += kRowsAtOnce) {
    const Boundary b = whole.of_rows(begin, std::min(begin + kRowsAtOnce, whole.streams.rows));
    const Parts parts = parts_of(stream, b);
    with_element(b.streams.type, [&]<typename T>(T) {
      if (parts.fast) {
        pass_streams(stream, b, parts);
      } else {
        pass_streams_generic<T>(stream, b, parts.sums);
      }
      if (b.weights || b.out) finish<T>(stream, b, parts);
    });
  }
}

// Read only, as the streams of a boundary without update are.
TensorView read_only(const ConstTensorView& view) {
  return {const_cast<std::byte*>(view.data), view.type, view.rows, view.cols, view.stride};
}

}  // namespace

void mhc_coefficients(Stream& stream, const ops::MhcCoefficientsArgs& a) {
  Boundary b;
  b.streams = read_only(a.streams);
  b.weights = &a.weights;
  b.coefficients = a.out;
  b.h = a.weights.num_streams;
  run(stream, b);
}

void mhc_collapse(Stream& stream, const ops::MhcCollapseArgs& a) {
  Boundary b;
  b.streams = read_only(a.streams);
  b.pre = a.pre;
  b.out = a.out;
  b.quantised = a.quantised;
  b.norm_weight = a.norm_weight;
  b.norm_eps = a.norm_eps;
  b.h = a.pre.cols;
  b.round = a.round_to_bf16;
  run(stream, b);
}

void mhc_update(Stream& stream, const ops::MhcUpdateArgs& a) {
  Boundary b;
  b.streams = a.streams;
  b.y = a.y;
  b.post = a.post;
  b.mix = a.mix;
  b.h = a.post.cols;
  b.round = a.round_to_bf16;
  run(stream, b);
}

void mhc_boundary(Stream& stream, const ops::MhcBoundaryArgs& a) {
  Boundary b;
  b.streams = a.streams;
  b.y = a.y;
  b.pre = a.coefficients.pre;
  b.post = a.coefficients.post;
  b.mix = a.coefficients.mix;
  b.out = a.out;
  b.quantised = a.quantised;
  b.norm_weight = a.norm_weight;
  b.norm_eps = a.weights.norm_eps;
  b.weights = &a.weights;
  b.coefficients = a.coefficients;
  b.h = a.weights.num_streams;
  b.round = a.round_to_bf16;
  run(stream, b);
}

}  // namespace deepinfer::cuda
