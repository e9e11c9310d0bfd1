// Kernel of ops/latents.h: a block has one row of one task, a thread eight of its channels. Bits are those of
// rms_norm (row_norm.cuh) and write_rows (rows.cu). Floor: every row read and written once; at few rows one kernel's
// latency, which is why all that the row needs is asked for before the norm's sum.
#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/row_norm.cuh"
#include "backends/cuda/row_write.cuh"

namespace deepinfer::cuda {
namespace {

struct Task {
  const std::byte* in;
  std::byte *out, *quantised;
  int64_t in_stride, out_stride, quantised_stride;  // in elements
  const float* norm_weight;
  float eps;
  int width;
  bool is_bf16, round;
  RowPlaces places;  // blocks null: not stored
  ops::RowType type;
  const int64_t* positions;
  int64_t ratio;
  Before before;
  Angles angles;
};
struct Params {
  Task tasks[ops::kMaxLatentTasks];
};

__device__ inline void load_row8(const Task& a, int64_t t, int c, float (&v)[8]) {
  const int64_t at = t * a.in_stride + c;
  if (a.is_bf16) return load8(reinterpret_cast<const Bf16*>(a.in) + at, v);
  load8(reinterpret_cast<const float*>(a.in) + at, v);
}
__device__ inline void store_row8(const Task& a, std::byte* to, int64_t at, const float (&v)[8]) {
  if (a.is_bf16) return store8(reinterpret_cast<Bf16*>(to) + at, v);
  store8(reinterpret_cast<float*>(to) + at, v);
}

// Null: the token's row is not stored.
__device__ inline uint8_t* place_of(const Task& a, int64_t t) {
  if (a.places.blocks == nullptr) return nullptr;
  const int64_t position = a.positions[t];
  if (position < 0) return nullptr;
  if (a.ratio == 1) return a.places.row(t, position);
  return (position + 1) % a.ratio == 0 ? a.places.row(t, position / a.ratio) : nullptr;
}

__device__ inline void write_row8(const Task& a, uint8_t* row, int c, const float (&v)[8]) {
  using enum ops::RowType;
  switch (a.type) {
    case kF32:
      return RowCodec<kF32>::write8(row, a.width, c, v);
    case kBf16:
      return RowCodec<kBf16>::write8(row, a.width, c, v);
    case kE4m3Group32:
      return RowCodec<kE4m3Group32>::write8(row, a.width, c, v);
    case kE2m1Group16:
      return RowCodec<kE2m1Group16>::write8(row, a.width, c, v);
    case kE2m1Group32:
      return RowCodec<kE2m1Group32>::write8(row, a.width, c, v);
  }
}

// Whole warps stay together: the quantisers' groups exchange their maxima.
__global__ void latents_kernel(const __grid_constant__ Params params) {
  __shared__ float squares[32];
  const Task& a = params.tasks[blockIdx.y];
  const int64_t t = blockIdx.x;
  const int c = row_channel(0), rotated = a.width - a.angles.channels;
  const bool has = c < a.width;
  float weight[8];
  if (a.norm_weight != nullptr && has) load8(a.norm_weight + c, weight);
  let_next_kernel_start();
  wait_for_kernel_before();
  float v[8] = {};
  if (has) load_row8(a, t, c, v);
  Angles8 angles;
  if (has && c >= rotated) angles = load_angles8(a.angles, t, c - rotated);
  uint8_t* const row = place_of(a, t);
  if (a.norm_weight != nullptr) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    sum = warp_sum(lane < blockDim.x / 32 ? squares[lane] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(a.width) + a.eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = has ? round_bf16_if(weight[i] * (v[i] * scale), a.round) : 0.0f;
  }
  if (a.out != nullptr && has) store_row8(a, a.out, t * a.out_stride + c, v);
  if (a.quantised != nullptr) {
    float q[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = v[i];
    fake_quantise8<E4m3Group32>(q);
    if (has) store_row8(a, a.quantised, t * a.quantised_stride + c, q);
  }
  if (row == nullptr) return;
  if (has && c >= rotated) rotate8(v, angles, 1.0f, a.round);
  quantise_before(a.before, v);
  write_row8(a, row, c, v);
}

template <typename T>
void set_rows(Task& task, const ops::LatentTask& a) {
  const Rows<const T> in = rows_of<const T>(a.in);
  const Rows<T> out = rows_of<T>(a.out), quantised = rows_of<T>(a.quantised);
  task.in = reinterpret_cast<const std::byte*>(in.data), task.in_stride = in.stride;
  task.out = reinterpret_cast<std::byte*>(out.data), task.out_stride = out.stride;
  task.quantised = reinterpret_cast<std::byte*>(quantised.data), task.quantised_stride = quantised.stride;
}

Task task_of(const ops::LatentTask& a) {
  Task task = {};
  with_element(a.in.type, [&]<typename T>(T) { set_rows<T>(task, a); });
  task.norm_weight = a.norm_weight;
  task.eps = a.norm_eps;
  task.width = static_cast<int>(a.in.cols);
  task.is_bf16 = a.in.type == ElementType::kBf16;
  task.round = a.round_to_bf16;
  if (a.tables.blocks == nullptr) return task;
  task.places = places_to_write(a.tables);
  task.type = a.tables.type;
  task.positions = a.positions;
  task.ratio = a.ratio;
  task.before = before_row_type(a.tables.type, a.quantise);
  task.angles = angles_of(a.cosine, a.sine);
  return task;
}

}  // namespace

void latents(Stream& stream, std::span<const ops::LatentTask> tasks) {
  if (tasks.empty()) return;
  Params params = {};
  int64_t widest = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    params.tasks[i] = task_of(tasks[i]);
    widest = std::max(widest, tasks[i].in.cols);
  }
  const dim3 blocks(static_cast<unsigned>(tasks[0].in.rows), static_cast<unsigned>(tasks.size()));
  launch(stream, Start::kEarly, blocks, norm_threads(widest, 1), 0, latents_kernel, params);
}

}  // namespace deepinfer::cuda
