#include "model/engram_hash.h"

#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/sha256.h"

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

EngramConfig released_config() {
  return {.layer_ids = {1, 14},
          .num_embeddings = {384006168, 384016682},
          .max_ngram_size = 4,
          .n_heads = 8,
          .head_dim = 256,
          .vocab_size = 16000000,
          .pad_token_id = 2,
          .compressed_vocab_size = 99092};
}

EngramHash released_hash() { return EngramHash::create(released_config(), 2).value(); }

std::vector<int64_t> rows_at(const EngramHash& hash, int table, const std::vector<int32_t>& ids, size_t position) {
  std::vector<int32_t> window(hash.window_size());
  std::vector<int64_t> rows(hash.num_columns());
  hash.look_back(std::span(ids).first(position + 1), window);
  hash.hash(table, window, rows);
  return rows;
}

// Over [position][table][column] as little-endian int64; one table alone if `only` names it.
std::string digest(const EngramHash& hash, const std::vector<int32_t>& ids, int only = -1) {
  std::vector<uint8_t> bytes;
  for (size_t p = 0; p < ids.size(); ++p)
    for (int table = 0; table < hash.num_tables(); ++table)
      if (only < 0 || only == table)
        for (const int64_t row : rows_at(hash, table, ids, p))
          for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<uint8_t>(row >> shift));
  return sha256_hex(bytes);
}

std::vector<int64_t> pick(const std::vector<int64_t>& rows, std::initializer_list<int> columns) {
  std::vector<int64_t> out;
  for (const int c : columns) out.push_back(rows[c]);
  return out;
}

TEST(Sha256, GivesThePublishedDigestsOfTheEmptyAndTheThreeLetterMessage) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const uint8_t abc[] = {'a', 'b', 'c'};
  EXPECT_EQ(sha256_hex(abc), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(EngramHash, DerivesTheReleasedMultipliers) {
  const auto hash = released_hash();
  EXPECT_THAT(hash.table(0).multipliers,
              ElementsAre(76632096046245u, 4839876093313u, 35959672319349u, 73987337458391u));
  EXPECT_THAT(hash.table(1).multipliers,
              ElementsAre(67716810739261u, 51510806800915u, 30921347202721u, 82619226485591u));
}

TEST(EngramHash, FindsTheReleasedPrimesWhichSumToTheTableSizes) {
  const auto hash = released_hash();
  EXPECT_THAT(hash.table(0).primes,
              ElementsAre(16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183, 16000189,
                          16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321, 16000339, 16000381,
                          16000393, 16000399, 16000403, 16000409, 16000447, 16000463));
  EXPECT_THAT(hash.table(1).primes,
              ElementsAre(16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627, 16000667,
                          16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769, 16000781, 16000799,
                          16000813, 16000819, 16000841, 16000877, 16000879, 16000889));
  EXPECT_EQ(hash.num_rows(0), 384006168);
  EXPECT_EQ(hash.num_rows(1), 384016682);
}

TEST(EngramHash, TwoTokensGiveThePublishedRowsAndDigests) {
  const auto hash = released_hash();
  const std::vector<int32_t> ids = {0, 3};
  EXPECT_THAT(rows_at(hash, 0, ids, 0),
              ElementsAre(5702652, 24393184, 39183301, 61503783, 78984481, 90144770, 103724983, 121476532, 131476717,
                          152385926, 164143652, 191599181, 198145581, 217419202, 238329687, 247482304, 257520185,
                          283540304, 288689443, 315264704, 322314652, 348890037, 367865216, 380066193));
  EXPECT_THAT(rows_at(hash, 1, ids, 1),
              ElementsAre(7976312, 25015455, 32662253, 59094253, 72310297, 85156133, 108102275, 119576138, 131069797,
                          145343601, 172623612, 185170695, 205084594, 221545257, 227646200, 251014423, 260231155,
                          280143022, 290296486, 312934632, 326604373, 350427914, 363307643, 379703671));
  EXPECT_EQ(digest(hash, ids), "f5a64799492bea90bc6d87f0cb8a67bb983441e1cd9c12ec2e7b8df6cbcfee1d");
  EXPECT_EQ(digest(hash, ids, 0), "8e0187ea859a7db65517a540eb5210457ec907fd0b2f44042d830366cbedbda5");
  EXPECT_EQ(digest(hash, ids, 1), "33e046238287e6e8b7c3466bdb4b7b47182ad19f9115afac8a1983ede219ba80");
}

TEST(EngramHash, AShortChatGivesThePublishedDigest) {
  const auto hash = released_hash();
  const std::vector<int32_t> ids = {0, 98615, 15844, 98616, 98634};
  EXPECT_EQ(digest(hash, ids), "65564fcba448603262d630d9506053726182d55050e5fd4bf4ec992e90203eb0");
  EXPECT_THAT(pick(rows_at(hash, 0, ids, 4), {0, 1, 2, 3}), ElementsAre(6145177, 29200083, 42970516, 50089365));
  EXPECT_THAT(pick(rows_at(hash, 1, ids, 4), {0, 1}), ElementsAre(13564020, 18908159));
}

TEST(EngramHash, AnImageInTheMiddleGivesThePublishedDigest) {
  const auto hash = released_hash();
  const int32_t x = kDeadId;
  const std::vector<int32_t> ids = {0, 98615, x, x, x, x, x, x, 15844, 98616, 98634};
  EXPECT_EQ(digest(hash, ids), "7ab604f7874c9012d3ca4a44a79b9227d16c0d54c42491f22cfd7a21d7e6a984");
  EXPECT_THAT(pick(rows_at(hash, 0, ids, 8), {0, 1, 2, 3}), ElementsAre(4951095, 17647458, 42302169, 48904805));
}

TEST(EngramHash, ASentenceGivesThePublishedDigest) {
  const std::vector<int32_t> ids = {0,     237,  4015, 9933, 18307, 42368, 880,  237,
                                    32356, 5327, 16,   237,  4015,  2676,  1231, 18307};
  EXPECT_EQ(digest(released_hash(), ids), "24c1985c272591bbbaf1811f65e3e1623197618602989b89a1af8275152fc199");
}

TEST(EngramHash, ADeadPositionBlocksItselfAndEverythingBeforeIt) {
  const auto hash = released_hash();
  const std::vector<int32_t> ids = {5, 17, 99091, kDeadId, 0, 1};
  const auto at = [&](int table, size_t p) { return pick(rows_at(hash, table, ids, p), {0, 7, 8, 16, 23}); };
  EXPECT_THAT(at(0, 0), ElementsAre(5412672, 127351390, 143494632, 256353435, 372009279));
  EXPECT_THAT(at(1, 0), ElementsAre(6939818, 119840903, 131576092, 268363546, 382274687));
  EXPECT_THAT(at(0, 1), ElementsAre(4465417, 115073099, 129505115, 269486139, 371977877));
  EXPECT_THAT(at(1, 1), ElementsAre(14916957, 119142664, 137631961, 261903157, 369044835));
  EXPECT_THAT(at(0, 2), ElementsAre(379248, 114357284, 141971515, 256931896, 373952454));
  EXPECT_THAT(at(1, 2), ElementsAre(4638160, 113837035, 128337784, 267442687, 381418250));
  EXPECT_EQ(at(0, 3)[0], 4299726);
  EXPECT_THAT(at(0, 4), ElementsAre(5702652, 121476532, 131476717, 257520185, 380066193));
  EXPECT_THAT(at(1, 4), ElementsAre(14361964, 120604547, 132225184, 261362261, 372375971));
  EXPECT_THAT(at(0, 5), ElementsAre(15045429, 115577409, 128992384, 261145562, 382841219));
  EXPECT_THAT(at(1, 5), ElementsAre(7992263, 125194906, 128857751, 270522411, 373136088));
}

TEST(EngramHash, TheLastFourIdsOfAHistoryAreEnough) {
  const auto hash = released_hash();
  std::mt19937 random(1);
  std::vector<int32_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(random() % 5 == 0 ? kDeadId : static_cast<int32_t>(random() % 99092));
  for (size_t p = 0; p < ids.size(); ++p) {
    std::vector<int32_t> whole(4), tail(4);
    hash.look_back(std::span(ids).first(p + 1), whole);
    const size_t begin = p + 1 > 4 ? p + 1 - 4 : 0;
    hash.look_back(std::span(ids).subspan(begin, p + 1 - begin), tail);
    EXPECT_EQ(whole, tail) << "position " << p;
  }
}

TEST(EngramHash, EveryRowLiesInItsColumn) {
  const auto hash = released_hash();
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> window(4);
    for (auto& id : window) id = static_cast<int32_t>(random() % 99092);
    const int table = i % 2;
    std::vector<int64_t> rows(24);
    hash.hash(table, window, rows);
    for (int c = 0; c < 24; ++c) {
      ASSERT_GE(rows[c], hash.table(table).offsets[c]);
      ASSERT_LT(rows[c], hash.table(table).offsets[c] + static_cast<int64_t>(hash.table(table).primes[c]));
    }
  }
}

TEST(EngramHash, ATinyVocabularyGivesTheConstantsOfTheReference) {
  std::ifstream file(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full/engram_tables.json");
  const auto golden = nlohmann::json::parse(file);
  const EngramConfig config{.layer_ids = {1, 3},
                            .num_embeddings = {630, 834},
                            .max_ngram_size = 4,
                            .n_heads = 2,
                            .head_dim = 32,
                            .vocab_size = 97,
                            .pad_token_id = 2,
                            .compressed_vocab_size = 64};
  const auto hash = EngramHash::create(config, 2).value();
  ASSERT_EQ(golden["primes"].size(), 2u);
  for (int table = 0; table < 2; ++table) {
    std::vector<uint64_t> primes, multipliers;
    for (const auto& order : golden["primes"][table])
      for (const auto& prime : order) primes.push_back(prime);
    for (const auto& text : golden["multipliers"][table]) multipliers.push_back(std::stoull(text.get<std::string>()));
    EXPECT_THAT(hash.table(table).primes, ElementsAreArray(primes));
    EXPECT_THAT(hash.table(table).multipliers, ElementsAreArray(multipliers));
    EXPECT_THAT(hash.table(table).offsets, ElementsAreArray(golden["offsets"][table].get<std::vector<int64_t>>()));
    EXPECT_EQ(hash.num_rows(table), config.num_embeddings[table]);
  }
}

TEST(EngramHash, ProductsStayBelowTwoToThe63ForEveryVocabularySize) {
  for (const int64_t vocab : {1, 2, 3, 64, 1000, 99092, 1 << 24}) {
    EngramConfig config = released_config();
    config.compressed_vocab_size = vocab;
    const auto hash = EngramHash::create(config, 0).value();
    for (int table = 0; table < 2; ++table)
      for (const uint64_t m : hash.table(table).multipliers) {
        EXPECT_EQ(m % 2, 1u);
        EXPECT_LT(static_cast<unsigned __int128>(m) * static_cast<uint64_t>(vocab - 1),
                  static_cast<unsigned __int128>(1) << 63);
      }
  }
}

TEST(EngramHash, RefusesAPadIdOutsideOfTheCompressedVocabulary) {
  const auto result = EngramHash::create(released_config(), 99092);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(),
              testing::AllOf(testing::HasSubstr("99092"), testing::HasSubstr("engram_pad_token_id")));
}

TEST(EngramPrimes, AgreeWithTrialDivision) {
  const auto by_division = [](uint64_t n) {
    for (uint64_t d = 2; d * d <= n; ++d)
      if (n % d == 0) return false;
    return n >= 2;
  };
  for (uint64_t n = 0; n < 20000; ++n) ASSERT_EQ(is_prime(n), by_division(n)) << n;
  for (uint64_t n = 16000000; n < 16001000; ++n) ASSERT_EQ(is_prime(n), by_division(n)) << n;
  // Composites that fool single bases, and the largest 64-bit prime.
  for (const uint64_t n : {2047u, 1373653u, 25326001u, 3215031751u}) EXPECT_FALSE(is_prime(n)) << n;
  EXPECT_TRUE(is_prime(18446744073709551557u));
  EXPECT_FALSE(is_prime(18446744073709551615u));
}

TEST(EngramPrimes, AreNeverUsedTwice) {
  std::set<uint64_t> seen;
  for (const auto& table : engram_primes(released_config()))
    for (const uint64_t prime : table) EXPECT_TRUE(seen.insert(prime).second) << prime;
}

}  // namespace
}  // namespace deepinfer
