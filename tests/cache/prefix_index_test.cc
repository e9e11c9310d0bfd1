#include "cache/prefix_index.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

struct Walked {
  int64_t known;
  std::vector<int32_t> units;
};

Walked walk(PrefixIndex& index, const Tokens& tokens, uint64_t salt = 0) {
  Walked walked{};
  walked.known = index.walk(tokens, salt, [&](int32_t unit, int64_t) { walked.units.push_back(unit); });
  return walked;
}

TEST(PrefixIndex, FindsTheUnitsAlongAPathShortestFirst) {
  PrefixIndex index({});
  index.insert(Tokens{1, 2, 3, 4}, 0, 10);
  index.insert(Tokens{1, 2}, 0, 11);
  index.insert(Tokens{1, 2, 3, 4, 5, 6}, 0, 12);
  EXPECT_EQ(walk(index, {1, 2, 3, 4, 5}).units, (Tokens{11, 10}));
  EXPECT_EQ(walk(index, {1, 2, 3, 4, 5, 6}).units, (Tokens{11, 10, 12}));
  EXPECT_EQ(walk(index, {1}).units, Tokens{});
  EXPECT_EQ(index.find(Tokens{1, 2}, 0), 11);
  EXPECT_EQ(index.find(Tokens{1, 2, 3}, 0), -1);
}

TEST(PrefixIndex, TellsHowFarATextIsKnownInTheMiddleOfAnEdge) {
  PrefixIndex index({});
  index.insert(Tokens{1, 2, 3, 4, 5}, 0, 0);
  EXPECT_EQ(walk(index, {1, 2, 3, 9}).known, 3);
  EXPECT_EQ(walk(index, {1, 2}).known, 2);
  EXPECT_EQ(walk(index, {9}).known, 0);
}

TEST(PrefixIndex, KeepsSaltsApart) {
  PrefixIndex index({});
  index.insert(Tokens{1, 2, 3}, 5, 0);
  EXPECT_EQ(walk(index, {1, 2, 3}, 6).known, 0);
  EXPECT_TRUE(walk(index, {1, 2, 3}, 6).units.empty());
  EXPECT_EQ(walk(index, {1, 2, 3}, 5).units, Tokens{0});
}

TEST(PrefixIndex, StillKnowsWherePromptsPartWhenTheirUnitsAreGone) {
  PrefixIndex index({});
  const int32_t node = index.insert(Tokens{1, 2, 3, 4}, 0, 0);
  index.remove(node);
  EXPECT_EQ(walk(index, {1, 2, 9}).known, 2);
  EXPECT_TRUE(walk(index, {1, 2, 3, 4}).units.empty());
}

TEST(PrefixIndex, ForgetsThePathSeenLongestAgoFirst) {
  PrefixIndex index({.max_paths = 2});
  index.remember(Tokens{1, 1, 1}, 0);
  index.remember(Tokens{2, 2, 2}, 0);
  walk(index, {1, 1, 1});
  index.remember(Tokens{3, 3, 3}, 0);
  EXPECT_EQ(walk(index, {1, 1, 1}).known, 3);
  EXPECT_EQ(walk(index, {2, 2, 2}).known, 0);
  EXPECT_EQ(walk(index, {3, 3, 3}).known, 3);
}

TEST(PrefixIndex, BoundsTheTokensThatPathsKeep) {
  PrefixIndex index({.max_paths = 100, .max_path_tokens = 10});
  for (int32_t i = 0; i < 50; ++i) index.remember(Tokens{i, i, i, i}, 0);
  EXPECT_LE(index.num_path_tokens(), 10);
  EXPECT_EQ(walk(index, {49, 49, 49, 49}).known, 4);
  index.remember(Tokens(11, 7), 0);  // alone over the bound
  EXPECT_LE(index.num_path_tokens(), 10);
  EXPECT_TRUE(index.is_consistent());
}

TEST(PrefixIndex, HoldsNothingAfterAllPathsAreForgotten) {
  PrefixIndex index({.max_paths = 0});
  const int32_t a = index.insert(Tokens{1, 2, 3}, 0, 0);
  const int32_t b = index.insert(Tokens{1, 2, 4}, 0, 1);
  index.remove(a);
  index.remove(b);
  index.remember(Tokens{5}, 0);  // tidies up, and is forgotten at once
  EXPECT_EQ(index.num_nodes(), 0);
}

TEST(PrefixIndex, GivesBackTheTokensOfANode) {
  PrefixIndex index({});
  index.insert(Tokens{1, 2, 3}, 0, 0);
  const int32_t node = index.insert(Tokens{1, 2, 4, 5}, 0, 1);
  index.insert(Tokens{1}, 0, 2);
  Tokens tokens;
  index.append_tokens(node, tokens);
  EXPECT_EQ(tokens, (Tokens{1, 2, 4, 5}));
}

// Random insertions, removals and look-ups against a plain map. Paths are never forgotten, so the longest known prefix
// is that of everything ever inserted or remembered.
TEST(PrefixIndex, AgreesWithAPlainListOfTokens) {
  std::mt19937 random(3);
  PrefixIndex index({.max_paths = 1 << 20, .max_path_tokens = 1 << 30});
  std::map<std::pair<uint64_t, Tokens>, std::pair<int32_t, int32_t>> units;  // salt and tokens: unit and node
  std::vector<std::pair<uint64_t, Tokens>> seen;
  const auto random_tokens = [&] {
    Tokens tokens(1 + random() % 12);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3);
    return tokens;
  };
  int32_t next_unit = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint64_t salt = random() % 2;
    const Tokens tokens = random_tokens();
    const auto known = units.find({salt, tokens});
    switch (random() % 4) {
      case 0:
        if (known == units.end()) {
          const int32_t node = index.insert(tokens, salt, next_unit);
          units[{salt, tokens}] = {next_unit++, node};
          seen.emplace_back(salt, tokens);
        }
        break;
      case 1:
        if (known != units.end()) {
          index.remove(known->second.second);
          units.erase(known);
        }
        break;
      case 2:
        if (seen.size() < 3000) {
          index.remember(tokens, salt);
          seen.emplace_back(salt, tokens);
        }
        break;
      default: {
        int64_t longest = 0;
        for (const auto& [other_salt, other] : seen) {
          if (other_salt != salt) continue;
          const auto end = std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
          longest = std::max<int64_t>(longest, end - tokens.begin());
        }
        std::vector<int32_t> expected;
        for (size_t length = 1; length <= tokens.size(); ++length) {
          const auto unit = units.find({salt, Tokens(tokens.begin(), tokens.begin() + length)});
          if (unit != units.end()) expected.push_back(unit->second.first);
        }
        const Walked walked = walk(index, tokens, salt);
        ASSERT_EQ(walked.known, longest);
        ASSERT_EQ(walked.units, expected);
      }
    }
    if (round % 97 == 0) {
      ASSERT_TRUE(index.is_consistent());
      for (const auto& [key, unit] : units) {
        Tokens stored;
        index.append_tokens(unit.second, stored);
        ASSERT_EQ(stored, key.second);
      }
    }
  }
}

// The same with tight bounds: nothing breaks, and units are never forgotten with the paths.
TEST(PrefixIndex, StaysConsistentWhilePathsAreForgotten) {
  std::mt19937 random(4);
  PrefixIndex index({.max_paths = 5, .max_path_tokens = 40});
  std::map<Tokens, std::pair<int32_t, int32_t>> units;
  for (int round = 0; round < 20000; ++round) {
    Tokens tokens(1 + random() % 12);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3);
    const auto known = units.find(tokens);
    if (random() % 3 == 0) {
      index.remember(tokens, 0);
    } else if (known == units.end() && units.size() < 30) {
      units[tokens] = {round, index.insert(tokens, 0, round)};
    } else if (known != units.end()) {
      index.remove(known->second.second);
      units.erase(known);
    }
    ASSERT_TRUE(index.is_consistent()) << round;
    index.remember(Tokens{0}, 0);  // tidies up
    ASSERT_LE(index.num_nodes(), 2 * static_cast<int32_t>(units.size() + 5) + 1);
  }
  for (const auto& [key, unit] : units) ASSERT_EQ(index.find(key, 0), unit.first);
}

}  // namespace
}  // namespace deepinfer
