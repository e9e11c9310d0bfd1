#include "checkpoint/engram_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <system_error>

#include "base/number_formats.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/shown.h"

namespace deepinfer {
namespace {

constexpr int64_t kBlock = 32;  // values that share a scale
constexpr int64_t kMaxDim = 4096;
constexpr int64_t kMaxRowBytes = kMaxDim + kMaxDim / kBlock;
constexpr int64_t kMaxCacheRows = int64_t{1} << 30;
constexpr size_t kMaxWaitingRows = size_t{1} << 20;  // bounds the queue if the disk cannot keep up
constexpr size_t kAdviceRows = 512;                  // rows whose pages are asked for before the first is waited for

// False if some code is not a number or some scale so large that a product might be infinite.
bool surely_finite(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  constexpr uint8_t kLargestSafeScale = 127 + 119;  // the largest code is 448 < 2^9
  uint32_t bad = 0;
  for (const uint8_t code : codes) bad |= (code & 0x7F) == 0x7F ? 1u : 0u;
  for (const uint8_t scale : scales) bad |= scale > kLargestSafeScale ? 1u : 0u;
  return bad == 0;
}

// Asks for the pages of sorted rows, one request a run of rows that lie within two pages of each other.
void ask_for_pages(const std::byte* base, int64_t row_bytes, std::span<const int64_t> rows) {
  constexpr int64_t kMergeBytes = 8192;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && (rows[end] - rows[end - 1]) * row_bytes <= kMergeBytes) ++end;
    const int64_t first = rows[begin] * row_bytes;
    advise({base + first, static_cast<size_t>((rows[end - 1] + 1) * row_bytes - first)}, AccessAdvice::kWillNeed);
    begin = end;
  }
}

Status check(const StoredTensor& weight, const StoredTensor& scale, int64_t cache_rows) {
  if (weight.dtype != DType::kF8E4m3 || weight.shape.size() != 2 || weight.shape[1] < kBlock ||
      weight.shape[1] % kBlock != 0 || weight.shape[1] > kMaxDim)
    return unsupported("Engram table {}: {} {}, expected F8_E4M3 [rows, a multiple of {} up to {}]", shown(weight.name),
                       name_of(weight.dtype), shown(weight.shape), kBlock, kMaxDim);
  const int64_t expected[] = {weight.shape[0], weight.shape[1] / kBlock};
  if (scale.dtype != DType::kF8E8m0 || !std::equal(scale.shape.begin(), scale.shape.end(), expected, expected + 2))
    return invalid_input("Engram scales {}: {} {}, expected F8_E8M0 {} to go with {}", shown(scale.name),
                         name_of(scale.dtype), shown(scale.shape), shown(expected), shown(weight.name));
  if (cache_rows < 0 || cache_rows > kMaxCacheRows)
    return invalid_input("the Engram row cache has {} rows, expected 0 to {}", cache_rows, kMaxCacheRows);
  return {};
}

}  // namespace

Result<std::unique_ptr<EngramTable>> EngramTable::create(const StoredTensor& weight, const StoredTensor& scale,
                                                         int64_t cache_rows) {
  DI_RETURN_IF_ERROR(check(weight, scale, cache_rows));
  advise(weight.contents(), AccessAdvice::kRandom);
  advise(scale.contents(), AccessAdvice::kRandom);
  try {
    // More slots than rows would never fill.
    std::unique_ptr<EngramTable> table(new EngramTable(weight, scale, std::min(cache_rows, weight.shape[0])));
    if (table->cache_.capacity_rows() > 0) table->thread_ = std::thread([raw = table.get()] { raw->run_prefetch(); });
    return table;
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("no memory for an Engram cache of {} rows of {} bytes; make it smaller", cache_rows,
                              weight.shape[1] + weight.shape[1] / kBlock));
  } catch (const std::system_error& error) {
    return io_error("cannot start the Engram prefetch thread: {}; raise the limit of threads (ulimit -u)",
                    error.what());
  }
}

EngramTable::EngramTable(const StoredTensor& weight, const StoredTensor& scale, int64_t cache_rows)
    : name_(weight.name),
      num_rows_(weight.shape[0]),
      dim_(weight.shape[1]),
      scales_per_row_(weight.shape[1] / kBlock),
      codes_(weight.data),
      scales_(scale.data),
      cache_(cache_rows, dim_ + scales_per_row_) {}

EngramTable::~EngramTable() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    stop_now_.store(true, std::memory_order_relaxed);
  }
  work_arrived_.notify_all();
  thread_.join();
}

void EngramTable::prefetch(std::span<const int64_t> rows) {
  if (!thread_.joinable() || rows.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    const size_t taken = std::min(rows.size(), kMaxWaitingRows - waiting_.size());
    waiting_.insert(waiting_.end(), rows.begin(), rows.begin() + static_cast<ptrdiff_t>(taken));
    dropped_.fetch_add(static_cast<int64_t>(rows.size() - taken), std::memory_order_relaxed);
  }
  work_arrived_.notify_one();
}

void EngramTable::run_prefetch() {
  std::vector<int64_t> batch;
  std::array<std::byte, kMaxRowBytes> scratch;
  std::unique_lock lock(mutex_);
  while (true) {
    work_arrived_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) return;
    batch.clear();
    batch.swap(waiting_);
    is_fetching_ = true;
    lock.unlock();

    std::sort(batch.begin(), batch.end());
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
    std::erase_if(batch, [this](int64_t row) { return row < 0 || row >= num_rows_ || cache_.contains(row); });
    fetch(batch, scratch.data());

    lock.lock();
    is_fetching_ = false;
    work_done_.notify_all();
  }
}

// Requires: rows sorted, in range. Stops early when the table is being destroyed.
void EngramTable::fetch(std::span<const int64_t> rows, std::byte* scratch) {
  for (size_t begin = 0; begin < rows.size(); begin += kAdviceRows) {
    const auto part = rows.subspan(begin, std::min(kAdviceRows, rows.size() - begin));
    ask_for_pages(codes_, dim_, part);
    ask_for_pages(scales_, scales_per_row_, part);
    for (const int64_t row : part) {
      if (stop_now_.load(std::memory_order_relaxed)) return;
      copy_row(row, scratch);
      cache_.insert(row, scratch);
      prefetched_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void EngramTable::wait_for_prefetch() {
  std::unique_lock lock(mutex_);
  work_done_.wait(lock, [this] { return !is_fetching_ && waiting_.empty(); });
}

EngramTable::Counters EngramTable::counters() const {
  return {hits_.load(std::memory_order_relaxed), misses_.load(std::memory_order_relaxed),
          prefetched_.load(std::memory_order_relaxed), dropped_.load(std::memory_order_relaxed)};
}

void EngramTable::copy_row(int64_t row, std::byte* out) const {
  std::memcpy(out, codes_ + row * dim_, static_cast<size_t>(dim_));
  std::memcpy(out + dim_, scales_ + row * scales_per_row_, static_cast<size_t>(scales_per_row_));
}

Status EngramTable::gather(std::span<const int64_t> rows, uint8_t* codes, uint8_t* scales) {
  std::array<std::byte, kMaxRowBytes> raw;
  int64_t hits = 0;
  for (const int64_t row : rows) {
    if (row < 0 || row >= num_rows_)
      return invalid_input(
          "Engram table {}: row {} asked for, but it has {} rows; token map and config do not belong "
          "together",
          shown(name_), row, num_rows_);
    if (cache_.read(row, raw.data())) {
      ++hits;
    } else {
      copy_row(row, raw.data());
      cache_.insert(row, raw.data());
    }
    std::memcpy(codes, raw.data(), static_cast<size_t>(dim_));
    std::memcpy(scales, raw.data() + dim_, static_cast<size_t>(scales_per_row_));
    if (!surely_finite({codes, static_cast<size_t>(dim_)}, {scales, static_cast<size_t>(scales_per_row_)}))
      DI_RETURN_IF_ERROR(check_finite(row, codes, scales));
    codes += dim_;
    scales += scales_per_row_;
  }
  hits_.fetch_add(hits, std::memory_order_relaxed);
  misses_.fetch_add(static_cast<int64_t>(rows.size()) - hits, std::memory_order_relaxed);
  return {};
}

Status EngramTable::check_finite(int64_t row, const uint8_t* codes, const uint8_t* scales) const {
  for (int64_t column = 0; column < dim_; ++column) {
    const uint8_t scale = scales[column / kBlock];
    if (std::isfinite(e4m3_to_float(codes[column]) * e8m0_to_float(scale))) continue;
    return invalid_input(
        "Engram table {}: row {} column {} is not a finite number (code 0x{:02x}, scale {}); the file is "
        "damaged, download it again",
        shown(name_), row, column, codes[column], scale);
  }
  return {};
}

}  // namespace deepinfer
