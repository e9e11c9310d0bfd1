// Bpe: byte-pair encoding of one piece of text, by merge ranks.
//
// In a piece, as long as any two neighbours are a known pair, the pair of lowest rank is merged, the leftmost on ties.
// Pieces that are themselves a token which these merges produce (most pieces of ordinary text) are found by one
// look-up; other short pieces are merged in place, long ones with a heap in O(n log n). Immutable, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/vocabulary.h"

namespace deepinfer {

struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Ids and candidate merges of the piece in work; a caller keeps one so that encoding does not allocate.
struct BpeScratch {
  std::vector<int32_t> ids;
  std::vector<uint64_t> merges;
  std::vector<int32_t> next;
  std::vector<int32_t> previous;
  std::vector<uint64_t> heap;
};

class Bpe {
 public:
  // `merges` in order of rank. Refused if one of the 256 bytes has no token or a pair occurs twice.
  static Result<Bpe> create(const Vocabulary& vocabulary, const std::vector<Merge>& merges);

  // Appends the ids of `piece`, which may be any bytes. `readable_end` is the end of memory that may be read, at or
  // after the end of the piece: the whole text's end.
  void encode(std::string_view piece, const char* readable_end, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  // Tokens of up to 11 bytes that encode to themselves, in a hash table whose entries hold all that is compared.
  struct WholePiece {
    uint64_t first_bytes;     // the first eight, zero padded
    uint32_t size_and_bytes;  // size << 24 | the last three; 0 marks a free entry
    int32_t id;
  };
  // Pairs in a hash table: the rank and the resulting id are one number, so that the smallest is the one to merge.
  struct Pair {
    uint64_t ids;  // left << 32 | right; kFree marks a free entry
    uint64_t merge;
  };

  Bpe() = default;
  void add_whole_pieces(const Vocabulary& vocabulary);
  void insert_whole_piece(std::string_view bytes, int32_t id);
  const WholePiece* find_whole_piece(std::string_view piece, const char* readable_end) const;
  uint64_t find_merge(int32_t left, int32_t right) const;
  void merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> id_of_byte_{};
  std::vector<WholePiece> whole_pieces_;
  std::vector<Pair> pairs_;
};

}  // namespace deepinfer
