// StepGraphs: steps of a few fixed shapes, recorded once and launched again (Stream::begin_recording).
//
// A step is padded to a bucket of rows, and what its ops are told about lengths to a bucket of lengths. A shape that
// comes for the first time runs as it is, so that whatever grows with it has grown; the second time it is recorded.
// When memory that the work names has moved (another generation), everything is recorded anew.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

// The smallest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, .. that is at least `rows`.
inline int64_t row_bucket(int64_t rows) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t between = power / 4 * 3;
  return power > 16 && rows <= between ? between : power;
}

// A power of two, at least 1024.
inline int64_t length_bucket(int64_t length) {
  return length <= 1024 ? 1024 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length)));
}

class StepGraphs {
 public:
  struct Shape {
    int64_t rows = 0;
    int64_t max_length = 0;
    int part = 0;  // of a step that is launched in pieces
    bool operator==(const Shape&) const = default;
  };

  // Does what `body` does, which calls the same ops with the same arguments whenever shape and generation are the same.
  // Requires: the stream can record.
  Status run(Stream& stream, Shape shape, int64_t generation, const std::function<Status()>& body);

 private:
  struct Entry {
    Shape shape;
    std::unique_ptr<Graph> graph;  // null: it came once
  };
  std::vector<Entry> entries_;
  int64_t generation_ = 0;
};

}  // namespace deepinfer
