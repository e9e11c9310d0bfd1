#include "engine/settings.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

SettingValue keyword(std::string name, std::string text) {
  return {SettingSource::kKeyword, std::move(name), std::move(text), ""};
}

Result<EngineSettings> read(std::vector<SettingValue> keywords) {
  keywords.push_back(keyword("model", "somewhere"));
  return read_engine_settings({.keywords = std::move(keywords)});
}

std::string message(std::vector<SettingValue> keywords) {
  const Result<EngineSettings> settings = read(std::move(keywords));
  return settings.ok() ? "" : settings.status().message();
}

// WRITE_DOCS=1 in the environment writes the file anew.
TEST(EngineSettings, TheCommittedDocumentationIsTheTables) {
  const std::string path = DEEPINFER_TESTS_DIR "/../docs/settings.md";
  if (const char* write = std::getenv("WRITE_DOCS"); write != nullptr && *write == '1') {
    std::ofstream(path) << engine_settings_markdown();
  }
  std::ifstream file(path);
  const std::string committed(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(committed, engine_settings_markdown()) << "run this test with WRITE_DOCS=1 and commit docs/settings.md";
}

TEST(EngineSettings, EverySettingReadsItsOwnDefault) {
  for (const SettingRow& row : engine_settings_table().rows()) {
    if (row.read == nullptr || row.name == "model" || row.name == "settings") continue;
    EXPECT_EQ(message({keyword(row.name, row.default_text)}), "") << row.name;
  }
}

TEST(EngineSettings, EveryRowNamesAMemberOfItsOwn) {
  // What one row reads, no other shows.
  for (const SettingRow& row : engine_settings_table().rows()) {
    if (row.read == nullptr) continue;
    EngineSettings settings;
    int num_read = 0;
    for (const char* text : {"3", "7", "exact", "mask", "reference", "fp8", "0", "1", "0.5", "cuda"}) {
      settings = {};
      if (!row.read(text, &settings).ok() || row.show(&settings) == row.default_text) continue;
      ++num_read;
      for (const SettingRow& other : engine_settings_table().rows()) {
        if (other.read == nullptr || &other == &row) continue;
        EXPECT_EQ(other.show(&settings), other.default_text) << row.name << " changes " << other.name;
      }
    }
    EXPECT_GT(num_read, 0) << row.name;
  }
}

TEST(EngineSettings, EveryVariableOfTheDesignIsKnown) {
  for (const char* name : {"ACCELERATOR",
                           "HF_MODEL_DIR",
                           "ENABLE_MTP_VARLEN",
                           "USE_NEXTN_DECODE",
                           "DFLASH_CONFIDENCE_HEAD_TEMPERATURE",
                           "DFLASH_ENFORCE_EAGER",
                           "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL",
                           "YOCO_PREFILL_TRUNCATION_MODE",
                           "YOCO_PREFILL_KEEP_TOKENS",
                           "MAX_BACKTRACKING_TOKENS",
                           "ZERO_OVERHEAD_SCHEDULING",
                           "PREFILL_ATTEMPT_INTERVAL",
                           "PREFILL_ANY_ATTEMPT_INTERVAL",
                           "DISABLE_SYNC_GUARD",
                           "BATCH_INVARIANT",
                           "SO_BUILDER_CPUS",
                           "XGRAMMAR_TIMEOUT",
                           "XGRAMMAR_CACHE_LIMIT_BYTES",
                           "XGRAMMAR_DISABLE_CACHE",
                           "OVERRIDE_NUM_EXTRA_EXPERTS",
                           "EXPERT_COUNT_WINDOW_SIZE",
                           "EXPERT_REARRANGEMENT_STEP_INTERVAL",
                           "MOE_LB_STAT_INTERVAL",
                           "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE",
                           "SHOW_EPLB_DETAIL",
                           "FORCE_LOAD_BALANCE",
                           "FORCE_IMBALANCE_RATIO",
                           "INDEX_ATTN_MEMORY_LIMIT",
                           "ENGRAM_FORCE_GPU_STORAGE",
                           "ENGRAM_PAD_TOKEN"}) {
    const std::string entry = fmt::format("DEEPINFER_{}=?", name);
    // A second name of the model makes HF_MODEL_DIR, which takes any text, fail too.
    const char* const environment[] = {entry.c_str(), "DEEPINFER_MODEL=m", nullptr};
    const Result<EngineSettings> settings = read_engine_settings({.environment = environment});
    ASSERT_FALSE(settings.ok()) << name << " takes a question mark";
    EXPECT_THAT(settings.status().message(), HasSubstr(fmt::format("DEEPINFER_{}", name)));
    EXPECT_NE(settings.status().code(), ErrorCode::kNotFound) << settings.status().message();
  }
}

TEST(EngineSettings, StrongerSourcesWin) {
  const std::string path = testing::TempDir() + "/deepinfer_engine_settings_test.toml";
  std::ofstream(path)
      << "model = \"from file\"\nthreads = 1\nmax_num_seqs = 1\nmax_model_len = 1\nkv_cache_bytes = 1\n";
  const std::string names_file = "DEEPINFER_SETTINGS=" + path;
  const char* const environment[] = {names_file.c_str(), "DEEPINFER_THREADS=2", "DEEPINFER_MAX_NUM_SEQS=2",
                                     "DEEPINFER_MAX_MODEL_LEN=2", nullptr};
  SettingsSources sources{.environment = environment};
  sources.flags = settings_from_flags(std::vector<std::string>{"--max-num-seqs=3", "--max-model-len=3"}).value();
  sources.keywords = {keyword("max_model_len", "4")};
  const Result<EngineSettings> settings = read_engine_settings(sources);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->model, "from file");
  EXPECT_EQ(settings->kv_cache_bytes, 1);
  EXPECT_EQ(settings->threads, 2);
  EXPECT_EQ(settings->max_num_seqs, 3);
  EXPECT_EQ(settings->max_model_len, 4);
  EXPECT_EQ(settings->prefill_attempt_interval, 70);

  std::ofstream(path) << "settings = \"another\"\n";
  EXPECT_THAT(read_engine_settings(sources).status().message(), HasSubstr("cannot name another"));
  std::ofstream(path) << "thread = 1\n";
  EXPECT_THAT(read_engine_settings(sources).status().message(), AllOf(HasSubstr(":1: thread"), HasSubstr("threads")));
  std::remove(path.c_str());
}

TEST(EngineSettings, TheModelHasToBeNamed) {
  EXPECT_THAT(read_engine_settings({}).status().message(), HasSubstr("model"));
  const char* const environment[] = {"DEEPINFER_HF_MODEL_DIR=there", nullptr};
  EXPECT_EQ(read_engine_settings({.environment = environment})->model, "there");
}

TEST(EngineSettings, DevicesAreTheCpuAndCuda) {
  EXPECT_EQ(read({keyword("accelerator", "cpu")})->device, "cpu");
  EXPECT_EQ(read({keyword("accelerator", "nvidia")})->device, "cuda");
  EXPECT_EQ(read({keyword("device", "cuda")})->device, "cuda");
  EXPECT_THAT(message({keyword("device", "ascend")}), HasSubstr("no Ascend backend is built"));
  EXPECT_THAT(message({keyword("device", "abacus")}), AllOf(HasSubstr("abacus"), HasSubstr("cpu or cuda")));
}

TEST(EngineSettings, PackedCachesNeedNumericsThatQuantise) {
  for (const char* format : {"bf16", "fp8", "fp4"}) {
    EXPECT_EQ(read({keyword("kv_cache_format", format)})->kv_cache_format, format);
    EXPECT_EQ(message({keyword("kv_cache_format", format), keyword("numerics", "bf16_activations")}), "");
  }
  EXPECT_EQ(message({keyword("kv_cache_format", "bf16"), keyword("numerics", "exact")}), "");
  EXPECT_THAT(message({keyword("kv_cache_format", "fp4"), keyword("numerics", "exact")}),
              AllOf(HasSubstr("kv_cache_format fp4"), HasSubstr("exact"), HasSubstr("bf16")));
  EXPECT_THAT(message({keyword("kv_cache_format", "fp16")}), AllOf(HasSubstr("fp16"), HasSubstr("fp4")));
}

TEST(EngineSettings, CachesArePackedByThemselvesOnACardOnlyAndNeverInExactNumerics) {
  EXPECT_EQ(kv_format_of(*read({})), KvFormat::kBf16);
  EXPECT_EQ(kv_format_of(*read({keyword("device", "cuda")})), KvFormat::kFp4);
  EXPECT_EQ(kv_format_of(*read({keyword("device", "cuda"), keyword("numerics", "exact")})), KvFormat::kBf16);
  EXPECT_EQ(kv_format_of(*read({keyword("device", "cuda"), keyword("kv_cache_format", "fp8")})), KvFormat::kFp8);
}

TEST(EngineSettings, KeepTokensAreANumberOrExact) {
  EXPECT_EQ(read({keyword("yoco_prefill_keep_tokens", "140")})->yoco_prefill_keep_tokens, 140);
  EXPECT_EQ(read({keyword("yoco_prefill_keep_tokens", "exact")})->yoco_prefill_keep_tokens, kExactKeepTokens);
  EXPECT_THAT(message({keyword("yoco_prefill_keep_tokens", "all")}), HasSubstr("or exact"));
}

TEST(EngineSettings, SpeculationIsRefusedAboveZero) {
  EXPECT_EQ(message({keyword("use_nextn_decode", "0"), keyword("enable_mtp_varlen", "0")}), "");
  EXPECT_THAT(message({keyword("use_nextn_decode", "5")}), HasSubstr("Speculative decoding is not built"));
  EXPECT_THAT(message({keyword("enable_mtp_varlen", "1")}), HasSubstr("Speculative decoding is not built"));
}

TEST(EngineSettings, MoreThanOneRankIsRefused) {
  EXPECT_EQ(message({keyword("expert_parallel_size", "1"), keyword("engram_parallel_size", "1")}), "");
  EXPECT_THAT(message({keyword("data_parallel_size", "2")}),
              AllOf(HasSubstr("data_parallel_size 2"), HasSubstr("one rank")));
  EXPECT_THAT(message({keyword("engram_parallel_size", "4")}), HasSubstr("engram_parallel_size 4"));
  EXPECT_THAT(message({keyword("expert_parallel_size", "2")}), HasSubstr("expert_parallel_size 2"));
  EXPECT_THAT(message({keyword("expert_parallel_size", "0")}), HasSubstr("from 1"));
}

TEST(ParallelSizes, FollowTheRulesOfDivision) {
  const auto error = [](int64_t expert, int64_t data, int64_t context, int64_t engram) {
    const Status status = check_parallel_sizes(expert, data, context, engram);
    return status.ok() ? "" : status.message();
  };
  EXPECT_EQ(error(1, 1, 1, 0), "");
  EXPECT_EQ(error(8, 8, 1, 0), "");
  EXPECT_EQ(error(2, 8, 1, 0), "");
  EXPECT_EQ(error(2, 1, 8, 0), "");
  EXPECT_THAT(error(8, 4, 1, 0), AllOf(HasSubstr("expert_parallel_size 8"), HasSubstr("= 4")));
  EXPECT_EQ(error(8, 1, 8, 16), "");
  EXPECT_THAT(error(8, 1, 8, 12), AllOf(HasSubstr("engram_parallel_size 12"), HasSubstr("= 8")));
  EXPECT_EQ(error(8, 8, 1, 4), "");
  EXPECT_THAT(error(8, 8, 1, 3), HasSubstr("engram_parallel_size 3"));
}

}  // namespace
}  // namespace deepinfer
