// Counts heap allocations of the whole program, all threads. Replaces operator new: include it in one file of a
// program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace deepinfer {

inline std::atomic<int64_t> allocation_count{0};

// Set to have the program stop in the next allocation, for a look at who makes it.
inline std::atomic<bool> trap_allocations{false};

inline void* counted_allocation(std::size_t size, std::size_t alignment) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (trap_allocations.load(std::memory_order_relaxed)) std::abort();
  if (size == 0) size = 1;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(size)
                           : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace deepinfer

void* operator new(std::size_t size) { return deepinfer::counted_allocation(size, 1); }
void* operator new[](std::size_t size) { return deepinfer::counted_allocation(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return deepinfer::counted_allocation(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return deepinfer::counted_allocation(size, static_cast<std::size_t>(alignment));
}
// Those that do not throw as well, or what they give would be freed by another allocator's rules below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return deepinfer::counted_allocation(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return deepinfer::counted_allocation(size, 1);
}
// Not inlined: beside an operator new that is not, compilers take them for a mistake.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
