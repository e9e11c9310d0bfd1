// The released model's widths, and how many layers of each kind it has.
#pragma once

#include <cstdint>

namespace deepinfer::bench::shape {

inline constexpr int64_t kHidden = 5120;
inline constexpr int64_t kHeads = 64, kHeadDim = 512, kRopeDim = 64;
inline constexpr int64_t kQueryRank = 1280;
inline constexpr int64_t kGroups = 8, kGroupRank = 1024;  // of the output projection
inline constexpr int64_t kExperts = 384, kTopK = 6, kInner = 2304;
inline constexpr int64_t kStreams = 4;
inline constexpr int kSinkhornIterations = 20;
inline constexpr int64_t kWindow = 128;
inline constexpr int64_t kIndexHeads = 32, kIndexDim = 128, kIndexTopK = 512;
inline constexpr int64_t kCandidateBlocks = 2048, kCandidateBlock = 8;
inline constexpr int64_t kVocabulary = 129280;
inline constexpr int64_t kEngramColumns = 24, kEngramDim = 256, kEngramTableRows = int64_t{4} << 20;
inline constexpr float kNormEps = 1e-20f, kHcEps = 1e-6f, kSwigluLimit = 10;

// Bytes of a cached row: codes and scales.
inline constexpr int64_t kWindowRowBytes = 528, kLatentRowBytes = 288, kIndexRowBytes = 68;

// Bytes of weights that a token reads, as they lie in the checkpoint.
inline constexpr double kExpertBytes = 3.0 * kHidden * kInner * (0.5 + 1.0 / 32);
inline constexpr double kSharedExpertBytes = 3.0 * kHidden * kInner * (1 + 1.0 / 1024);
inline constexpr double kMhcBytes = 24.0 * kStreams * kHidden * 4;  // of one sublayer's mix

}  // namespace deepinfer::bench::shape
