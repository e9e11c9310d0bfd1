// CpuStream: runs ops at once on the calling thread and a pool, and keeps the scratch memory that ops reuse.
//
// Scratch grows to the largest request and stays, so a steady step allocates nothing. One thread at a time may use a
// stream; inside an op, per-thread scratch is indexed by the pool's thread number.
#pragma once

#include <cstring>
#include <vector>

#include "backends/cpu/experts.h"
#include "backends/cpu/scratch.h"
#include "base/thread_pool.h"
#include "device/stream.h"

namespace deepinfer::cpu {

class CpuStream final : public Stream {
 public:
  CpuStream(const ops::OpTable* table, ThreadPool* pool)
      : Stream(table), pool_(pool), thread_scratch_(pool->num_threads()) {}

  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  Status synchronize() override { return Status(); }  // every op has run when its call returns

  ThreadPool& pool() { return *pool_; }
  Scratch& thread_scratch(int thread) { return thread_scratch_[thread]; }
  // Of one op at a time; ops that call others say which of them use it.
  Scratch& shared_scratch() { return shared_scratch_; }
  ExpertsWorkspace& experts_workspace() { return experts_workspace_; }

 private:
  ThreadPool* pool_;
  std::vector<Scratch> thread_scratch_;
  Scratch shared_scratch_;
  ExpertsWorkspace experts_workspace_;
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
