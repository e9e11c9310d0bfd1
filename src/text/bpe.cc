#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "text/byte_alphabet.h"

namespace deepinfer {
namespace {

constexpr uint64_t kNoMerge = UINT64_MAX;
constexpr uint64_t kFree = UINT64_MAX;
constexpr size_t kMaxWholePieceBytes = 11;
// Up to here moving the arrays is cheaper than keeping a heap.
constexpr size_t kMaxShortPieceBytes = 64;

uint32_t rank_of(uint64_t merge) { return static_cast<uint32_t>(merge >> 32); }
int32_t result_of(uint64_t merge) { return static_cast<int32_t>(merge & UINT32_MAX); }

uint64_t pack(uint32_t high, uint32_t low) { return static_cast<uint64_t>(high) << 32 | low; }

// Never full, and at least two, as slot_of needs.
size_t table_size_for(size_t num_entries) { return std::bit_ceil(2 * num_entries + 2); }

// The upper bits of a product depend on all bits of the key.
size_t slot_of(uint64_t key, size_t table_size) {
  return (key * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(table_size));
}

struct PieceKey {
  uint64_t first_bytes;
  uint32_t size_and_bytes;

  size_t slot(size_t table_size) const {
    return slot_of(first_bytes ^ size_and_bytes * 0xD6E8FEB86659FD93u, table_size);
  }
};

// Requires: 1 <= piece.size() <= kMaxWholePieceBytes.
PieceKey key_of(std::string_view piece, const char* readable_end) {
  char padded[16] = {};
  const char* bytes = piece.data();
  if (readable_end - bytes < 16) {
    std::memcpy(padded, bytes, piece.size());
    bytes = padded;
  }
  uint64_t low;
  uint32_t high;
  std::memcpy(&low, bytes, 8);
  std::memcpy(&high, bytes + 8, 4);
  const auto size = static_cast<uint32_t>(piece.size());
  if (size < 8) low &= (uint64_t{1} << 8 * size) - 1;
  high = size > 8 ? high & ((1u << 8 * (size - 8)) - 1) : 0;
  return {low, size << 24 | high};
}

}  // namespace

Result<Bpe> Bpe::create(const Vocabulary& vocabulary, const std::vector<Merge>& merges) {
  Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) {
    const char bytes[1] = {static_cast<char>(byte)};
    const std::optional<int32_t> id = vocabulary.find_regular({bytes, 1});
    if (!id) {
      return invalid_input("the vocabulary has no token for byte {} ({}); train with the whole byte alphabet", byte,
                           spell_bytes({bytes, 1}));
    }
    bpe.id_of_byte_[byte] = *id;
  }
  bpe.pairs_.assign(table_size_for(merges.size()), {kFree, kNoMerge});
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t ids = pack(merges[rank].left, merges[rank].right);
    size_t slot = slot_of(ids, bpe.pairs_.size());
    for (; bpe.pairs_[slot].ids != kFree; slot = (slot + 1) & (bpe.pairs_.size() - 1)) {
      if (bpe.pairs_[slot].ids == ids) {
        return invalid_input("merges {} and {} join the same pair; keep one of them", rank_of(bpe.pairs_[slot].merge),
                             rank);
      }
    }
    bpe.pairs_[slot] = {ids, pack(rank, merges[rank].result)};
  }
  bpe.add_whole_pieces(vocabulary);
  return bpe;
}

// A vocabulary entry need not be what its own bytes merge to, so each is tried.
void Bpe::add_whole_pieces(const Vocabulary& vocabulary) {
  whole_pieces_.assign(table_size_for(vocabulary.size()), {0, 0, 0});
  BpeScratch scratch;
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    if (vocabulary.kind(id) != TokenKind::kBytes || bytes.empty() || bytes.size() > kMaxWholePieceBytes) continue;
    ids.clear();
    merge(bytes, scratch, ids);
    if (ids.size() == 1 && ids[0] == id) insert_whole_piece(bytes, id);
  }
}

void Bpe::insert_whole_piece(std::string_view bytes, int32_t id) {
  const PieceKey key = key_of(bytes, bytes.data() + bytes.size());
  size_t slot = key.slot(whole_pieces_.size());
  while (whole_pieces_[slot].size_and_bytes != 0) slot = (slot + 1) & (whole_pieces_.size() - 1);
  whole_pieces_[slot] = {key.first_bytes, key.size_and_bytes, id};
}

inline const Bpe::WholePiece* Bpe::find_whole_piece(std::string_view piece, const char* readable_end) const {
  const PieceKey key = key_of(piece, readable_end);
  for (size_t slot = key.slot(whole_pieces_.size());; slot = (slot + 1) & (whole_pieces_.size() - 1)) {
    const WholePiece& entry = whole_pieces_[slot];
    if (entry.first_bytes == key.first_bytes && entry.size_and_bytes == key.size_and_bytes) return &entry;
    if (entry.size_and_bytes == 0) return nullptr;
  }
}

inline uint64_t Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t ids = pack(left, right);
  size_t slot = slot_of(ids, pairs_.size());
  while (pairs_[slot].ids != ids && pairs_[slot].ids != kFree) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot].merge;
}

void Bpe::encode(std::string_view piece, const char* readable_end, BpeScratch& scratch,
                 std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() <= kMaxWholePieceBytes) {
    if (const WholePiece* found = find_whole_piece(piece, readable_end)) {
      out.push_back(found->id);
      return;
    }
  }
  merge(piece, scratch, out);
}

void Bpe::merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() <= kMaxShortPieceBytes) {
    merge_short(piece, scratch, out);
  } else {
    merge_long(piece, scratch, out);
  }
}

// merges[i] belongs to ids[i] and ids[i + 1]. Both arrays close up after every merge.
void Bpe::merge_short(std::string_view piece, BpeScratch&, std::vector<int32_t>& out) const {
  int32_t ids[kMaxShortPieceBytes];
  uint64_t merges[kMaxShortPieceBytes];
  size_t size = piece.size();
  for (size_t i = 0; i < size; ++i) ids[i] = id_of_byte_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = find_merge(ids[i], ids[i + 1]);
  while (size > 1) {
    const size_t i = std::min_element(merges, merges + size - 1) - merges;
    if (merges[i] == kNoMerge) break;
    ids[i] = result_of(merges[i]);
    std::copy(ids + i + 2, ids + size, ids + i + 1);
    if (i + 2 < size) std::copy(merges + i + 1, merges + size - 1, merges + i);
    --size;
    if (i + 1 < size) merges[i] = find_merge(ids[i], ids[i + 1]);
    if (i > 0) merges[i - 1] = find_merge(ids[i - 1], ids[i]);
  }
  out.insert(out.end(), ids, ids + size);
}

// A linked list over the piece's bytes: a merge keeps the left element and unlinks the right one. The heap holds
// (rank, position) pairs, smallest first; an entry is stale when merges[position] has another rank by now.
void Bpe::merge_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  const auto size = static_cast<int32_t>(piece.size());
  auto& [ids, merges, next, previous, heap] = scratch;
  ids.resize(size);
  merges.resize(size);
  next.resize(size);
  previous.resize(size);
  heap.clear();
  for (int32_t i = 0; i < size; ++i) {
    ids[i] = id_of_byte_[static_cast<unsigned char>(piece[i])];
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  const auto refresh = [&](int32_t i) {
    merges[i] = next[i] < size ? find_merge(ids[i], ids[next[i]]) : kNoMerge;
    return merges[i] != kNoMerge;
  };
  const auto push = [&](int32_t i) {
    heap.push_back(pack(rank_of(merges[i]), i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < size; ++i) {
    if (refresh(i)) heap.push_back(pack(rank_of(merges[i]), i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & UINT32_MAX);
    if (rank_of(merges[i]) != rank_of(top)) continue;
    const int32_t right = next[i];
    ids[i] = result_of(merges[i]);
    merges[right] = kNoMerge;
    next[i] = next[right];
    if (next[i] < size) previous[next[i]] = i;
    if (refresh(i)) push(i);
    if (previous[i] >= 0 && refresh(previous[i])) push(previous[i]);
  }
  for (int32_t i = 0; i < size; i = next[i]) out.push_back(ids[i]);
}

}  // namespace deepinfer
