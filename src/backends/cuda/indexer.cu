// Index selection: scores of a slab of tokens into scratch, then the best rows and blocks of each.
#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/indexer_few.cuh"
#include "backends/cuda/indexer_many.cuh"
#include "backends/cuda/indexer_rows.cuh"
#include "backends/cuda/indexer_simt.cuh"
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/top_k.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kScratchBytes = int64_t{256} << 20;  // of scores at a time, unless one token has more
constexpr int64_t kSlabTokens = 8;                     // a slab is a multiple of it

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Maxima over runs of `size` scores, for kernels that do not leave them.
__global__ void maxima_kernel(IndexScoreParams p, int64_t size) {
  const int64_t token = p.scores.first + blockIdx.y;
  const int64_t count = p.count(token);
  const int64_t run = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (run * size >= count) return;
  const int64_t end = min(count, (run + 1) * size);
  const uint32_t* scores = p.scores.of(token);
  uint32_t best = 0;
  for (int64_t i = run * size; i < end; ++i) best = max(best, scores[i]);
  p.scores.maxima_of(token)[run] = best;
}

template <ops::RowType kType>
void launch_many(CudaStream& stream, const IndexScoreParams& p, int64_t max_count) {
  using Shape = ManyShape<kType>;
  using Shared = ManyShared<kType>;
  constexpr auto kernel = index_scores_many_kernel<kType>;
  static const bool ready = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    return true;
  }();
  static_cast<void>(ready);
  // How the tiles are shared out changes no score. A block takes 16 or more if there are enough for all
  // multiprocessors; blocks fill whole waves, up to four, which evens out contexts of different lengths.
  const int64_t groups = divide_up(p.scores.rows, Shape::kQueries);
  const int64_t tiles = divide_up(max_count, kTileKeys);
  const int64_t slots = int64_t{stream.num_sms()} * Shape::kBlocksPerSm;
  const int64_t most_waves = std::max<int64_t>(4, divide_up(groups * tiles, slots * Shape::kMaxTiles));
  const int64_t waves = std::clamp<int64_t>(groups * tiles / (slots * 16), 1, most_waves);
  const int64_t blocks = std::max<int64_t>(1, slots * waves / groups);  // of a group
  const int64_t each = std::clamp<int64_t>(divide_up(tiles, blocks), Shape::kWarpgroups, Shape::kMaxTiles);
  const dim3 grid(static_cast<unsigned>(divide_up(tiles, each)), static_cast<unsigned>(groups));
  launch(stream, Start::kEarly, grid, Shape::kThreads, sizeof(Shared), kernel, p, static_cast<int>(each));
}

// By few tokens at a time.
template <ops::RowType kType, bool kRestricted>
void launch_few(CudaStream& stream, IndexScoreParams p, int64_t max_count) {
  using Shape = FewShape<kType, kRestricted>;
  constexpr auto kernel = index_scores_few_kernel<kType, kRestricted>;
  constexpr int kBytes = FewLayout<kType, kRestricted>::kBytes;
  static const bool ready = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  static_cast<void>(ready);
  constexpr int64_t kMost = std::min(kShareTokens, Shape::kThreads);
  const IndexScores all = p.scores;
  for (int64_t first = 0; first < all.rows; first += kMost) {
    p.scores.first = all.first + first;
    p.scores.rows = std::min(kMost, all.rows - first);
    p.scores.values = all.values + first * all.stride;
    p.scores.maxima = all.maxima + first * all.maxima_stride;
    const int64_t units = p.scores.rows * divide_up(max_count, Shape::kKeys);
    const dim3 grid(static_cast<unsigned>(std::min<int64_t>(stream.num_sms(), units)));
    launch(stream, Start::kEarly, grid, Shape::kThreads, kBytes, kernel, p);
  }
}

template <ops::RowType kType>
void launch_wgmma(CudaStream& stream, const IndexScoreParams& p, int64_t max_count) {
  constexpr int64_t kManyTokens = 512;
  if (p.choice.candidates != nullptr) return launch_few<kType, true>(stream, p, max_count);
  if (p.scores.rows > kManyTokens) return launch_many<kType>(stream, p, max_count);
  launch_few<kType, false>(stream, p, max_count);
}

// Whether the tensor cores compute these scores: released shapes, BF16 queries, keys that become BF16 exactly. Blocks
// of keys and the rows of q begin at multiples of 16 bytes.
bool has_wgmma_shape(const IndexScoreParams& p) {
  using enum ops::RowType;
  const bool type = p.keys.type == kBf16 || p.keys.type == kE4m3Group32 || p.keys.type == kE2m1Group32;
  return type && p.num_heads == kIndexHeads && p.head_dim == kKeyChannels && p.q.type == ElementType::kBf16 &&
         p.q.stride % 8 == 0 && reinterpret_cast<uintptr_t>(p.q.data) % 16 == 0 && p.keys.block_shift >= 6 &&
         p.keys.offset % 16 == 0 && (p.choice.candidates == nullptr || p.choice.candidate_block == 8);
}

void launch_simt(CudaStream& stream, const IndexScoreParams& p, int64_t max_count) {
  const size_t bytes = simt_floats(p.num_heads, p.head_dim) * sizeof(float);
  if (bytes > 48 << 10) {
    DI_CUDA_CHECK(cudaFuncSetAttribute(index_scores_simt_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  }
  const dim3 grid(static_cast<unsigned>(divide_up(max_count, kSimtKeys)), static_cast<unsigned>(p.scores.rows));
  launch(stream, Start::kInOrder, grid, kSimtWarps * 32, bytes, index_scores_simt_kernel, p);
}

void launch_scores(CudaStream& stream, const IndexScoreParams& p, int64_t max_count) {
  switch (p.keys.type) {
    case ops::RowType::kBf16:
      return launch_wgmma<ops::RowType::kBf16>(stream, p, max_count);
    case ops::RowType::kE4m3Group32:
      return launch_wgmma<ops::RowType::kE4m3Group32>(stream, p, max_count);
    case ops::RowType::kE2m1Group32:
      return launch_wgmma<ops::RowType::kE2m1Group32>(stream, p, max_count);
    default:
      DI_CHECK(false, "no kernel for keys of row type {}", static_cast<int>(p.keys.type));
  }
}

}  // namespace

void index_select(Stream& base, const ops::IndexSelectArgs& a) {
  CudaStream& stream = cuda_stream(base);
  const int64_t num_tokens = a.q.rows;
  if (num_tokens == 0) return;
  const bool restricts = a.candidate_block > 0 && !a.build_candidates;
  const bool builds = a.candidate_block > 0 && a.build_candidates;

  IndexScoreParams p;
  p.choice.blocks = a.keys.blocks;
  p.choice.positions = a.positions;
  p.choice.ratio = a.ratio;
  if (restricts) {
    p.choice.candidates = a.candidates.data;
    p.choice.candidate_stride = a.candidates.stride;
    p.choice.candidate_block = static_cast<int32_t>(a.candidate_block);
    p.choice.num_candidates = a.num_candidates;
  }
  p.unscored = builds ? 0 : a.top_k;
  p.q = a.q;
  p.head_weights = a.head_weights;
  p.keys = a.keys;
  p.row_bytes = ops::row_bytes(a.keys.type, a.keys.width);
  p.num_heads = static_cast<int32_t>(a.num_heads);
  p.head_dim = static_cast<int32_t>(a.q.cols / std::max<int64_t>(1, a.num_heads));

  const int64_t max_count = restricts ? std::min(a.max_visible, a.candidates.cols * a.candidate_block) : a.max_visible;
  const bool scored = max_count > p.unscored;
  const bool fast = has_wgmma_shape(p);
  const int64_t stride = divide_up(std::max<int64_t>(1, max_count), kTileKeys) * kTileKeys;
  const int64_t run = builds ? a.candidate_block : kMaximaRows;
  const int64_t maxima_stride = divide_up(divide_up(stride, run), 4) * 4;
  const int64_t token_bytes = (stride + maxima_stride) * static_cast<int64_t>(sizeof(uint32_t));
  const int64_t slab =
      std::min(num_tokens, std::max<int64_t>(1, kScratchBytes / token_bytes / kSlabTokens) * kSlabTokens);
  if (scored) {
    p.scores.values = static_cast<uint32_t*>(stream.scratch(slab * token_bytes));
    p.scores.maxima = p.scores.values + slab * stride;
  }
  p.scores.stride = stride;
  p.scores.maxima_stride = maxima_stride;

  for (int64_t first = 0; first < num_tokens; first += slab) {
    p.scores.first = first;
    p.scores.rows = std::min(slab, num_tokens - first);
    if (scored && fast) launch_scores(stream, p, max_count);
    if (scored && !fast) launch_simt(stream, p, max_count);
    if (scored && (!fast || run != kMaximaRows)) {
      const dim3 grid(static_cast<unsigned>(divide_up(divide_up(max_count, run), 256)),
                      static_cast<unsigned>(p.scores.rows));
      launch(stream, Start::kInOrder, grid, 256, 0, maxima_kernel, p, run);
    }
    TopKJobs jobs;
    TopKParams& rows = jobs.job[0];
    rows.choice = p.choice;
    rows.scores = p.scores;
    rows.has_maxima = scored && run == kMaximaRows;
    rows.k = a.top_k;
    rows.selected = a.selected.data;
    rows.selected_stride = a.selected.stride;
    rows.num_selected = a.num_selected;
    if (builds) {
      jobs.num = 2;
      TopKParams& blocks = jobs.job[1];
      blocks = rows;
      blocks.of_blocks = true;
      blocks.block_size = static_cast<int32_t>(a.candidate_block);
      blocks.k = a.candidates.cols;
      blocks.selected = a.candidates.data;
      blocks.selected_stride = a.candidates.stride;
      blocks.num_selected = a.num_candidates;
    }
    launch_top_k(stream, jobs, max_count);
  }
}

}  // namespace deepinfer::cuda
