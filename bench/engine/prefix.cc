// What a known beginning saves: time to first token from the device's cache, host memory and disk, against computing
// it.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "engine/sections.h"
#include "engine/statistics.h"

namespace deepinfer::bench {
namespace {

constexpr uint64_t kFloods = 3;  // sets of other prompts that push the first one out of the device's cache

struct Row {
  std::vector<double> first;  // seconds
  int64_t cached = 0, tokens = 0;
};

// One request after the other, so that each is alone.
Status send(Engine& engine, std::vector<Request> requests, Row& row) {
  for (Request& request : requests) request.sampling.max_tokens = 1;
  DI_ASSIGN_OR_RETURN(const LoadRun run, run_closed(engine, std::move(requests), 1));
  DI_RETURN_IF_ERROR(check_answers(run.answers));
  for (const Answer& answer : run.answers) {
    row.first.push_back(answer.first_token_seconds());
    row.cached += answer.num_cached_tokens;
    row.tokens += answer.num_prompt_tokens;
  }
  return Status();
}

// Known prompts and such as were never sent, in turns: what the machine does meanwhile meets both alike.
Status send_in_turns(Engine& engine, std::vector<Request> known, std::vector<Request> fresh, Row& found, Row& cold) {
  for (size_t i = 0; i < known.size(); ++i) {
    std::vector<Request> one(1);
    one[0] = std::move(known[i]);
    DI_RETURN_IF_ERROR(send(engine, std::move(one), found));
    one.assign(1, std::move(fresh[i]));
    DI_RETURN_IF_ERROR(send(engine, std::move(one), cold));
  }
  if (cold.cached != 0) return io_error("a prompt that was never sent came from the cache");
  return Status();
}

std::vector<Request> prompts(const Engine& engine, const EngineBenchOptions& options, uint64_t first) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < options.repeats; ++i) {
    // A salt of its own: stories begin alike.
    const uint64_t number = options.seed * 65537 + first + static_cast<uint64_t>(i);
    requests.push_back(make_request(engine, number, options.long_context, fmt::format("prefix-{}", number)));
  }
  return requests;
}

// The smallest cache that an engine takes, so that prefixes leave the device soon.
Result<std::unique_ptr<Engine>> make_small(const MakeEngine& make_engine, Settings settings, int64_t& bytes) {
  Status why;
  for (bytes = int64_t{1} << 20; bytes <= int64_t{1} << 36; bytes *= 2) {
    Settings all = settings;
    all.emplace_back("kv_cache_bytes", std::to_string(bytes));
    Result<std::unique_ptr<Engine>> engine = make_engine(all);
    if (engine.ok()) return engine;
    why = engine.status().with_context("a small cache");
  }
  return why;
}

Json report(const char* name, const Row& row, const Row& cold, std::string how) {
  const double share = static_cast<double>(row.cached) / static_cast<double>(std::max<int64_t>(1, row.tokens));
  const double times = median(cold.first) / median(row.first);
  std::printf("%-14s %10.2f %10.2f-%-10.2f %8.3f %8.1fx %10.1f\n", name, median(row.first) * 1e3,
              percentile(row.first, 0) * 1e3, percentile(row.first, 1) * 1e3, share, times, median(cold.first) * 1e3);
  std::fflush(stdout);
  return {{"prefix", name},
          {"first_token_s", spread(row.first)},
          {"cold_first_token_s", spread(cold.first)},
          {"cached_share_of_tokens", share},
          {"times_faster_than_cold", times},
          {"how", std::move(how)}};
}

}  // namespace

Result<Json> bench_prefix(const EngineBenchOptions& options, const MakeEngine& make_engine) {
  std::printf(
      "\nprefix of %ld tokens: time to first token of one request alone, against prompts never sent, in turns\n",
      options.long_context);
  std::printf("%-14s %10s %21s %8s %9s %10s\n", "found", "ms", "least-most", "cached", "faster", "cold ms");
  Json out = Json::array();
  {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine({}));
    Row sent, found, cold;
    DI_RETURN_IF_ERROR(send(*engine, prompts(*engine, options, 0), sent));
    DI_RETURN_IF_ERROR(
        send_in_turns(*engine, prompts(*engine, options, 0), prompts(*engine, options, 500), found, cold));
    out.push_back(report("on the device", found, cold, "prompts sent before"));
  }
  const Settings small = {{"max_num_seqs", "1"}, {"max_model_len", std::to_string(options.long_context + 64)}};
  {
    Settings settings = small;
    settings.emplace_back("host_cache_bytes", "1GiB");
    int64_t bytes = 0;
    const auto push_out = [&](Engine& engine) -> Status {
      Row ignored;
      for (uint64_t i = 0; i <= kFloods; ++i) {
        DI_RETURN_IF_ERROR(send(engine, prompts(engine, options, 1000 * i), ignored));
      }
      return Status();
    };
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_small(make_engine, settings, bytes));
    Row found, cold, gone;
    DI_RETURN_IF_ERROR(push_out(*engine));
    DI_RETURN_IF_ERROR(
        send_in_turns(*engine, prompts(*engine, options, 0), prompts(*engine, options, 500), found, cold));
    // Without the tier the same requests must find less, or it was not the tier that was measured.
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> control, make_small(make_engine, small, bytes));
    DI_RETURN_IF_ERROR(push_out(*control));
    DI_RETURN_IF_ERROR(send(*control, prompts(*control, options, 0), gone));
    Json row = report("host memory", found, cold,
                      fmt::format("cache of {} bytes, 1 GiB of host memory; pushed out by {} other prompts", bytes,
                                  kFloods * options.repeats));
    row["cached_share_without_the_tier"] = static_cast<double>(gone.cached) / static_cast<double>(gone.tokens);
    if (gone.cached >= found.cached) row["note"] = "not restored: the device's cache still held the prompts";
    out.push_back(std::move(row));
  }
  {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / fmt::format("deepinfer-bench-{}", static_cast<long>(getpid()));
    std::filesystem::create_directories(folder);
    const Settings settings = {{"host_cache_bytes", "1GiB"}, {"disk_cache_dir", folder.string()}};
    Row sent, warm_up, found, cold;
    {
      DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(settings));
      DI_RETURN_IF_ERROR(send(*engine, prompts(*engine, options, 0), sent));
    }  // saves what it holds
    DI_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_engine(settings));
    DI_RETURN_IF_ERROR(send(*engine, prompts(*engine, options, 2500), warm_up));
    DI_RETURN_IF_ERROR(
        send_in_turns(*engine, prompts(*engine, options, 0), prompts(*engine, options, 500), found, cold));
    engine.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    out.push_back(report("on disk", found, cold,
                         "a new engine on the folder of one that had the prompts; the system's file cache is warm"));
  }
  return out;
}

}  // namespace deepinfer::bench
