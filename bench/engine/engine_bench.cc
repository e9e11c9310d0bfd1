#include "engine/engine_bench.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "engine/sections.h"

namespace deepinfer::bench {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

double load_average() {
  std::ifstream file("/proc/loadavg");
  double load = -1;
  file >> load;
  return load;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

struct Section {
  const char* name;
  Result<Json> (*run)(const EngineBenchOptions&, const MakeEngine&);
};
constexpr Section kSections[] = {{"prefill", bench_prefill},
                                 {"decode", bench_decode},
                                 {"latency", bench_latency},
                                 {"prefix", bench_prefix},
                                 {"replay", bench_replay}};

}  // namespace

Status run_engine_bench(const EngineBenchOptions& options, const MakeEngine& make_engine, const Settings& reported) {
  Json out;
  out["program"] = "deepinfer bench engine";
  out["date"] = today();
  out["commit"] = options.commit;
  out["hardware"] = fmt::format("{}, {} threads", processor(), std::thread::hardware_concurrency());
  {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine({}));
    out["device"] = engine->device_description();
    out["fingerprint"] = engine->fingerprint();
  }
  for (const auto& [name, value] : reported) out["settings"][name] = value;
  out["seed"] = options.seed;
  out["repeats"] = options.repeats;
  out["load_average_at_start"] = load_average();
  out["speculation"] = "not built: verified rows hold no drafts, full acceptance equals delivered";
  std::printf("engine benchmark, %s, commit %s, %ld repeats, seed %lu\n%s; %s\n%s\n",
              out["date"].get<std::string>().c_str(), options.commit.c_str(), options.repeats, options.seed,
              out["hardware"].get<std::string>().c_str(), out["device"].get<std::string>().c_str(),
              out["fingerprint"].get<std::string>().c_str());
  if (load_average() > 1) std::printf("note: the machine's load is %.1f: others use it too\n", load_average());
  for (const Section& section : kSections) {
    const auto& wanted = options.sections;
    if (std::find(wanted.begin(), wanted.end(), section.name) == wanted.end()) continue;
    DI_ASSIGN_OR_RETURN(out[section.name], section.run(options, make_engine));
  }
  out["load_average_at_end"] = load_average();
  if (options.json_path.empty()) return Status();
  std::ofstream file(options.json_path);
  file << out.dump(1) << "\n";
  if (!file.flush()) return io_error("cannot write {}", options.json_path);
  return Status();
}

}  // namespace deepinfer::bench
