// The Engram token map: tokenizer ids to compressed ids, under which spellings of one word share memory rows.
//
// "the", " the" and "The" get one compressed id; ids are given out in order of first appearance. The map is a pure
// function of the tokenizer and the Unicode tables of ICU; it is built at each start (tens of milliseconds) and its
// digest for the released tokenizer is checked in the tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EngramTokenMap {
  std::vector<uint32_t> compressed_ids;  // [vocab_size]
  uint32_t num_compressed_ids = 0;
};

Result<EngramTokenMap> build_engram_token_map(const Tokenizer& tokenizer);

// The form under which texts count as equal: NFKC, then NFD without marks, each code point in lower case on its own,
// runs of space, tab, CR and LF as one space, no white space at the ends; a text of nothing else but spaces is " ".
// Requires: well-formed UTF-8.
Result<std::string> normalize_for_engram(std::string_view text);

}  // namespace deepinfer
