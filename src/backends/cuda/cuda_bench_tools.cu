#include "backends/cuda/cuda_bench_tools.h"

#include <cuda_bf16.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/top_k.cuh"

namespace deepinfer::cuda {
namespace {

cudaStream_t handle_of(Stream& stream) { return cuda_stream(stream).handle(); }

__global__ void empty_kernel() {}

// Every thread has eight loads of 16 bytes on their way. The sum is stored if it is a number that it never is, so that
// the loads stay.
__global__ void read_kernel(const uint4* from, int64_t count, uint32_t* sink) {
  constexpr int kLoads = 8;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += kLoads * step) {
    uint4 values[kLoads] = {};
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (i + k * step < count) values[k] = __ldcs(from + i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) sum |= values[k].x ^ values[k].y ^ values[k].z ^ values[k].w;
  }
  if (sum == 0x9d2c5680u && threadIdx.x == 1023) *sink = sum;
}

__global__ void copy_kernel(uint4* to, const uint4* from, int64_t count) {
  constexpr int kLoads = 8;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += kLoads * step) {
    uint4 values[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (i + k * step < count) values[k] = __ldcs(from + i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (i + k * step < count) __stcs(to + i + k * step, values[k]);
    }
  }
}

__global__ void clock_kernel(uint64_t* out) {
  const auto nanoseconds = [] {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  };
  const uint64_t begin = nanoseconds();
  const long long first = clock64();
  while (nanoseconds() - begin < 2000000) {
  }
  out[0] = static_cast<uint64_t>(clock64() - first);
  out[1] = nanoseconds() - begin;
}

__device__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

__device__ float2 normal_pair(uint64_t bits) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  const float radius = sqrtf(-2 * logf(u));
  float sine, cosine;
  sincospif(2 * v, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

__device__ uint32_t bf16_pair(uint64_t bits, float deviation) {
  const float2 n = normal_pair(bits);
  const __nv_bfloat162 pair = __floats2bfloat162_rn(n.x * deviation, n.y * deviation);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ uint8_t e4m3_code(uint32_t byte) { return (byte & 0x7f) == 0x7f ? byte & 0xf0 : byte; }

// Byte `at % row` of a row of codes, then scales.
__device__ uint8_t row_byte(RandomKind kind, int64_t at, uint8_t random) {
  if (kind == RandomKind::kWindowRow) return at % 528 < 512 ? e4m3_code(random) : 118 + random % 3;
  if (kind == RandomKind::kLatentRow) return at % 288 < 256 ? random : 0x28 + random % 16;
  return at % 68 < 64 ? random : 124 + random % 3;
}

// Four bytes.
__device__ uint32_t random_word(RandomKind kind, uint64_t seed, int64_t word) {
  const uint64_t bits = mix(seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(word) + 1);
  const auto each = [&](auto&& of) {
    uint32_t out = 0;
    for (int b = 0; b < 4; ++b) out |= static_cast<uint32_t>(of(static_cast<uint8_t>(bits >> (8 * b)), b)) << (8 * b);
    return out;
  };
  switch (kind) {
    case RandomKind::kE2m1:
      return static_cast<uint32_t>(bits);
    case RandomKind::kE4m3:
      return each([](uint8_t byte, int) { return e4m3_code(byte); });
    case RandomKind::kE8m0:
      return each([](uint8_t byte, int) { return 118 + byte % 4; });
    case RandomKind::kBf16:
      return bf16_pair(bits, 0.02f);
    case RandomKind::kBf16Unit:
      return bf16_pair(bits, 1.0f);
    case RandomKind::kF32:
      return __float_as_uint(normal_pair(bits).x * 0.02f);
    default:
      return each([&](uint8_t byte, int b) { return row_byte(kind, word * 4 + b, byte); });
  }
}

__global__ void random_kernel(uint32_t* to, int64_t words, RandomKind kind, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    to[i] = random_word(kind, seed, i);
  }
}

}  // namespace

struct StopWatch::Events {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

StopWatch::StopWatch() : events_(std::make_unique<Events>()) {
  DI_CUDA_CHECK(cudaEventCreate(&events_->begin));
  DI_CUDA_CHECK(cudaEventCreate(&events_->end));
}
StopWatch::~StopWatch() {
  (void)cudaEventDestroy(events_->begin);
  (void)cudaEventDestroy(events_->end);
}
void StopWatch::start(Stream& stream) { DI_CUDA_CHECK(cudaEventRecord(events_->begin, handle_of(stream))); }
void StopWatch::stop(Stream& stream) { DI_CUDA_CHECK(cudaEventRecord(events_->end, handle_of(stream))); }
double StopWatch::microseconds() const {
  DI_CUDA_CHECK(cudaEventSynchronize(events_->end));
  float milliseconds = 0;
  DI_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events_->begin, events_->end));
  return 1e3 * milliseconds;
}

int64_t count_kernels(Stream& stream, const std::function<void()>& body) {
  DI_CUDA_CHECK(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal));
  body();
  cudaGraph_t graph = nullptr;
  DI_CUDA_CHECK(cudaStreamEndCapture(handle_of(stream), &graph));
  size_t count = 0;
  DI_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  const auto nodes = std::make_unique<cudaGraphNode_t[]>(count);
  DI_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.get(), &count));
  int64_t kernels = 0;
  for (size_t i = 0; i < count; ++i) {
    cudaGraphNodeType type;
    DI_CUDA_CHECK(cudaGraphNodeGetType(nodes[i], &type));
    kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  DI_CUDA_CHECK(cudaGraphDestroy(graph));
  return kernels;
}

void select_largest(Stream& stream, const SelectCall& call) {
  TopKParams p;
  p.choice.blocks = call.tables;
  p.choice.positions = call.last_row;
  // They are read only.
  p.scores.values = const_cast<uint32_t*>(call.scores);
  p.scores.maxima = const_cast<uint32_t*>(call.maxima);
  p.scores.stride = call.count;
  p.scores.maxima_stride = call.count / kMaximaRows;
  p.scores.rows = call.rows;
  p.has_maxima = call.maxima != nullptr;
  p.k = call.k;
  p.selected = call.selected;
  p.selected_stride = call.k;
  p.num_selected = call.num_selected;
  launch_top_k(stream, p, call.count);
}

void launch_empty(Stream& stream, int num_blocks) {
  empty_kernel<<<num_blocks, 128, 0, handle_of(stream)>>>();
  DI_CUDA_CHECK_LAUNCH();
}

void read_memory(Stream& stream, const std::byte* from, int64_t bytes) {
  auto* sink = static_cast<uint32_t*>(cuda_stream(stream).scratch(256));
  read_kernel<<<cuda_stream(stream).num_sms() * 4, 512, 0, handle_of(stream)>>>(reinterpret_cast<const uint4*>(from),
                                                                                bytes / 16, sink);
  DI_CUDA_CHECK_LAUNCH();
}

void copy_memory(Stream& stream, std::byte* to, const std::byte* from, int64_t bytes) {
  copy_kernel<<<cuda_stream(stream).num_sms() * 4, 512, 0, handle_of(stream)>>>(
      reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), bytes / 16);
  DI_CUDA_CHECK_LAUNCH();
}

double clock_ghz(Stream& stream) {
  auto* out = static_cast<uint64_t*>(cuda_stream(stream).scratch(256));
  clock_kernel<<<1, 1, 0, handle_of(stream)>>>(out);
  DI_CUDA_CHECK_LAUNCH();
  uint64_t result[2] = {};
  stream.copy(result, out, sizeof result);
  DI_CHECK(stream.synchronize().ok(), "the clock's kernel failed");
  return static_cast<double>(result[0]) / static_cast<double>(result[1]);
}

void poison(Stream& stream, void* to, int64_t bytes) {
  DI_CUDA_CHECK(cudaMemsetAsync(to, 0xff, bytes, handle_of(stream)));
}

void fill_random(Stream& stream, void* to, int64_t bytes, RandomKind kind, uint64_t seed) {
  random_kernel<<<cuda_stream(stream).num_sms() * 8, 256, 0, handle_of(stream)>>>(static_cast<uint32_t*>(to), bytes / 4,
                                                                                  kind, seed);
  DI_CUDA_CHECK_LAUNCH();
}

}  // namespace deepinfer::cuda
