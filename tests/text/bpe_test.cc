#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "text/random_text.h"

namespace deepinfer {
namespace {

// 256 bytes and merges that make every concatenation they name a token of its own.
struct SmallModel {
  Vocabulary vocabulary;
  std::vector<Merge> merges;
};

SmallModel make_model(const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<TokenEntry> entries;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& bytes) {
    const auto id = static_cast<int32_t>(entries.size());
    if (ids.emplace(bytes, id).second) entries.push_back({id, TokenKind::kBytes, bytes});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const auto& [left, right] : merges) add(left + right);
  SmallModel model{Vocabulary::create(entries).value(), {}};
  for (const auto& [left, right] : merges) model.merges.push_back({ids.at(left), ids.at(right), ids.at(left + right)});
  return model;
}

// The definition, word for word.
std::vector<int32_t> merge_by_definition(const SmallModel& model, const std::string& piece) {
  std::vector<int32_t> ids;
  for (const char byte : piece) ids.push_back(*model.vocabulary.find_regular({&byte, 1}));
  for (;;) {
    size_t best_rank = model.merges.size(), best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (model.merges[rank].left != ids[i] || model.merges[rank].right != ids[i + 1]) continue;
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == model.merges.size()) return ids;
    ids[best] = model.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece, const char* readable_end) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(piece, readable_end, scratch, ids);
  return ids;
}

TEST(Bpe, RandomModelsMergeAsTheDefinitionSays) {
  RandomText random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> known = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    while (merges.size() < 25) {
      const std::pair<std::string, std::string> merge(known[random.below(known.size())],
                                                      known[random.below(known.size())]);
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      if (merge.first.size() + merge.second.size() > 14) continue;
      merges.push_back(merge);
      known.push_back(merge.first + merge.second);
    }
    const SmallModel model = make_model(merges);
    const Bpe bpe = Bpe::create(model.vocabulary, model.merges).value();
    for (int i = 0; i < 60; ++i) {
      std::string piece;
      // Below and above the lengths at which the whole-piece table and the short path end.
      for (int left = 1 + random.below(i % 3 == 0 ? 200 : 16); left > 0; --left) {
        piece.push_back("abcd"[random.below(4) == 0 ? 3 : random.below(3)]);
      }
      ASSERT_EQ(encode(bpe, piece, piece.data() + piece.size()), merge_by_definition(model, piece)) << piece;
    }
  }
}

TEST(Bpe, ATokenThatItsOwnBytesDoNotMergeToIsNotUsed) {
  // "ab" goes first, so "abc" as "a" + "bc" is never reached.
  const SmallModel model = make_model({{"a", "b"}, {"b", "c"}, {"a", "bc"}});
  const Bpe bpe = Bpe::create(model.vocabulary, model.merges).value();
  const std::string piece = "abc";
  EXPECT_THAT(encode(bpe, piece, piece.data() + 3), testing::ElementsAre(256, 'c'));
}

TEST(Bpe, WhatFollowsThePieceInMemoryDoesNotMatter) {
  const SmallModel model = make_model({{"a", "b"}, {"ab", "ab"}});
  const Bpe bpe = Bpe::create(model.vocabulary, model.merges).value();
  const std::string text = "abababababababababababababab";
  for (size_t size = 1; size <= 11; ++size) {
    const std::string alone = text.substr(0, size);
    EXPECT_EQ(encode(bpe, std::string_view(text).substr(0, size), text.data() + text.size()),
              encode(bpe, alone, alone.data() + size));
  }
}

TEST(Bpe, APieceWithZeroBytesIsNotTakenForAShorterOne) {
  const SmallModel model = make_model({{"a", "b"}});
  const Bpe bpe = Bpe::create(model.vocabulary, model.merges).value();
  const std::string piece("ab\0\0", 4);
  EXPECT_THAT(encode(bpe, piece, piece.data() + 4), testing::ElementsAre(256, 0, 0));
}

TEST(Bpe, AMegabyteInOnePieceTakesNoQuadraticTime) {
  const SmallModel model = make_model({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  const Bpe bpe = Bpe::create(model.vocabulary, model.merges).value();
  const std::string piece(1 << 20, 'a');  // quadratic work would be 10^12 steps: minutes, not a fraction of a second
  const std::vector<int32_t> ids = encode(bpe, piece, piece.data() + piece.size());
  EXPECT_EQ(ids, std::vector<int32_t>(1 << 17, 258));
}

TEST(Bpe, AMissingByteAndADoubleMergeAreRefused) {
  const auto no_bytes = Vocabulary::create({{0, TokenKind::kBytes, "a"}});
  EXPECT_THAT(Bpe::create(*no_bytes, {}).status().message(), testing::HasSubstr("no token for byte 0"));
  const SmallModel model = make_model({{"a", "b"}});
  EXPECT_THAT(Bpe::create(model.vocabulary, {model.merges[0], model.merges[0]}).status().message(),
              testing::HasSubstr("merges 0 and 1 join the same pair"));
}

}  // namespace
}  // namespace deepinfer
