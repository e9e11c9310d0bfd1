// TokenizerFile: what a tokenizer.json says, read and checked, before anything is built from it.
//
// Byte-level BPE files only: pre-tokenisation by "Split" stages (isolated) and "ByteLevel", merges as "a b" or
// ["a","b"], no normalisation. Whatever else a file asks for is refused by name, since ignoring it would change tokens
// silently.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/vocabulary.h"

namespace deepinfer {

struct TokenizerFile {
  Vocabulary vocabulary;
  std::vector<Merge> merges;
  std::vector<SplitPattern> split_stages;
  // Searched one after the other, as the Python package does: those marked "normalized" only in what the others left.
  std::vector<AddedToken> added_tokens;
  std::vector<AddedToken> normalized_added_tokens;
};

Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

}  // namespace deepinfer
