#include "model/kv_layout.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr int32_t kRowShift = 6;      // window and compressed rows in a block
constexpr int32_t kOpenRowShift = 4;  // (value | gate) rows in a block

// Of window rows, compressed rows and index keys.
struct RowTypes {
  ops::RowType window, compressed, index_key;

  static RowTypes of(Numerics numerics, KvFormat format) {
    using enum ops::RowType;
    if (!Rounding::of(numerics).round_to_bf16) return {kF32, kF32, kF32};
    switch (format) {
      case KvFormat::kBf16:
        return {kBf16, kBf16, kBf16};
      case KvFormat::kFp8:
        return {kE4m3Group32, kE4m3Group32, kE4m3Group32};
      case KvFormat::kFp4:
        return {kE4m3Group32, kE2m1Group16, kE2m1Group32};
    }
    DI_CHECK(false, "cache format {}", static_cast<int>(format));
  }
};

// Adds a member to the group and returns its index.
int add(KvLayout& layout, int group, ops::RowType type, int64_t width, int32_t block_shift) {
  CacheGroup& g = layout.cache.groups[group];
  layout.members.push_back({group, g.block_bytes, type, width, block_shift});
  g.block_bytes += ops::row_bytes(type, width) << block_shift;
  return static_cast<int>(layout.members.size()) - 1;
}

int add_group(KvLayout& layout, std::string name, int64_t tokens_per_block, int64_t retention) {
  layout.cache.groups.push_back({std::move(name), static_cast<int32_t>(tokens_per_block), 0, retention});
  return static_cast<int>(layout.cache.groups.size()) - 1;
}

}  // namespace

KvLayout KvLayout::make(const ModelConfig& config, Numerics numerics, KvFormat format) {
  DI_CHECK(check_kv_format(format, numerics).ok(), "packed rows with {} numerics", name_of(numerics));
  KvLayout layout;
  layout.format = format;
  const RowTypes types = RowTypes::of(numerics, format);
  const LayerPlan plan = LayerPlan::make(config);
  const size_t num_layers = plan.layers.size();
  for (std::vector<int>* list : {&layout.window, &layout.compressed, &layout.index_keys, &layout.open_group}) {
    list->assign(num_layers, -1);
  }
  const int window = add_group(layout, "window", int64_t{1} << kRowShift, config.sliding_window);
  for (size_t l = 0; l < num_layers; ++l)
    layout.window[l] = add(layout, window, types.window, config.head_dim, kRowShift);

  int64_t largest_ratio = 1;
  std::map<int, int> global;  // by ratio
  for (size_t l = 0; l < num_layers; ++l) {
    if (!plan.layers[l].is_kv_source) continue;
    const int ratio = plan.layers[l].compress_ratio;
    largest_ratio = std::max<int64_t>(largest_ratio, ratio);
    if (!global.contains(ratio)) {
      global[ratio] =
          add_group(layout, fmt::format("global_{}", ratio), int64_t{ratio} << kRowShift, CacheGroup::kKeepAll);
    }
    layout.compressed[l] = add(layout, global[ratio], types.compressed, config.head_dim, kRowShift);
    layout.index_keys[l] = add(layout, global[ratio], types.index_key, config.index_head_dim, kRowShift);
  }
  if (largest_ratio > 1) {
    const int tail = add_group(layout, "tail", int64_t{1} << kOpenRowShift, largest_ratio);
    for (size_t l = 0; l < num_layers; ++l) {
      if (!plan.layers[l].is_kv_source || plan.layers[l].compress_ratio == 1) continue;
      layout.open_group[l] = add(layout, tail, ops::RowType::kF32, 2 * config.head_dim, kOpenRowShift);
    }
  }
  return layout;
}

double KvLayout::bytes_per_token() const {
  double bytes = 0;
  for (const CacheGroup& group : cache.groups) {
    if (group.retention == CacheGroup::kKeepAll)
      bytes += static_cast<double>(group.block_bytes) / group.tokens_per_block;
  }
  return bytes;
}

int64_t KvLayout::bytes_per_sequence() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : cache.groups) {
    if (group.retention == CacheGroup::kKeepAll) continue;
    // The positions that are kept, from the last one of a block on.
    const int64_t blocks = (group.retention + group.tokens_per_block - 2) / group.tokens_per_block + 1;
    bytes += blocks * group.block_bytes;
  }
  return bytes;
}

}  // namespace deepinfer
