// Measures the tiers of the KV cache: how fast a unit comes back from host memory and from disk (with the files in the
// page cache, and after they were dropped from it), how fast it is saved, how long opening takes, and what the cache's
// own decisions cost. Wall-clock times; the median over units counts.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cache/kv_cache.h"
#include "cpu/measure.h"
#include "transfer/disk_store.h"
#include "transfer/host_blocks.h"
#include "transfer/tier_worker.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

struct Settings {
  std::string folder;
  int64_t block_bytes = 128 * 890;
  int32_t blocks_per_unit = 256;
  int32_t num_units = 16;
};

template <typename Body>
double processor_seconds_of(Body&& body) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  body();
  return now() - begin;
}

void report(const char* what, const bench::Windows& windows, const Settings& s) {
  const double megabytes = 1e-6 * static_cast<double>(s.block_bytes) * s.blocks_per_unit;
  fmt::print("{:44} {:8.0f} MB/s, one in ten over {:8.0f}; {:8.2f} ms a unit\n", what, windows.rate_p50(megabytes),
             windows.rate_p90(megabytes), 1e3 * windows.p50());
}

ContentKey key_of(int unit, int block) { return {static_cast<uint64_t>(unit), static_cast<uint64_t>(block)}; }

DiskJob job_of(DiskJob::Kind kind, int unit, const Settings& s) {
  DiskJob job{.id = unit, .kind = kind, .unit = key_of(unit, 1 << 30), .tokens = {unit}};
  for (int32_t b = 0; b < s.blocks_per_unit; ++b) job.blocks.push_back({0, b, key_of(unit, b)});
  return job;
}

void drop_from_page_cache(const std::string& folder) {
  ::sync();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    if (file < 0) continue;
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void measure_bytes(const Settings& s) {
  const CacheLayout layout{{{.name = "rows", .tokens_per_block = 128, .block_bytes = s.block_bytes}}};
  const auto host = HostBlocks::allocate(layout, {s.blocks_per_unit}).value();
  const auto device = HostBlocks::allocate(layout, {s.blocks_per_unit}).value();
  std::mt19937_64 random(1);
  for (int32_t b = 0; b < s.blocks_per_unit; ++b) {
    const auto block = host->block(0, b);
    for (size_t at = 0; at + 8 <= block.size(); at += 8) {
      const uint64_t value = random();
      std::memcpy(block.data() + at, &value, 8);
    }
  }
  bench::Windows from_host, saving, warm, cold;
  for (int i = 0; i < s.num_units; ++i)
    from_host.add(bench::seconds_of([&] {
      for (int32_t b = 0; b < s.blocks_per_unit; ++b)
        std::memcpy(device->block(0, b).data(), host->block(0, b).data(), s.block_bytes);
    }));
  report("host memory to host memory (a CPU device)", from_host, s);

  const DiskStoreOptions options{.directory = s.folder, .fingerprint = {3, 4}};
  const auto run = [&](DiskJob::Kind kind, bench::Windows& windows, TierWorker& worker) {
    for (int unit = 0; unit < s.num_units; ++unit) {
      windows.add(bench::seconds_of([&] {
        worker.submit(job_of(kind, unit, s));
        worker.drain();
      }));
    }
    std::vector<DiskJobResult> results;
    worker.poll(results);
    for (const DiskJobResult& result : results)
      if (!result.ok) fmt::print("job {} failed\n", result.id);
  };
  {
    TierWorker worker(DiskStore::open(options), *host);
    run(DiskJob::Kind::kSave, saving, worker);
    report("host memory to disk, durable", saving, s);
    run(DiskJob::Kind::kLoad, warm, worker);
    report("disk to host memory, files in the page cache", warm, s);
    drop_from_page_cache(s.folder);
    run(DiskJob::Kind::kLoad, cold, worker);
    report("disk to host memory, files not in the cache", cold, s);
  }
  for (const char* how : {"files in the page cache", "files not in the cache"}) {
    const double seconds = bench::seconds_of([&] { DiskStore::open(options); });
    fmt::print("opening {} blocks and {} units, {}: {:.1f} ms\n", s.blocks_per_unit * s.num_units, s.num_units, how,
               1e3 * seconds);
    drop_from_page_cache(s.folder);
  }
}

// What the engine's thread pays for a unit of so many tokens.
void measure_decisions(int64_t tokens) {
  const CacheLayout layout{{{.name = "rows", .tokens_per_block = 128, .block_bytes = 1},
                            {.name = "window", .tokens_per_block = 64, .block_bytes = 1, .retention = 128}}};
  const auto blocks = static_cast<int32_t>(tokens / 128 + 2);
  KvCache cache(layout, {.num_blocks = {blocks, 2 * blocks}, .num_host_blocks = {4 * blocks, 8 * blocks}});
  bench::Windows publishing, saving, loading, matching;
  std::vector<BlockTransfer> transfers;
  std::vector<int32_t> text(tokens);
  for (int round = 0; round < 20; ++round) {
    std::iota(text.begin(), text.end(), round * 7919);
    BlockTable table = cache.make_table(tokens);
    // All blocks are needed: the unit before is saved and leaves.
    saving.add(processor_seconds_of([&] { cache.reserve(table, tokens); }));
    publishing.add(processor_seconds_of([&] { cache.publish(table, text, 0); }));
    cache.release(table, -1);
    cache.take_transfers(round, transfers);
    cache.steps_done(round);
    transfers.clear();
    if (round == 0) continue;
    std::iota(text.begin(), text.end(), (round - 1) * 7919);
    PrefixMatch match;
    matching.add(processor_seconds_of([&] { match = cache.match(text, tokens, 0); }));
    int64_t load = -1;
    loading.add(processor_seconds_of([&] { load = cache.begin_load(match, table); }));
    if (load >= 0) cache.load_state(load);
    cache.release(table, -1);
    cache.take_transfers(1000 + round, transfers);
    cache.steps_done(1000 + round);
    transfers.clear();
  }
  fmt::print(
      "{:>9} tokens: match {:7.1f} us, publish {:7.1f} us, save and evict {:8.1f} us, load, save and evict {:8.1f} "
      "us\n",
      tokens, 1e6 * matching.p50(), 1e6 * publishing.p50(), 1e6 * saving.p50(), 1e6 * loading.p50());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures the tiers of the KV cache");
  app.add_option("folder", settings.folder, "an empty folder on the disk to measure")->required();
  app.add_option("--block-bytes", settings.block_bytes, "bytes of a block")->check(CLI::PositiveNumber);
  app.add_option("--blocks", settings.blocks_per_unit, "blocks of a unit")->check(CLI::PositiveNumber);
  app.add_option("--units", settings.num_units, "units")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  measure_bytes(settings);
  for (const int64_t tokens : {1000, 8000, 64000, 512000}) measure_decisions(tokens);
  return 0;
}
