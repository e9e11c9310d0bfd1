#include "gpu/results.h"

#include <algorithm>

namespace deepinfer::bench {

double KernelRow::floor_us(const Ceilings& c) const {
  const double memory = c.copy_gbps > 0 ? bytes / c.bandwidth() * 1e6 : 0;
  const double arithmetic = c.bf16_tflops > 0 ? flops / c.bf16_tflops * 1e-6 : 0;
  return std::max(memory, arithmetic);
}

const char* Goal::level() const {
  const auto reached = [&](double wanted) { return more_is_better ? value >= wanted : value <= wanted; };
  return reached(gold) ? "gold" : reached(silver) ? "silver" : reached(bronze) ? "bronze" : "-";
}

const KernelRow* Results::find(const std::string& section, const std::string& name, int64_t num_rows) const {
  for (const KernelRow& row : rows) {
    if (row.section == section && row.name == name && row.rows == num_rows && row.timing.us > 0) return &row;
  }
  return nullptr;
}

}  // namespace deepinfer::bench
