// MemoryPool: a card's memory within a budget. Requests are cut from slabs, since the runtime's own allocations take
// two megabytes at least and a model has a hundred thousand tensors. A slab goes back to the card with its last piece.
//
// Any thread may allocate and free. Pieces may outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace deepinfer::cuda {

class MemoryPool {
 public:
  // Takes `budget` bytes of the current card at most, none of them yet.
  explicit MemoryPool(int64_t budget);

  // Memory at a multiple of 256 bytes. Zero bytes give a valid piece of no use.
  Result<std::shared_ptr<std::byte>> allocate(int64_t bytes);
  // What a request may be that surely fits the budget; the card may have less if others use it.
  int64_t free_bytes() const;
  int64_t budget() const { return budget_; }

 private:
  struct Account;
  struct Slab;
  int64_t budget_;
  std::shared_ptr<Account> account_;
};

}  // namespace deepinfer::cuda
