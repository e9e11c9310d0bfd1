// How the keys of few tokens come to shared memory: what a block holds and where, and the ring between the warps that
// bring keys and the warpgroups that score them.
//
// Keys come in units of two tiles, which warpgroups take in turn; each has stages of its own. The four warps of one
// more warpgroup bring units in turn as well: each looks up where the keys of its next ones lie, all at once, and
// copies one after the other as stages become free.
#pragma once

#include "backends/cuda/indexer_products.cuh"
#include "backends/cuda/indexer_shares.cuh"

namespace deepinfer::cuda {

// kRestricted: a token has a list of candidate blocks of 8 keys, and shares keys with no other.
template <ops::RowType kType, bool kRestricted>
struct FewShape {
  using Format = KeyFormat<kType>;
  static constexpr bool kByTable = kType == ops::RowType::kE2m1Group32;  // see StoredKeys
  static constexpr int kTiles = 2;
  static constexpr int kKeys = kTiles * kTileKeys;                   // of a unit
  static constexpr int kKeysPerPlace = kRestricted ? 8 : kTileKeys;  // that are neighbours in memory
  static constexpr int kPlaces = kKeys / kKeysPerPlace;
  static constexpr int kTileBytes = kTileKeys * Format::kSharedBytes;
  static constexpr int kUnitBytes = kTiles * kTileBytes;

  static constexpr int kQueries = kRunTokens;  // held at a time
  // As many as registers and, for BF16, shared memory allow. With four, those who bring keys give some of theirs.
  static constexpr int kWarpgroups = kType == ops::RowType::kBf16 ? 2 : 4;
  static constexpr bool kGivesRegisters = kWarpgroups == 4;
  static constexpr int kScorers = kWarpgroups * 128;  // threads
  static constexpr int kBringers = 4;                 // warps
  static constexpr int kThreads = kScorers + kBringers * 32;
  static constexpr int kDepth = 2;  // stages of a warpgroup
};

template <ops::RowType kType, bool kRestricted>
struct FewShared {
  using Shape = FewShape<kType, kRestricted>;
  alignas(128) std::byte queries[Shape::kQueries * kQueryBytes];
  alignas(16) float weights[Shape::kQueries][4][8];  // half the weights of heads 8g + 2c + e, at [c][2g + e]
  uint64_t full[Shape::kDepth][Shape::kWarpgroups];
  uint64_t empty[Shape::kDepth][Shape::kWarpgroups];
  IndexShare share;
};

// Where things lie in shared memory: FewShared, the table of pairs if there is one, at an address of its own, and the
// stages. The system has the first 1 KiB.
template <ops::RowType kType, bool kRestricted>
struct FewLayout {
  using Shape = FewShape<kType, kRestricted>;
  static constexpr int kFirst = 1 << 10;
  static constexpr int kTable = 64 << 10, kTableBytes = 64 << 10;
  static constexpr int kSharedBytes = (static_cast<int>(sizeof(FewShared<kType, kRestricted>)) + 127) / 128 * 128;
  static constexpr int kStages = Shape::kByTable ? kTable + kTableBytes : kFirst + kSharedBytes;
  static constexpr int kBytes = kStages - kFirst + Shape::kDepth * Shape::kWarpgroups * Shape::kUnitBytes;
  static_assert(!Shape::kByTable || kFirst + kSharedBytes <= kTable);
  static_assert(kBytes <= 227 << 10);

  // Address of a stage.
  static __device__ __forceinline__ uint32_t stage(int depth, int group) {
    return kStages + (depth * Shape::kWarpgroups + group) * Shape::kUnitBytes;
  }
};

// Copies a unit's keys. By a warp, of which lane `first` + i has place i.
template <ops::RowType kType, bool kRestricted>
__device__ __forceinline__ void copy_unit(const std::byte* places, int first, uint32_t to, uint32_t full) {
  using Shape = FewShape<kType, kRestricted>;
  using Format = KeyFormat<kType>;
  constexpr int kPlaceBytes = Shape::kKeysPerPlace * Format::kRowBytes;
  constexpr int kPad = Format::kSharedBytes - Format::kRowBytes;  // between keys
  const int lane = threadIdx.x % 32;
  const auto place_of = [&](int i) {
    return reinterpret_cast<const std::byte*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(places), first + i));
  };
  const uint64_t policy = evict_first();
  if (lane == 0) barrier_expect(full, Shape::kKeys * Format::kRowBytes);
  __syncwarp();
  if constexpr (kPad > 0) {
    for (int key = lane; key < Shape::kKeys; key += 32) {
      const std::byte* place = place_of(key / Shape::kKeysPerPlace);
      copy_bulk(to + key * Format::kSharedBytes, place + key % Shape::kKeysPerPlace * Format::kRowBytes,
                Format::kRowBytes, full, policy);
    }
  } else if (lane / Shape::kPlaces == first / Shape::kPlaces) {
    copy_bulk(to + lane % Shape::kPlaces * kPlaceBytes, places, kPlaceBytes, full, policy);
  }
}

// Brings every kBringers-th unit of the block's, from unit `bringer` on. By a warp.
template <ops::RowType kType, bool kRestricted>
__device__ __forceinline__ void bring_keys(const IndexScoreParams& p, FewShared<kType, kRestricted>& s, int bringer,
                                           int num_steps) {
  using Shape = FewShape<kType, kRestricted>;
  constexpr int kUnits = 32 / Shape::kPlaces;   // that the warp has a lane a place for
  constexpr int kRounds = kRestricted ? 4 : 1;  // looked up at a time
  const int lane = threadIdx.x % 32;
  int run = 0;
#pragma unroll 1
  for (int begin = bringer; begin < num_steps; begin += kUnits * kRounds * Shape::kBringers) {
    const std::byte* places[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int step = begin + (r * kUnits + lane / Shape::kPlaces) * Shape::kBringers;
      if (step >= num_steps) continue;
      while (step >= s.share.first_step[run + 1]) ++run;
      const IndexRun& from = s.share.runs[run];
      const int unit = from.first_unit + step - s.share.first_step[run];
      places[r] = find_place<KeyFormat<kType>::kRowBytes, Shape::kKeysPerPlace>(
          p, p.scores.first + from.first_token, from.table, from.count, unit * Shape::kPlaces + lane % Shape::kPlaces);
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll 1
      for (int u = 0; u < kUnits; ++u) {
        const int step = begin + (r * kUnits + u) * Shape::kBringers;
        if (step >= num_steps) break;
        const int group = step % Shape::kWarpgroups, use = step / Shape::kWarpgroups, stage = use % Shape::kDepth;
        barrier_wait(shared_address(&s.empty[stage][group]), (use / Shape::kDepth & 1) ^ 1);
        copy_unit<kType, kRestricted>(places[r], u * Shape::kPlaces, FewLayout<kType, kRestricted>::stage(stage, group),
                                      shared_address(&s.full[stage][group]));
      }
    }
  }
}

// A warpgroup's place in the ring.
template <ops::RowType kType, bool kRestricted>
struct FewRing {
  FewShared<kType, kRestricted>& s;
  int group;
  RingPosition at = {};

  __device__ __forceinline__ const std::byte* keys() const {
    const uint32_t address = FewLayout<kType, kRestricted>::stage(at.stage, group);
    return reinterpret_cast<const std::byte*>(&s) + (address - shared_address(&s));
  }
  __device__ __forceinline__ void wait() const { barrier_wait(shared_address(&s.full[at.stage][group]), at.use); }
  // The warp has read the stage; goes on to the next.
  __device__ __forceinline__ void release() {
    warp_arrive(shared_address(&s.empty[at.stage][group]));
    at.advance(FewShape<kType, kRestricted>::kDepth);
  }
};

}  // namespace deepinfer::cuda
