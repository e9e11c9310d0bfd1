#include "scheduler/scheduler.h"

#include <random>

#include "scheduler/fake_disk.h"
#include "scheduler/fake_executor.h"

namespace deepinfer {
namespace {

CacheLayout test_layout() {
  return {{{"window", 8, 64, 20}, {"global", 16, 64, CacheGroup::kKeepAll}, {"tail", 4, 64, 2}}};
}

// A scheduler with a fake device, driven step by step, and what became of each request.
struct Harness final : SequenceObserver {
  struct Record {
    std::vector<int32_t> prompt;
    int64_t max_tokens = 0;
    std::vector<int32_t> answer;
    int64_t stop_after = -1;  // the observer ends the answer there, like a stop string
    bool aborted = false;
    int finished = 0;
    FinishReason reason = FinishReason::kFailed;
    int64_t cached = 0;
  };

  Harness(SchedulerOptions options, std::vector<int32_t> num_blocks, uint32_t seed, bool overlap = true,
          bool prefix_caching = true, std::vector<int32_t> host_blocks = {}, bool with_disk = false)
      : options_(options),
        cache(test_layout(), {.num_blocks = num_blocks,
                              .prefix_caching = prefix_caching,
                              .debug = true,
                              .num_host_blocks = host_blocks,
                              .disk = with_disk,
                              .fingerprint = cache_fingerprint(test_layout(), "test")}),
        scheduler(options, cache),
        executor(test_layout(), num_blocks, host_blocks, options.max_num_seqs, seed),
        disk(seed),
        overlap_(overlap) {}

  Result<SequenceHandle> submit(std::vector<int32_t> prompt, int64_t max_tokens, int32_t priority = 0,
                                uint64_t salt = 0) {
    auto input = std::make_unique<SequenceInput>();
    input->tokens = prompt;
    input->num_prompt_tokens = static_cast<int64_t>(prompt.size());
    input->max_tokens_total = std::min<int64_t>(input->num_prompt_tokens + max_tokens, options_.max_model_len);
    input->end_tokens = {kFakeEndToken};
    const int64_t limit = input->max_tokens_total - input->num_prompt_tokens;
    DI_ASSIGN_OR_RETURN(const SequenceHandle handle,
                        scheduler.submit({.input = std::move(input), .priority = priority, .salt = salt}));
    records[key(handle)] = {.prompt = std::move(prompt), .max_tokens = limit};
    return handle;
  }

  // One turn of the engine's loop. False: nothing to do.
  bool step() {
    disk.serve(cache, executor);
    const BallotRecord ballot = scheduler.ballot();
    const StepKind kind = vote({&ballot, 1}, voting, voting_state);
    const StepPlan* plan = &scheduler.plan(kind);
    if (plan->items.empty() && kind == StepKind::kPrefill) plan = &scheduler.plan(StepKind::kDecode);
    if (!plan->items.empty()) {
      executor.launch(*plan);
      ++in_flight;
    }
    const bool drain = plan->items.empty();
    // Now and then other ranks work and this one keeps up.
    if (executor.draw() % 8 == 0 && in_flight < 2) {
      executor.launch(scheduler.plan_placeholder());
      ++in_flight;
    }
    while (in_flight > (overlap_ && !drain ? 1 : 0)) {
      scheduler.apply(executor.collect(), *this);
      --in_flight;
    }
    return !scheduler.idle() || in_flight > 0;
  }
  void run() {
    for (int64_t steps = 0; step(); ++steps) ASSERT_LT(steps, 1000000) << "no progress";
  }

  bool on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs*) override {
    Record& record = records.at(key(sequence));
    record.answer.push_back(token);
    return static_cast<int64_t>(record.answer.size()) == record.stop_after;
  }
  void on_prompt_logprobs(SequenceHandle, std::span<const TokenLogprobs>) override { FAIL(); }
  void on_finished(const Sequence& sequence, const FinishedSequence& how) override {
    Record& record = records.at(key(sequence.handle));
    if (how.end_token >= 0) record.answer.push_back(how.end_token);
    ++record.finished;
    record.reason = how.reason;
    record.cached = sequence.num_cached_tokens;
  }

  static uint64_t key(SequenceHandle handle) { return static_cast<uint64_t>(handle.index) << 32 | handle.generation; }

  // Every request ended once, with the answer it has alone.
  void check_answers() {
    for (const auto& [handle, record] : records) {
      ASSERT_EQ(record.finished, 1);
      std::vector<int32_t> expected = fake_answer(record.prompt, record.max_tokens);
      if (record.stop_after >= 0 && record.stop_after < static_cast<int64_t>(expected.size()))
        expected.resize(record.stop_after);
      if (record.aborted) {
        ASSERT_LE(record.answer.size(), expected.size());
        expected.resize(record.answer.size());
      } else {
        const bool stopped =
            expected.back() == kFakeEndToken || static_cast<int64_t>(expected.size()) == record.stop_after;
        ASSERT_EQ(record.reason, stopped ? FinishReason::kStop : FinishReason::kLength);
      }
      ASSERT_EQ(record.answer, expected);
    }
  }
  void check_nothing_is_held() {
    cache.drop_all_units();
    ASSERT_EQ(scheduler.check(), "");
    for (size_t g = 0; g < test_layout().groups.size(); ++g) {
      ASSERT_EQ(cache.num_free(static_cast<int>(g)), cache.capacity(static_cast<int>(g))) << "group " << g;
    }
  }

  SchedulerOptions options_;
  KvCache cache;
  Scheduler scheduler;
  FakeExecutor executor;
  FakeDisk disk;
  VotingOptions voting{.low_occupancy = 2};
  VotingState voting_state;
  std::map<uint64_t, Record> records;
  int in_flight = 0;

 private:
  bool overlap_;
};

std::vector<int32_t> random_prompt(std::mt19937& random, int64_t length) {
  std::vector<int32_t> prompt(length);
  for (int32_t& token : prompt) token = 1000 + static_cast<int32_t>(random() % 3);
  return prompt;
}

const SchedulerOptions kSmall{.max_num_seqs = 6,
                              .max_queued = 64,
                              .max_num_batched_tokens = 24,
                              .max_model_len = 120,
                              .long_prefill_tokens = 60,
                              .prefix_unit_interval = 16};
const std::vector<int32_t> kPlenty = {200, 200, 200};

TEST(Scheduler, RunsOneRequestToItsEnd) {
  Harness h(kSmall, kPlenty, 1);
  ASSERT_TRUE(h.submit({1, 2, 3}, 50).ok());
  h.run();
  h.check_answers();
  h.check_nothing_is_held();
}

TEST(Scheduler, EndsAtLengthAndAtTheContextLimit) {
  Harness h(kSmall, kPlenty, 1);
  std::mt19937 random(3);
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(h.submit(random_prompt(random, 1 + random() % 119), 1 + random() % 200).ok());
  h.run();
  h.check_answers();
  h.check_nothing_is_held();
}

TEST(Scheduler, RefusesWhenTheQueueIsFullAndSaysSo) {
  SchedulerOptions options = kSmall;
  options.max_queued = 2;
  Harness h(options, kPlenty, 1);
  ASSERT_TRUE(h.submit({1}, 5).ok());
  ASSERT_TRUE(h.submit({2}, 5).ok());
  const auto refused = h.submit({3}, 5);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("max_queued_requests 2"), std::string::npos);
  h.run();
  ASSERT_TRUE(h.submit({3}, 5).ok());
  h.run();
  h.check_answers();
}

TEST(Scheduler, ServesARepeatedPromptFromTheCacheButForItsLastToken) {
  Harness h(kSmall, kPlenty, 1);
  std::mt19937 random(5);
  const std::vector<int32_t> prompt = random_prompt(random, 50);
  const SequenceHandle first = h.submit(prompt, 10).value();
  h.run();
  const SequenceHandle second = h.submit(prompt, 10).value();
  h.run();
  EXPECT_EQ(h.records.at(Harness::key(first)).cached, 0);
  EXPECT_EQ(h.records.at(Harness::key(second)).cached, 49);
  const SequenceHandle other_tenant = h.submit(prompt, 10, 0, /*salt=*/9).value();
  h.run();
  EXPECT_EQ(h.records.at(Harness::key(other_tenant)).cached, 0) << "another tenant sees nothing of it";
  h.check_answers();
}

TEST(Scheduler, TheThirdPromptOfAFamilyFindsWhatTheSecondLearnt) {
  SchedulerOptions options = kSmall;
  options.prefix_unit_interval = 0;
  Harness h(options, kPlenty, 1);
  std::mt19937 random(6);
  const std::vector<int32_t> common = random_prompt(random, 45);
  std::vector<int64_t> cached;
  for (const int32_t own : {11, 22, 33}) {
    std::vector<int32_t> prompt = common;
    prompt.insert(prompt.end(), {own, own, own});
    const SequenceHandle handle = h.submit(prompt, 4).value();
    h.run();
    cached.push_back(h.records.at(Harness::key(handle)).cached);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 45}));
  h.check_answers();
}

TEST(Scheduler, AMoreImportantRequestGoesFirstAndTakesRoom) {
  Harness h(kSmall, {15, 12, 70}, 2);
  std::mt19937 random(8);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(h.submit(random_prompt(random, 40), 40, /*priority=*/5).ok());
  for (int i = 0; i < 12; ++i) h.step();
  const SequenceHandle urgent = h.submit(random_prompt(random, 60), 20, /*priority=*/1).value();
  int64_t steps = 0;
  for (; h.records.at(Harness::key(urgent)).finished == 0; ++steps) ASSERT_TRUE(h.step());
  int finished = 0;
  for (const auto& [handle, record] : h.records) finished += record.finished;
  EXPECT_LE(finished, 8) << "it overtook those that were queued before";
  h.run();
  h.check_answers();
  h.check_nothing_is_held();
}

TEST(Scheduler, ALongPromptDoesNotKeepShortOnesWaiting) {
  SchedulerOptions options = kSmall;
  options.max_num_batched_tokens = 16;
  Harness h(options, kPlenty, 2);
  std::mt19937 random(9);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(h.submit(random_prompt(random, 100), 4).ok());
  const SequenceHandle quick = h.submit(random_prompt(random, 5), 2).value();
  for (int i = 0; i < 12 && h.records.at(Harness::key(quick)).finished == 0; ++i) h.step();
  EXPECT_EQ(h.records.at(Harness::key(quick)).finished, 1);
  h.run();
  h.check_answers();
}

// 10,000 requests in all: lengths, priorities, tenants, prefix families, stops, aborts, caches from roomy to the very
// least, overlap on and off, prefix cache on and off, with host memory and a failing disk below it.
TEST(Scheduler, TenThousandRandomRequestsEndOnceWithTheAnswerTheyHaveAlone) {
  int64_t preemptions = 0, cached = 0, wasted = 0, rows = 0, from_host = 0, from_disk = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    std::mt19937 random(round);
    SchedulerOptions options = kSmall;
    options.max_num_seqs = 1 + static_cast<int32_t>(random() % 8);
    options.max_num_batched_tokens = 1 + static_cast<int64_t>(random() % 40);
    options.prefix_unit_interval = static_cast<int64_t>(random() % 3) * 16;
    options.max_backtracking = static_cast<int64_t>(random() % 3);
    std::vector<int32_t> blocks = Scheduler::least_blocks(test_layout(), options);
    for (int32_t& count : blocks) count += static_cast<int32_t>(random() % (round % 2 == 0 ? 6 : 60));
    std::vector<int32_t> host_blocks;
    if (round % 4 >= 2)
      host_blocks = {20 + static_cast<int32_t>(random() % 60), 20 + static_cast<int32_t>(random() % 60), 40};
    Harness h(options, blocks, round, /*overlap=*/round % 3 != 0, /*prefix_caching=*/round % 5 != 0, host_blocks,
              /*with_disk=*/round % 4 == 3);
    h.voting = {.all_interval = 1 + static_cast<int64_t>(random() % 20),
                .any_interval = 1 + static_cast<int64_t>(random() % 20),
                .low_occupancy = static_cast<int32_t>(random() % 3)};
    std::vector<std::vector<int32_t>> families;
    for (int i = 0; i < 4; ++i) families.push_back(random_prompt(random, 10 + random() % 60));
    std::vector<SequenceHandle> handles;
    int64_t without_prefill = 0;
    for (int submitted = 0; submitted < 250 || !h.scheduler.idle();) {
      for (int burst = static_cast<int>(random() % 4); burst > 0 && submitted < 250; --burst) {
        std::vector<int32_t> prompt = families[random() % families.size()];
        if (random() % 3 == 0) prompt = random_prompt(random, 1 + random() % 110);
        if (random() % 2 == 0) prompt.resize(1 + random() % prompt.size());
        const std::vector<int32_t> own = random_prompt(random, random() % 20);
        prompt.insert(prompt.end(), own.begin(), own.end());
        if (prompt.size() > 119) prompt.resize(119);
        const auto handle = h.submit(prompt, 1 + random() % 40, static_cast<int32_t>(random() % 3), random() % 2);
        if (!handle.ok()) break;  // the queue is full
        ++submitted;
        handles.push_back(handle.value());
        if (random() % 6 == 0)
          h.records.at(Harness::key(handle.value())).stop_after = 1 + static_cast<int64_t>(random() % 10);
      }
      if (random() % 10 == 0 && !handles.empty()) {
        const SequenceHandle handle = handles[random() % handles.size()];
        Harness::Record& record = h.records.at(Harness::key(handle));
        if (record.finished == 0) record.aborted = true;
        h.scheduler.abort(handle, FinishReason::kAborted, h);
      }
      const int64_t prefills = h.scheduler.counters().steps[static_cast<int>(StepKind::kPrefill)];
      const bool waiting = h.scheduler.ballot().has_waiting;
      h.step();
      const bool prefilled = h.scheduler.counters().steps[static_cast<int>(StepKind::kPrefill)] > prefills;
      without_prefill = waiting && !prefilled ? without_prefill + 1 : 0;
      // Besides the votes, blocks have to come free: nobody decodes longer than the context.
      ASSERT_LE(without_prefill, h.voting.any_interval + options.max_model_len) << "round " << round;
      if (random() % 16 == 0) {
        ASSERT_EQ(h.scheduler.check(), "") << "round " << round;
      }
      if (testing::Test::HasFailure()) FAIL() << "round " << round;
    }
    h.run();
    ASSERT_NO_FATAL_FAILURE(h.check_answers()) << "round " << round;
    preemptions += h.scheduler.counters().preemptions;
    cached += h.scheduler.counters().cached_tokens;
    wasted += h.scheduler.counters().wasted_rows;
    rows += h.executor.rows_checked();
    from_host += h.cache.counters().host_hit_tokens;
    from_disk += h.cache.counters().disk_hit_tokens;
    ASSERT_NO_FATAL_FAILURE(h.check_nothing_is_held()) << "round " << round;
  }
  // The test would prove little if these had not happened.
  EXPECT_GT(preemptions, 500);
  EXPECT_GT(cached, 10000);
  EXPECT_GT(wasted, 500);
  EXPECT_GT(rows, 1000000);
  EXPECT_GT(from_host, 1000);
  EXPECT_GT(from_disk, 100);
}

}  // namespace
}  // namespace deepinfer
