// What a benchmark needs of the card besides ops: time between two points of a stream, the number of kernels that some
// work launches, ceilings (reads, empty kernels, a library's matrix product), and random or poisoned memory.
//
// Nothing here belongs to the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer::cuda {

// Time on the card between start() and stop().
class StopWatch {
 public:
  StopWatch();
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

  void start(Stream& stream);
  void stop(Stream& stream);
  // Waits for the end.
  double microseconds() const;

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

// Kernels that `body` launches on the stream. Records it without running it; it must have run once.
int64_t count_kernels(Stream& stream, const std::function<void()>& body);

// A kernel that does nothing.
void launch_empty(Stream& stream, int num_blocks);
// Reads memory at full width and keeps nothing of it; copies at full width. Multiples of 16.
void read_memory(Stream& stream, const std::byte* from, int64_t bytes);
void copy_memory(Stream& stream, std::byte* to, const std::byte* from, int64_t bytes);
// Of the multiprocessors while they work.
double clock_ghz(Stream& stream);
// All bits set: NaN in every format.
void poison(Stream& stream, void* to, int64_t bytes);

// Random numbers as a checkpoint would hold them; a function of (seed, place) alone. `to` at a multiple of 16.
enum class RandomKind {
  kE2m1,       // pairs of codes, uniform
  kE4m3,       // codes without NaN, uniform
  kE8m0,       // codes 118 to 121
  kBf16,       // normal, deviation 0.02
  kBf16Unit,   // normal, deviation 1
  kF32,        // normal, deviation 0.02
  kWindowRow,  // rows of 512 E4M3 codes and 16 scales about 2^-8
  kLatentRow,  // rows of 256 bytes of E2M1 pairs and 32 E4M3 scales of 0.25 to 1
  kIndexRow,   // rows of 64 bytes of E2M1 pairs and 4 scales about 2^-2
};
void fill_random(Stream& stream, void* to, int64_t bytes, RandomKind kind, uint64_t seed);

// The k largest of each row's scores, as index_select selects them once it has scores: ordered integers, and maxima
// over runs of eight of them or none. A step of selection by itself, to compare with others'.
struct SelectCall {
  const uint32_t* scores = nullptr;           // [rows, count]
  const uint32_t* maxima = nullptr;           // [rows, count / 8], or null
  const int64_t* last_row = nullptr;          // [rows]: count - 1
  std::byte* const* const* tables = nullptr;  // [rows], not null
  int64_t rows = 0, count = 0, k = 0;         // count: a multiple of 64
  int32_t* selected = nullptr;                // [rows, k], ascending
  int32_t* num_selected = nullptr;            // [rows]
};
void select_largest(Stream& stream, const SelectCall& call);

// out = a . b^T in BF16 with fp32 sums, [m, n] = [m, k] . [n, k]^T; of a batch, the next one's operands lie further by
// the step. Strides and steps in elements; a stride of 0 stands for rows without gaps.
struct GemmCall {
  void* out = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  int64_t out_stride = 0, a_stride = 0;
  int64_t out_step = 0, a_step = 0, b_step = 0;
};

// The vendor's library for it, which is loaded if it is installed.
class VendorGemm {
 public:
  // Fails with kUnsupported, naming where it was looked for.
  static Result<std::unique_ptr<VendorGemm>> load(Device& device);
  virtual ~VendorGemm() = default;
  virtual std::string name() const = 0;
  virtual void run(Stream& stream, const GemmCall& call) = 0;
};

}  // namespace deepinfer::cuda
