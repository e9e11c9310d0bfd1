// The forward pass on a device whose memory the host cannot touch, that runs work later and records it: the bits of the
// CPU, whatever is padded, recorded and launched again.
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>

#include "checkpoint/temp_folder.h"
#include "model/golden_model.h"
#include "model/separate_memory_device.h"

namespace deepinfer {
namespace {

using Row = std::vector<float>;
using testing::HasSubstr;

// Logits after every token, the tokens cut into steps of the given sizes (the last size repeats).
std::vector<Row> run(Model& model, const std::vector<int32_t>& tokens, const std::vector<int64_t>& sizes) {
  SequenceState state = model.make_sequence();
  std::vector<Row> rows;
  std::vector<float> logits;
  const int64_t vocab = model.config().vocab_size, end = static_cast<int64_t>(tokens.size());
  for (size_t i = 0; state.length() < end; ++i) {
    const int64_t begin = state.length(), count = std::min(sizes[std::min(i, sizes.size() - 1)], end - begin);
    const SequenceStep step{&state, std::span(tokens).subspan(begin, count), LogitRows::kAll};
    const Status status = model.forward({&step, 1}, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    for (int64_t r = 0; r < count; ++r) rows.emplace_back(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
  }
  return rows;
}

struct OnBoth {
  OnBoth(const std::string& name, Numerics numerics, KvFormat format = KvFormat::kBf16)
      : cpu(name, numerics, "auto", 2, format), separate(name, numerics, take(device), format) {}
  static std::unique_ptr<Device> take(SeparateMemoryDevice*& pointer) {
    auto made = std::make_unique<SeparateMemoryDevice>();
    pointer = made.get();
    return made;
  }
  SeparateMemoryDevice* device = nullptr;
  GoldenModel cpu, separate;
};

class SeparateMemory : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, SeparateMemory, testing::Values("tiny_full", "tiny_noengram", "tiny_smooth"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(SeparateMemory, GivesTheBitsOfTheCpuHoweverTokensAreCut) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kBf16Activations, Numerics::kExact}) {
    OnBoth models(GetParam(), numerics);
    const std::vector<int32_t> tokens = random_tokens(150, models.cpu->config().vocab_size, 1);
    const std::vector<Row> expected = run(*models.cpu, tokens, {1000});
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1000}, {7, 1, 1, 20}, {64, 3}}) {
      EXPECT_EQ(run(*models.separate, tokens, sizes), expected) << "first step " << sizes[0];
    }
  }
}

TEST_P(SeparateMemory, PackedCachesToo) {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kFp4}) {
    OnBoth models(GetParam(), Numerics::kOfficial, format);
    const std::vector<int32_t> tokens = random_tokens(150, models.cpu->config().vocab_size, 2);
    EXPECT_EQ(run(*models.separate, tokens, {31}), run(*models.cpu, tokens, {1000}));
  }
}

// Sequences that come, pause and go, in steps of one token each: most steps are launched from a recording, padded and
// with other sequences in other rows than when it was made.
TEST_P(SeparateMemory, RecordedStepsGiveTheBitsOfTheCpu) {
  constexpr int64_t kSequences = 11, kTokens = 90;
  OnBoth models(GetParam(), Numerics::kOfficial);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<Row>> expected;
  std::vector<SequenceState> states;
  for (uint32_t i = 0; i < kSequences; ++i) {
    tokens.push_back(random_tokens(kTokens, models.cpu->config().vocab_size, 10 + i));
    expected.push_back(run(*models.cpu, tokens[i], {1000}));
    states.push_back(models.separate->make_sequence());
  }
  std::mt19937 random(4);
  const int64_t vocab = models.cpu->config().vocab_size;
  int64_t num_steps = 0;
  while (true) {
    std::vector<SequenceStep> steps;
    std::vector<size_t> who;
    bool unfinished = false;
    for (size_t i = 0; i < kSequences; ++i) {
      if (states[i].length() == kTokens) continue;
      unfinished = true;
      if (random() % 3 == 0) continue;
      steps.push_back({&states[i], std::span(tokens[i]).subspan(states[i].length(), 1)});
      who.push_back(i);
    }
    if (!unfinished) break;
    if (steps.empty()) continue;
    std::vector<float> logits;
    const Status status = models.separate->forward(steps, logits);
    ASSERT_TRUE(status.ok()) << status.message();
    ++num_steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      const Row row(logits.begin() + s * vocab, logits.begin() + (s + 1) * vocab);
      ASSERT_EQ(row, expected[who[s]][states[who[s]].length() - 1])
          << "sequence " << who[s] << ", token " << states[who[s]].length() - 1 << ", step " << num_steps;
    }
  }
  EXPECT_GT(models.device->num_launches(), num_steps / 2);
  EXPECT_LT(models.device->num_graphs(), 12);  // five sizes, in two pieces where there is Engram
}

TEST_P(SeparateMemory, WorkIsRecordedAnewWhenAPromptMovesTheWorkspace) {
  OnBoth models(GetParam(), Numerics::kOfficial);
  const std::vector<int32_t> a = random_tokens(40, models.cpu->config().vocab_size, 30);
  const std::vector<Row> expected = run(*models.cpu, a, {1000});
  SequenceState state = models.separate->make_sequence();
  std::vector<float> logits;
  for (int64_t t = 0; t < 40; ++t) {
    const SequenceStep step{&state, std::span(a).subspan(t, 1)};
    ASSERT_TRUE(models.separate->forward({&step, 1}, logits).ok());
    ASSERT_EQ(logits, expected[t]) << t;
    if (t % 10 != 9) continue;
    const int64_t length = 20 * t;
    SequenceState other = models.separate->make_sequence();
    const std::vector<int32_t> prompt = random_tokens(length, models.cpu->config().vocab_size, 31);
    const SequenceStep whole{&other, prompt};
    ASSERT_TRUE(models.separate->forward({&whole, 1}, logits).ok());
  }
  const int pieces = models.cpu->config().engram.enabled() ? 2 : 1;
  EXPECT_GE(models.device->num_graphs(), 3 * pieces);
  EXPECT_LT(models.device->num_graphs(), 6 * pieces);
}

TEST_P(SeparateMemory, ReplayGivesTheBitsOfTheCpu) {
  OnBoth models(GetParam(), Numerics::kOfficial);
  ASSERT_GE(models.cpu->plan().first_decoder_layer, 0);
  const std::vector<int32_t> tokens = random_tokens(60, models.cpu->config().vocab_size, 1);
  const auto answers = [&](Model& model, int64_t chunk) {
    SequenceState state = model.make_sequence();
    std::vector<Row> rows;
    std::vector<float> logits;
    while (state.length() < 60) {
      const int64_t begin = state.length(), count = begin < 50 ? std::min<int64_t>(chunk, 50 - begin) : 1;
      const LogitRows wanted = begin + count >= 50 ? LogitRows::kLast : LogitRows::kNone;
      const SequenceStep step{&state, std::span(tokens).subspan(begin, count), wanted, 39};
      EXPECT_TRUE(model.forward({&step, 1}, logits).ok());
      if (wanted == LogitRows::kLast) rows.push_back(logits);
    }
    return rows;
  };
  const std::vector<Row> expected = answers(*models.cpu, 50);
  for (const int64_t chunk : {1, 7, 50}) EXPECT_EQ(answers(*models.separate, chunk), expected) << chunk;
}

TEST(SeparateMemory, TooLittleOfItIsAnErrorAndNoSequenceMoves) {
  OnBoth models("tiny_full", Numerics::kOfficial);
  const std::vector<int32_t> tokens = random_tokens(100, models.cpu->config().vocab_size, 3);
  SequenceState state = models.separate->make_sequence();
  std::vector<float> logits;
  const SequenceStep first{&state, std::span(tokens).first(10)};
  ASSERT_TRUE(models.separate->forward({&first, 1}, logits).ok());
  models.device->set_limit(models.device->used_bytes());
  const SequenceStep second{&state, std::span(tokens).subspan(10)};
  const Status refused = models.separate->forward({&second, 1}, logits);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.message(), HasSubstr("bytes of device memory for"));
  EXPECT_THAT(refused.message(), HasSubstr("are free"));
  EXPECT_EQ(state.length(), 10);
  models.device->set_limit(int64_t{1} << 34);
  ASSERT_TRUE(models.separate->forward({&second, 1}, logits).ok());
  EXPECT_EQ(logits, run(*models.cpu, tokens, {1000}).back());
}

// A copy of tiny_full in which every row of an Engram table holds no number.
void write_damaged_model(const TempFolder& folder) {
  std::filesystem::copy(golden_folder("tiny_full"), folder.path(), std::filesystem::copy_options::recursive);
  std::fstream file(folder.file("model.safetensors"), std::ios::binary | std::ios::in | std::ios::out);
  uint64_t header_size = 0;
  file.read(reinterpret_cast<char*>(&header_size), 8);
  std::string header(header_size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_size));
  const std::string before = "\"data_offsets\": [";
  const size_t at = header.find(before, header.find("\"layers.3.engram.embed.scale\""));
  size_t digits = 0;
  const uint64_t begin = std::stoull(header.substr(at + before.size()), &digits);
  const uint64_t end = std::stoull(header.substr(at + before.size() + digits + 2));
  file.seekp(static_cast<std::streamoff>(8 + header_size + begin));
  file << std::string(end - begin, static_cast<char>(255));
}

TEST(SeparateMemory, ADamagedEngramRowFailsTheStepAndNoSequenceMoves) {
  TempFolder folder;
  write_damaged_model(folder);
  for (const bool separate : {false, true}) {
    const std::unique_ptr<Device> device =
        separate ? std::make_unique<SeparateMemoryDevice>() : make_cpu_device({.num_threads = 2}).value();
    const ModelConfig config = ModelConfig::from_file(folder.file("config.json")).value();
    const auto model = Model::load(*device, Checkpoint::open(folder.path()).value(), config,
                                   std::vector<int32_t>(config.vocab_size, 1), ModelOptions());
    ASSERT_TRUE(model.ok()) << model.status().message();
    SequenceState state = (*model)->make_sequence();
    std::vector<float> logits;
    for (const int64_t count : {5, 1, 1, 1}) {
      const std::vector<int32_t> tokens(count, 7);
      const SequenceStep step{&state, tokens};
      const Status failed = (*model)->forward({&step, 1}, logits);
      ASSERT_FALSE(failed.ok());
      EXPECT_THAT(failed.message(), HasSubstr("layers.3.engram.embed.weight"));
      EXPECT_THAT(failed.message(), HasSubstr("damaged"));
      EXPECT_EQ(state.length(), 0);
    }
  }
}

TEST(SeparateMemory, WeightsThatDoNotFitAreAnError) {
  SeparateMemoryDevice device;
  device.set_limit(64 << 10);
  const ModelConfig config = ModelConfig::from_file(golden_folder("tiny_noengram") + "/config.json").value();
  const auto model =
      Model::load(device, Checkpoint::open(golden_folder("tiny_noengram")).value(), config, {}, ModelOptions());
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), ErrorCode::kOutOfMemory) << model.status().message();
}

}  // namespace
}  // namespace deepinfer
