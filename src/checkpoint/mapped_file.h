// MappedFile: a whole regular file mapped read-only; owns the mapping. Opening touches the first few bytes only,
// whatever the size. Refuses, by name and with a remedy: missing files, folders, empty files, Git LFS pointers.
//
// A file that another program shortens while it is mapped ends the process (SIGBUS), as with every mapping.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Valid, at the same address, as long as this object or the one it was moved to lives.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

// How a part of a mapping is going to be read.
enum class AccessAdvice {
  kRandom,    // rows here and there: no read-ahead
  kWillNeed,  // start reading it into memory now, without waiting
  kDontNeed,  // may leave memory; a later access reads it again
};

// Passes the advice for the pages that hold `range` (part of a MappedFile). Advice changes speed, never contents, so a
// refusal is ignored.
void advise(std::span<const std::byte> range, AccessAdvice advice);

}  // namespace deepinfer
