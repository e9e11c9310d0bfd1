// CpuStream: runs ops at once on the calling thread and a pool, and keeps the scratch memory that ops reuse.
//
// Scratch grows to the largest request and stays, so a steady step allocates nothing. One thread at a time may use a
// stream; inside an op, per-thread scratch is indexed by the pool's thread number.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "device/stream.h"

namespace deepinfer::cpu {

// A 64-byte aligned buffer that only grows.
class Scratch {
 public:
  template <typename T>
  T* get(int64_t count) {
    reserve(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  void reserve(int64_t bytes) {
    if (bytes <= bytes_) return;
    data_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    bytes_ = bytes;
  }
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

class CpuStream final : public Stream {
 public:
  CpuStream(const ops::OpTable* table, ThreadPool* pool)
      : Stream(table), pool_(pool), thread_scratch_(pool->num_threads()) {}

  ThreadPool& pool() { return *pool_; }
  Scratch& thread_scratch(int thread) { return thread_scratch_[thread]; }
  Scratch& shared_scratch() { return shared_scratch_; }

 private:
  ThreadPool* pool_;
  std::vector<Scratch> thread_scratch_;
  Scratch shared_scratch_;
};

inline CpuStream& cpu_stream(Stream& stream) { return static_cast<CpuStream&>(stream); }

// Splits [0, count) into tasks of `grain` and calls body(begin, end, thread).
template <typename Body>
void for_ranges(Stream& stream, int64_t count, int64_t grain, Body&& body) {
  const int64_t tasks = (count + grain - 1) / grain;
  cpu_stream(stream).pool().run(tasks, [&](int64_t task, int thread) {
    const int64_t begin = task * grain;
    body(begin, begin + grain < count ? begin + grain : count, thread);
  });
}

}  // namespace deepinfer::cpu
