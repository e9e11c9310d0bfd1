// The engine on small models: whatever else runs, a request's answer is the one it has alone, byte for byte.
#include "deepinfer/engine.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "deepinfer/llm.h"
#include "engine/request_stream.h"

namespace deepinfer {
namespace {

const std::string kGolden = std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full";
const std::string kTiny = std::string(DEEPINFER_TESTS_DIR) + "/../models/tiny";

std::unique_ptr<Engine> make_engine(Settings settings, const std::string& model = kGolden) {
  settings.insert(settings.begin(), {"model", model});
  if (model == kGolden) settings.push_back({"max_model_len", "256"});
  std::string error;
  std::unique_ptr<Engine> engine = Engine::create(settings, error);
  EXPECT_NE(engine, nullptr) << error;
  return engine;
}

RequestOutput read_all(RequestStream& stream) {
  RequestOutput total;
  while (std::optional<RequestOutput> update = stream.next()) {
    if (total.id == 0) {
      total = std::move(*update);
    } else {
      append_update(total, std::move(*update));
    }
  }
  std::sort(total.completions.begin(), total.completions.end(),
            [](const Completion& a, const Completion& b) { return a.index < b.index; });
  return total;
}

RequestOutput run(Engine& engine, Request request) {
  std::string error;
  std::unique_ptr<RequestStream> stream = engine.submit(std::move(request), error);
  EXPECT_NE(stream, nullptr) << error;
  return stream ? read_all(*stream) : RequestOutput{};
}

std::string refusal(Engine& engine, Request request) {
  std::string error;
  EXPECT_EQ(engine.submit(std::move(request), error), nullptr);
  return error;
}

std::vector<int32_t> random_tokens(std::mt19937& random, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// Requests as many users would send them: prefix families, greedy and seeded, penalties, stops, log-probabilities.
std::vector<Request> mixed_requests(size_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int32_t>> families;
  for (int i = 0; i < 4; ++i) families.push_back(random_tokens(random, 20 + random() % 80, vocab));
  std::vector<Request> requests(count);
  for (Request& r : requests) {
    r.prompt_tokens = random_tokens(random, 1 + random() % 40, vocab);
    if (random() % 2 == 0) {
      const std::vector<int32_t>& family = families[random() % families.size()];
      r.prompt_tokens.insert(r.prompt_tokens.begin(), family.begin(), family.end());
    }
    r.priority = static_cast<int32_t>(random() % 2);
    SamplingParams& s = r.sampling;
    s.max_tokens = 1 + static_cast<int64_t>(random() % 24);
    s.seq_seed = random();
    s.temperature = random() % 3 == 0 ? 0 : 1.2;
    if (random() % 3 == 0) s.top_p = 0.9;
    if (random() % 4 == 0) s.top_k = 20;
    if (random() % 5 == 0) s.frequency_penalty = 1.5;
    if (random() % 5 == 0) s.repetition_penalty = 1.3;
    if (random() % 4 == 0) s.stop_token_ids = random_tokens(random, 8, vocab);
    if (random() % 6 == 0) s.logprobs = 3;
    if (random() % 8 == 0) s.prompt_logprobs = 1;
    if (random() % 8 == 0) s.n = 3;
  }
  return requests;
}

void expect_equal(const RequestOutput& a, const RequestOutput& b, const std::string& what) {
  ASSERT_EQ(a.completions.size(), b.completions.size()) << what;
  EXPECT_TRUE(a.prompt_logprobs == b.prompt_logprobs) << what;
  for (size_t i = 0; i < a.completions.size(); ++i) {
    EXPECT_EQ(a.completions[i].tokens, b.completions[i].tokens) << what;
    EXPECT_EQ(a.completions[i].text, b.completions[i].text) << what;
    EXPECT_TRUE(a.completions[i].logprobs == b.completions[i].logprobs) << what;
    EXPECT_EQ(a.completions[i].finish_reason, b.completions[i].finish_reason) << what;
    EXPECT_EQ(a.completions[i].stop_reason, b.completions[i].stop_reason) << what;
  }
}

// Each alone, one after the other, nothing cached: what everything else is compared with.
std::vector<RequestOutput> run_alone(const std::vector<Request>& requests, const std::string& model = kGolden) {
  const std::unique_ptr<Engine> engine =
      make_engine({{"enable_prefix_caching", "0"}, {"zero_overhead_scheduling", "0"}, {"threads", "1"}}, model);
  std::vector<RequestOutput> outputs;
  for (const Request& request : requests) outputs.push_back(run(*engine, request));
  return outputs;
}

std::vector<RequestOutput> run_together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (const Request& request : requests) {
    std::string error;
    streams.push_back(engine.submit(request, error));
    EXPECT_NE(streams.back(), nullptr) << error;
  }
  std::vector<RequestOutput> outputs;
  for (const auto& stream : streams) outputs.push_back(read_all(*stream));
  return outputs;
}

TEST(Engine, ThreeHundredRequestsGiveTheSameBytesTogetherAsAlone) {
  const std::vector<Request> requests = mixed_requests(300, 256, 1);
  const std::vector<RequestOutput> alone = run_alone(requests);
  // A cache so small that sequences are preempted, overlap, two threads, odd chunks; then the same again from the
  // cache.
  const std::unique_ptr<Engine> engine = make_engine({{"max_num_seqs", "12"},
                                                      {"max_num_batched_tokens", "37"},
                                                      {"kv_cache_bytes", "3400000"},
                                                      {"prefix_unit_interval", "16"},
                                                      {"prefill_attempt_interval", "5"},
                                                      {"prefill_any_attempt_interval", "5"}});
  for (int round = 0; round < 2; ++round) {
    const std::vector<RequestOutput> together =
        run_together(*engine, round == 0 ? requests : std::vector<Request>(requests.begin(), requests.begin() + 60));
    for (size_t i = 0; i < together.size(); ++i) {
      expect_equal(together[i], alone[i], "round " + std::to_string(round) + ", request " + std::to_string(i));
    }
  }
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().prompt_tokens_cached, 1000);
}

TEST(Engine, OverlapThreadsAndChunksChangeNoByte) {
  const std::vector<Request> requests = mixed_requests(24, 256, 2);
  const std::vector<RequestOutput> expected = run_alone(requests);
  for (const Settings& settings : std::vector<Settings>{{{"zero_overhead_scheduling", "0"}},
                                                        {{"threads", "1"}},
                                                        {{"max_num_batched_tokens", "1"}},
                                                        {{"max_num_seqs", "1"}},
                                                        {{"max_num_batched_tokens", "4096"}, {"max_num_seqs", "64"}}}) {
    const std::unique_ptr<Engine> engine = make_engine(settings);
    const std::vector<RequestOutput> outputs = run_together(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_equal(outputs[i], expected[i], settings[0].first + ", request " + std::to_string(i));
    }
  }
}

TEST(Engine, ReplayModesAgreeAndExactEqualsNoReplay) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back({.prompt_tokens = random_tokens(random, 30 + 10 * i, 256),
                        .sampling = {.seq_seed = 5, .max_tokens = 12, .logprobs = 2}});
  }
  const std::vector<RequestOutput> whole = run_alone(requests);
  const auto with = [&](const Settings& settings) {
    const std::unique_ptr<Engine> engine = make_engine(settings);
    std::vector<RequestOutput> outputs = run_together(*engine, requests);
    const std::vector<RequestOutput> again = run_together(*engine, requests);  // with prefix hits
    for (size_t i = 0; i < outputs.size(); ++i) expect_equal(again[i], outputs[i], "from the cache");
    return outputs;
  };
  const std::vector<RequestOutput> exact = with({{"yoco_prefill_keep_tokens", "exact"}});
  const std::vector<RequestOutput> mask =
      with({{"yoco_prefill_keep_tokens", "9"}, {"yoco_prefill_truncation_mode", "mask"}});
  const std::vector<RequestOutput> compact =
      with({{"yoco_prefill_keep_tokens", "9"}, {"max_num_batched_tokens", "13"}});
  bool differs = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_equal(exact[i], whole[i], "exact, request " + std::to_string(i));
    expect_equal(compact[i], mask[i], "mask and compact, request " + std::to_string(i));
    const auto length = static_cast<int64_t>(requests[i].prompt_tokens.size());
    EXPECT_EQ(compact[i].replay_begin, length - 9);
    EXPECT_EQ(whole[i].replay_begin, 0);
    differs |= compact[i].completions[0].logprobs != whole[i].completions[0].logprobs;
  }
  EXPECT_TRUE(differs) << "a replay this short is an approximation";
  std::string error;
  EXPECT_EQ(Engine::create({{"model", kGolden}, {"max_model_len", "256"}, {"yoco_prefill_keep_tokens", "7"}}, error),
            nullptr);
  EXPECT_NE(error.find("keep at least 8"), std::string::npos) << error;
}

TEST(Engine, PrefixesComeBackFromHostMemoryAndDiskAndChangeNoByte) {
  const std::vector<Request> requests = mixed_requests(40, 256, 4);
  const std::vector<RequestOutput> expected = run_alone(requests);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("deepinfer_tiers_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Settings settings = {
      {"max_num_seqs", "4"},           {"kv_cache_bytes", "3000000"},       {"max_num_batched_tokens", "64"},
      {"host_cache_bytes", "8000000"}, {"disk_cache_dir", folder.string()}, {"disk_cache_bytes", "100000000"}};
  int64_t cached_in_first_run = 0;
  for (int restart = 0; restart < 3; ++restart) {
    const std::unique_ptr<Engine> engine = make_engine(settings);
    const std::vector<RequestOutput> outputs = run_together(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_equal(outputs[i], expected[i], "start " + std::to_string(restart) + ", request " + std::to_string(i));
    }
    if (restart == 0) cached_in_first_run = engine->stats().prompt_tokens_cached;
    if (restart > 0) {
      EXPECT_GT(engine->stats().prompt_tokens_cached, cached_in_first_run) << "the disk outlives an engine";
    }
  }
  // Damage on disk costs time and nothing else.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::streamoff at = 100; at < static_cast<std::streamoff>(entry.file_size()); at += 997) {
      file.seekp(at);
      file.put('x');
    }
  }
  const std::unique_ptr<Engine> engine = make_engine(settings);
  const std::vector<RequestOutput> outputs = run_together(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) expect_equal(outputs[i], expected[i], "damaged, " + std::to_string(i));
  std::filesystem::remove_all(folder);
}

TEST(Engine, Fp4CachesChangeNoByteAndFp8OnesAreNamed) {
  const std::vector<Request> requests = mixed_requests(30, 256, 6);
  const std::vector<RequestOutput> expected = run_alone(requests);
  const std::unique_ptr<Engine> bf16 = make_engine({}), fp4 = make_engine({{"kv_cache_format", "fp4"}});
  EXPECT_EQ(fp4->fingerprint(), bf16->fingerprint());
  const std::vector<RequestOutput> outputs = run_together(*fp4, requests);
  for (size_t i = 0; i < requests.size(); ++i) expect_equal(outputs[i], expected[i], "request " + std::to_string(i));
  const std::unique_ptr<Engine> fp8 = make_engine({{"kv_cache_format", "fp8"}});
  EXPECT_NE(fp8->fingerprint().find("/kv-fp8/"), std::string::npos) << fp8->fingerprint();
}

TEST(Engine, RefusesBadRequestsByNameAndGoesOn) {
  const std::unique_ptr<Engine> engine = make_engine({{"max_queued_requests", "2"}});
  EXPECT_NE(refusal(*engine, {}).find("prompt"), std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt_tokens = {1, 9999}}).find("prompt_tokens[1] 9999"), std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt_tokens = {-1}}).find("-1"), std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt = "text"}).find("tokenizer.json"), std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt_tokens = std::vector<int32_t>(256, 1)}).find("max_model_len 256"),
            std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt_tokens = {1}, .sampling = {.temperature = -1}}).find("temperature -1"),
            std::string::npos);
  EXPECT_NE(refusal(*engine, {.prompt_tokens = {1}, .sampling = {.n = 3}}).find("max_queued_requests 2"),
            std::string::npos);
  EXPECT_EQ(run(*engine, {.prompt_tokens = {1, 2, 3}, .sampling = {.max_tokens = 4, .ignore_eos = true}})
                .completions[0]
                .tokens.size(),
            4u);
}

TEST(Engine, RefusesSettingsByName) {
  const auto error_of = [](Settings settings) {
    std::string error;
    EXPECT_EQ(Engine::create(settings, error), nullptr);
    return error;
  };
  EXPECT_NE(error_of({}).find("model"), std::string::npos);
  EXPECT_NE(error_of({{"model", "/nowhere"}}).find("/nowhere"), std::string::npos);
  EXPECT_NE(error_of({{"model", kGolden}, {"max_nun_seqs", "3"}}).find("max_num_seqs"), std::string::npos);
  EXPECT_NE(error_of({{"model", kGolden}, {"kv_cache_bytes", "1000"}}).find("kv_cache_bytes"), std::string::npos);
  EXPECT_NE(error_of({{"model", kGolden}, {"max_model_len", "100000000"}}).find("max_model_len"), std::string::npos);
}

TEST(Engine, CancelsDeadlinesAndShutdownEndEveryRequestOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 3; ++round) {
    std::unique_ptr<Engine> engine = make_engine({{"max_num_seqs", "4"}});
    std::vector<std::unique_ptr<RequestStream>> streams;
    for (int i = 0; i < 20; ++i) {
      Request request{.prompt_tokens = random_tokens(random, 1 + random() % 100, 256),
                      .sampling = {.max_tokens = 100, .ignore_eos = true}};
      if (i % 5 == 0) request.timeout_seconds = 0.001;
      std::string error;
      streams.push_back(engine->submit(std::move(request), error));
      ASSERT_NE(streams.back(), nullptr) << error;
      if (i % 3 == 0) streams[random() % streams.size()]->cancel();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * round));
    if (round == 2) engine->drain();
    engine.reset();
    for (const auto& stream : streams) {
      const RequestOutput output = read_all(*stream);
      EXPECT_TRUE(output.finished);
      ASSERT_EQ(output.completions.size(), 1u);
      EXPECT_TRUE(output.completions[0].finish_reason.has_value());
      EXPECT_FALSE(stream->next().has_value()) << "nothing follows the last update";
      stream->cancel();
    }
  }
}

TEST(Engine, ChoicesShareTheirPromptAndDiffer) {
  const std::unique_ptr<Engine> engine = make_engine({});
  std::mt19937 random(9);
  const Request one{.prompt_tokens = random_tokens(random, 50, 256), .sampling = {.seq_seed = 3, .max_tokens = 20}};
  Request many = one;
  many.sampling.n = 4;
  const int64_t before = engine->stats().prompt_tokens_computed;
  const RequestOutput outputs = run(*engine, many);
  EXPECT_LT(engine->stats().prompt_tokens_computed - before, 2 * 50);
  ASSERT_EQ(outputs.completions.size(), 4u);
  EXPECT_NE(outputs.completions[1].tokens, outputs.completions[2].tokens);
  EXPECT_EQ(run(*engine, one).completions[0].tokens, outputs.completions[0].tokens);
}

TEST(Engine, ReportsTheSeedThatRepeatsAnAnswer) {
  const std::unique_ptr<Engine> engine = make_engine({});
  const Request request{.prompt_tokens = {5, 6, 7}, .sampling = {.max_tokens = 16, .ignore_eos = true}};
  const RequestOutput first = run(*engine, request);
  Request again = request;
  again.sampling.seq_seed = first.seq_seed;
  EXPECT_EQ(run(*engine, again).completions[0].tokens, first.completions[0].tokens);
  EXPECT_NE(run(*engine, request).seq_seed, first.seq_seed);
  EXPECT_EQ(first.fingerprint, engine->fingerprint());
}

TEST(Engine, StopsAtAStopStringBeforeTheLength) {
  const std::unique_ptr<Engine> engine = make_engine({}, kTiny);
  const Request plain{.prompt = "Once upon a time", .sampling = {.temperature = 0, .max_tokens = 40}};
  const RequestOutput whole = run(*engine, plain);
  const std::string text = whole.completions[0].text;
  ASSERT_GT(text.size(), 20u);
  Request stopped = plain;
  stopped.sampling.stop = {text.substr(10, 5)};
  const size_t at = text.find(stopped.sampling.stop[0]);
  const RequestOutput cut = run(*engine, stopped);
  EXPECT_EQ(cut.completions[0].text, text.substr(0, at));
  EXPECT_EQ(cut.completions[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(cut.completions[0].stop_reason, stopped.sampling.stop[0]);
  EXPECT_LT(cut.completions[0].tokens.size(), whole.completions[0].tokens.size());
  // The stop string ends with the last token that the length allows: the stop is reported.
  stopped.sampling.max_tokens = static_cast<int64_t>(cut.completions[0].tokens.size());
  EXPECT_EQ(run(*engine, stopped).completions[0].finish_reason, FinishReason::kStop);
  stopped.sampling.include_stop_str_in_output = true;
  EXPECT_EQ(run(*engine, stopped).completions[0].text, text.substr(0, at + 5));
}

TEST(Engine, AConversationFindsItsOwnPast) {
  const std::unique_ptr<Engine> engine = make_engine({}, kTiny);
  std::string error;
  const auto first = engine->encode_chat(R"([{"role": "user", "content": "Hello, who are you?"}])", "{}", error);
  ASSERT_TRUE(first.has_value()) << error;
  const RequestOutput answer =
      run(*engine, {.prompt_tokens = *first, .sampling = {.temperature = 0, .max_tokens = 12}});
  std::vector<int32_t> second = *first;
  second.insert(second.end(), answer.completions[0].tokens.begin(), answer.completions[0].tokens.end());
  second.insert(second.end(), {10, 11, 12});
  const RequestOutput next = run(*engine, {.prompt_tokens = second, .sampling = {.max_tokens = 2}});
  EXPECT_EQ(next.num_cached_tokens, static_cast<int64_t>(first->size() + answer.completions[0].tokens.size() - 1));
  EXPECT_FALSE(engine->encode_chat("[{]", "{}", error).has_value());
  EXPECT_FALSE(error.empty());
}

TEST(LLM, GeneratesMoreThanTheQueueHoldsInOrder) {
  std::string error;
  const std::unique_ptr<LLM> llm = LLM::create(
      {{"model", kGolden}, {"max_model_len", "256"}, {"max_queued_requests", "3"}, {"max_num_seqs", "2"}}, error);
  ASSERT_NE(llm, nullptr) << error;
  std::mt19937 random(2);
  std::vector<Request> requests;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(
        {.prompt_tokens = {i}, .sampling = {.temperature = 0, .max_tokens = 1 + i % 4, .ignore_eos = true}});
  }
  size_t last = 0;
  const std::vector<RequestOutput> outputs = llm->generate(requests, error, [&](size_t finished, size_t total) {
    EXPECT_GE(finished, last);
    EXPECT_EQ(total, 30u);
    last = finished;
    return true;
  });
  ASSERT_EQ(outputs.size(), 30u) << error;
  EXPECT_EQ(last, 30u);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(outputs[i].prompt_tokens, std::vector<int32_t>{i});
    EXPECT_EQ(outputs[i].completions[0].tokens.size(), static_cast<size_t>(1 + i % 4));
  }
  requests[7].sampling.top_p = 7;
  EXPECT_TRUE(llm->generate(requests, error).empty());
  EXPECT_NE(error.find("request 7: top_p 7"), std::string::npos) << error;
}

}  // namespace
}  // namespace deepinfer
