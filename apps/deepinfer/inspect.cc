// `deepinfer inspect`: what a checkpoint holds and whether it fits this machine, without loading it.
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "base/memory_info.h"
#include "checkpoint/inventory.h"
#include "deepinfer/common.h"
#include "model/kv_layout.h"
#include "model/layer_plan.h"

namespace deepinfer::app {
namespace {

struct Flags {
  std::string model;
  bool json = false;
};

std::string readable_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000 && unit < 4) value /= 1000, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// Whole bytes that a token adds for good.
uint64_t token_bytes(const KvLayout& cache) { return static_cast<uint64_t>(cache.bytes_per_token()); }

void print_json(const Checkpoint& checkpoint, const Inventory& inventory, const KvLayout& cache, uint64_t available) {
  nlohmann::ordered_json out;
  out["folder"] = checkpoint.folder();
  out["shards"] = checkpoint.shards().size();
  out["tensors"] = inventory.total.num_tensors;
  out["bytes"] = inventory.total.bytes;
  for (int kind = 0; kind < kNumTensorKinds; ++kind) {
    const TensorTotals& totals = inventory.kinds[kind];
    out["kinds"][std::string(name_of(static_cast<TensorKind>(kind)))] = {{"tensors", totals.num_tensors},
                                                                         {"bytes", totals.bytes}};
  }
  out["resident_bytes"] = inventory.resident_bytes;
  out["mapped_bytes"] = inventory.mapped_bytes;
  out["unused_bytes"] = inventory.unused_bytes;
  out["cache_bytes_per_token"] = token_bytes(cache);
  out["cache_bytes_per_sequence"] = cache.bytes_per_sequence();
  out["available_memory_bytes"] = available;
  out["fits"] = inventory.resident_bytes + cache.bytes_per_sequence() < available;
  std::printf("%s\n", out.dump(1).c_str());
}

void print_config(const ModelConfig& config, const LayerPlan& plan) {
  std::printf("%lld layers, hidden %lld, vocabulary %lld, context %lld\n",
              static_cast<long long>(config.num_hidden_layers), static_cast<long long>(config.hidden_size),
              static_cast<long long>(config.vocab_size), static_cast<long long>(config.max_position_embeddings));
  std::printf("attention: %lld heads of %lld, window %lld, top %lld of the compressed rows; ratios ",
              static_cast<long long>(config.num_attention_heads), static_cast<long long>(config.head_dim),
              static_cast<long long>(config.sliding_window), static_cast<long long>(config.index_topk));
  for (const LayerRole& role : plan.layers) std::printf("%d", role.compress_ratio);
  std::printf("\nexperts: %lld, %lld a token, and a shared one, inner size %lld\n",
              static_cast<long long>(config.n_routed_experts), static_cast<long long>(config.num_experts_per_tok),
              static_cast<long long>(config.moe_intermediate_size));
  if (config.engram.enabled()) {
    std::printf("Engram: %lld tables, up to %lld tokens back\n", static_cast<long long>(config.engram.num_tables()),
                static_cast<long long>(config.engram.max_ngram_size - 1));
  }
  if (config.draft.num_stages > 0) {
    std::printf("drafter: %lld stages, blocks of %lld (in the file, not used yet)\n",
                static_cast<long long>(config.draft.num_stages), static_cast<long long>(config.draft.block_size));
  }
}

void print_inventory(const Checkpoint& checkpoint, const Inventory& inventory) {
  std::printf("\n%-28s %9s %12s %7s\n", "kind", "tensors", "bytes", "share");
  for (int kind = 0; kind < kNumTensorKinds; ++kind) {
    const TensorTotals& totals = inventory.kinds[kind];
    if (totals.num_tensors == 0) continue;
    std::printf("%-28s %9lld %12s %6.1f%%\n", std::string(name_of(static_cast<TensorKind>(kind))).c_str(),
                static_cast<long long>(totals.num_tensors), readable_bytes(totals.bytes).c_str(),
                100.0 * totals.bytes / inventory.total.bytes);
  }
  std::printf("%-28s %9lld %12s   in %zu file%s\n", "all", static_cast<long long>(inventory.total.num_tensors),
              readable_bytes(inventory.total.bytes).c_str(), checkpoint.shards().size(),
              checkpoint.shards().size() == 1 ? "" : "s");
}

Status inspect(const Flags& flags) {
  DI_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(flags.model));
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(flags.model + "/config.json"));
  const LayerPlan plan = LayerPlan::make(config);
  const Inventory inventory = take_inventory(checkpoint);
  const KvLayout cache = KvLayout::make(config, Numerics::kOfficial);
  const uint64_t available = memory_info("MemAvailable");
  if (flags.json) {
    print_json(checkpoint, inventory, cache, available);
    return Status();
  }
  print_config(config, plan);
  print_inventory(checkpoint, inventory);
  std::printf("\nmemory: %s of weights are copied, %s stay in the files and are read row by row\n",
              readable_bytes(inventory.resident_bytes).c_str(), readable_bytes(inventory.mapped_bytes).c_str());
  std::printf("        a sequence takes %s and %s a token\n", readable_bytes(cache.bytes_per_sequence()).c_str(),
              readable_bytes(token_bytes(cache)).c_str());
  const uint64_t needed = inventory.resident_bytes + cache.bytes_per_sequence();
  if (needed >= available) {
    std::printf("this machine has %s free: too little; %s more are needed\n", readable_bytes(available).c_str(),
                readable_bytes(needed - available).c_str());
  } else {
    const uint64_t tokens = (available - needed) / std::max<uint64_t>(1, token_bytes(cache));
    std::printf("this machine has %s free: it fits, with room for %s tokens of context\n",
                readable_bytes(available).c_str(),
                tokens > 10'000'000 ? "more than 10 million" : fmt::format("about {}", tokens).c_str());
  }
  return Status();
}

}  // namespace

Command add_inspect(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("inspect", "What a checkpoint holds and whether it fits this machine");
  command->add_option("model", flags->model, "Folder of the checkpoint")->envname("DEEPINFER_MODEL")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  return [flags] {
    const Status status = inspect(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
