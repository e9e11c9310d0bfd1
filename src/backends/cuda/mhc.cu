// Kernels of ops/mhc.h. Two kernels a boundary: one passes over the streams (mhc_streams.cuh: update, collapse, partial
// projections), one ends what needs whole rows (norm and quantiser of the collapsed row; coefficients from the partial
// sums, added in order). The same kernels with parts left out make the single ops, so the bits agree.
//
// Floor a row of width 5120: 41 KB of streams and 10 KB of y read, 41 KB of streams and 10 KB (20 with the quantised
// form) written: 26 us for 1024 rows at 4.3 TB/s; at few rows two kernels' latency. Very many rows go in pieces, to
// bound the partial sums (4 KB a row).
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_finish.cuh"
#include "backends/cuda/mhc_generic.cuh"
#include "backends/cuda/mhc_streams.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kRowsAtOnce = 8192;
constexpr int kFewRows = 64;  // up to here the kernel for few rows is the faster one

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
  return b.streams.type == ElementType::kBf16 && b.h == kMhcStreams && in_fours(b.pre) && in_fours(b.post) &&
         in_fours(b.mix);
}

int64_t slices_of(const Boundary& b) { return is_fast(b) ? (b.hidden() + kMhcSlice - 1) / kMhcSlice : 1; }

template <bool kUpdate, bool kCollapse, bool kProject>
void launch_streams(Stream& stream, const MhcStreamsParams& p) {
  const int slices = (p.hidden + kMhcSlice - 1) / kMhcSlice;
  if (!kProject || p.rows <= kFewRows) {
    launch(stream, Start::kEarly, dim3(slices, (p.rows + kMhcWarpRows - 1) / kMhcWarpRows), kMhcGroupThreads, 0,
           mhc_few_rows_kernel<kUpdate, kCollapse, kProject>, p);
    return;
  }
  if constexpr (kProject) {
    constexpr auto kKernel = mhc_many_rows_kernel<kUpdate, kCollapse>;
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(MhcShared)));
    DI_CUDA_CHECK(allowed);
    // As many blocks as run at once, one a multiprocessor: the weights are split once a block.
    const int tiles = (p.rows + kMhcGroups * kMhcWarpRows - 1) / (kMhcGroups * kMhcWarpRows);
    const int most = std::max(1, cuda_stream(stream).num_sms() / slices);
    launch(stream, Start::kEarly, dim3(slices, std::min(tiles, most)), kMhcManyThreads, sizeof(MhcShared), kKernel, p);
  }
}

void pass_streams(Stream& stream, const Boundary& b, float* sums) {
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
  p.sums = sums;
  p.rows = static_cast<int>(b.streams.rows);
  p.hidden = static_cast<int>(b.hidden());
  if (b.y && b.out && b.weights) return launch_streams<true, true, true>(stream, p);
  if (b.out && b.weights) return launch_streams<false, true, true>(stream, p);
  if (b.weights) return launch_streams<false, false, true>(stream, p);
  if (b.out) return launch_streams<false, true, false>(stream, p);
  launch_streams<true, false, false>(stream, p);
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
           reinterpret_cast<const float*>(b.weights->fn->data.get()), b.h * (b.h + 2), b.streams.cols);
  }
}

template <typename T>
void finish(Stream& stream, const Boundary& b, const float* sums) {
  CoefficientsParams c = {};
  NormParams<T> n = {};
  int64_t coefficient_blocks = 0, norm_blocks = 0;
  if (b.weights) {
    const ops::MhcWeights& w = *b.weights;
    const int rows_a_block = b.streams.rows <= 128 ? 1 : kCoefficientRows;  // few rows are sooner done one by one
    c = {sums,
         static_cast<int>(slices_of(b)),
         w.scale,
         w.base,
         b.coefficients.pre,
         b.coefficients.post,
         b.coefficients.mix,
         static_cast<int>(b.streams.rows),
         rows_a_block,
         static_cast<int>(b.h),
         w.iterations,
         w.eps,
         w.norm_eps,
         static_cast<float>(b.streams.cols)};
    coefficient_blocks = (b.streams.rows + rows_a_block - 1) / rows_a_block;
  }
  if (b.out) {
    const Rows<T> out = rows_of<T>(b.out), quantised = rows_of<T>(b.quantised);
    n = {out.data,   out.stride, quantised.data, quantised.stride, b.norm_weight, static_cast<int>(b.hidden()),
         b.norm_eps, b.round};
    norm_blocks = b.out.rows;
  }
  const int vecs = b.h == kMhcStreams ? norm_vecs(b.streams.rows, b.hidden()) : kManyNormVecs;
  const int threads = std::max(norm_threads(b.hidden(), vecs), 32 * kSumWarps);
  const auto run = [&]<int kH>(std::integral_constant<int, kH>) {
    auto kernel = mhc_finish_kernel<T, kH, kManyNormVecs>;
    if constexpr (kH == kMhcStreams) {
      if (vecs == 1) kernel = mhc_finish_kernel<T, kH, 1>;
    }
    launch(stream, Start::kEarly, dim3(static_cast<unsigned>(coefficient_blocks + norm_blocks)), threads, 0, kernel, c,
           n, coefficient_blocks);
  };
  switch (b.h) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 4:
      return run(std::integral_constant<int, 4>());
    case 8:
      return run(std::integral_constant<int, 8>());
    default:
      DI_CHECK(false, "{} streams: 1, 2, 4 or 8", b.h);
  }
}

void run(Stream& stream, const Boundary& whole) {
  for (int64_t begin = 0; begin < whole.streams.rows; begin += kRowsAtOnce) {
    const Boundary b = whole.of_rows(begin, std::min(begin + kRowsAtOnce, whole.streams.rows));
    float* sums = nullptr;
    if (b.weights) {
      sums = static_cast<float*>(cuda_stream(stream).scratch(slices_of(b) * b.streams.rows * (b.h * (b.h + 2) + 1) *
                                                             static_cast<int64_t>(sizeof(float))));
    }
    with_element(b.streams.type, [&]<typename T>(T) {
      if (is_fast(b)) {
        pass_streams(stream, b, sums);
      } else {
        pass_streams_generic<T>(stream, b, sums);
      }
      if (b.weights || b.out) finish<T>(stream, b, sums);
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
