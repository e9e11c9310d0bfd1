// Plans a call of the linear op for the vector kernels: repacks inputs, cuts the tasks into units (row tiles x tokens,
// never columns), runs all of them in one parallel region, and stores the results.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backends/cpu/linear.h"
#include "backends/cpu/linear_pack.h"
#include "backends/cpu/linear_unit.h"
#include "base/check.h"
#include "base/number_formats.h"

namespace deepinfer::cpu {
namespace {

using ops::LinearTask;

// Work below these runs in the calling thread: waking the others costs some microseconds.
constexpr int64_t kFewProducts = 1 << 18;
constexpr int64_t kFewInputs = 1 << 16;
constexpr int kRepackTokens = 8;  // tokens of one repacking step

// Memory that only grows.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  std::byte* at_least(int64_t bytes) {
    if (bytes > bytes_) {
      std::free(data_);
      bytes_ = (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
      data_ = static_cast<std::byte*>(std::aligned_alloc(kLineBytes, bytes_));
      DI_CHECK(data_ != nullptr, "no memory for {} bytes of inputs", bytes_);
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// An input in the order the kernels read it: for the tokens of each unit [group][token][32], as fp32 or BF16.
struct Input {
  MatrixView<const float> source;
  bool is_bf16;
  float scale;         // fp32 only
  int64_t offset;      // in the scratch
  int64_t first_step;  // among the repacking steps of the call
  int unit_tokens;
  const std::byte* data;

  int64_t value_bytes() const { return is_bf16 ? 2 : 4; }
  // The tokens of the unit that begins at this one.
  int64_t unit_tokens_at(int64_t first) const { return std::min<int64_t>(unit_tokens, source.rows - first); }
  int64_t bytes() const { return source.rows * source.cols * value_bytes(); }
  // A single fp32 row already is in that order.
  bool is_in_place() const { return source.rows == 1 && !is_bf16 && scale == 1.0f; }
  int64_t num_steps() const { return is_in_place() ? 0 : (source.rows + kRepackTokens - 1) / kRepackTokens; }
};

struct PlannedTask {
  const LinearTask* task;
  MatrixView<float> out;
  LinearUnitFunction function;
  size_t input;  // index
  int64_t num_tiles;
  int64_t first_unit;  // among the units of the call
  int64_t num_row_units;
  int unit_tokens;
};

struct Plan {
  std::vector<Input> inputs;
  std::vector<PlannedTask> tasks;
  int64_t num_units = 0;
  int unit_tiles = 0;
  int64_t num_products = 0;
  int64_t num_steps = 0;
  int64_t num_inputs = 0;  // values to repack
  int64_t scratch_bytes = 0;
  Scratch scratch;
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t add_input(Plan& plan, const MatrixView<const float>& source, bool is_bf16, float scale) {
  for (size_t i = 0; i < plan.inputs.size(); ++i) {  // the projections of one layer often share an input
    const Input& other = plan.inputs[i];
    if (other.source.data == source.data && other.source.stride == source.stride && other.source.rows == source.rows &&
        other.source.cols == source.cols && other.is_bf16 == is_bf16 && other.scale == scale) {
      return i;
    }
  }
  Input input = {source, is_bf16, scale, plan.scratch_bytes, plan.num_steps, 0, nullptr};
  if (!input.is_in_place()) {
    plan.scratch_bytes += divide_up(input.bytes(), kLineBytes) * kLineBytes;
    plan.num_inputs += source.rows * source.cols;
    plan.num_steps += input.num_steps();
  }
  plan.inputs.push_back(input);
  return plan.inputs.size() - 1;
}

void add_task(Plan& plan, const LinearTask& task, const LinearUnitFunctions& fp32, const LinearUnitFunctions* bf16) {
  if (task.out.rows == 0 || task.weight->rows == 0) return;
  const auto format = static_cast<size_t>(task.weight->format);
  const bool is_bf16 = task.input_is_bf16 && bf16 != nullptr && bf16->by_format[format] != nullptr;
  PlannedTask planned = {};
  planned.task = &task;
  const LinearUnitFunctions& functions = is_bf16 ? *bf16 : fp32;
  planned.function = functions.by_format[format];
  planned.out = task.out.f32();
  planned.input = add_input(plan, task.in.f32().row_range(0, task.out.rows), is_bf16, functions.input_scale[format]);
  planned.num_tiles = divide_up(task.weight->rows, kTileRows);
  plan.tasks.push_back(planned);
  plan.num_products += task.weight->rows * task.weight->cols * task.out.rows;
}

// Even shares, so that no unit of a few tokens decodes its weights for little.
int even_share(int64_t total, int most) {
  const int64_t share = divide_up(total, divide_up(total, most));
  return static_cast<int>(std::min<int64_t>(divide_up(share, 6) * 6, most));
}

int64_t cut_into_units(Plan& plan, int unit_tiles, int most_tokens) {
  plan.num_units = 0;
  plan.unit_tiles = unit_tiles;
  for (PlannedTask& planned : plan.tasks) {
    const int64_t num_tokens = planned.task->out.rows;
    planned.first_unit = plan.num_units;
    planned.num_row_units = divide_up(planned.num_tiles, unit_tiles);
    planned.unit_tokens = even_share(num_tokens, most_tokens);
    plan.num_units += planned.num_row_units * divide_up(num_tokens, planned.unit_tokens);
  }
  return plan.num_units;
}

// Weighs how well the threads' shares come out even against what small units cost: they reuse decoded weights and
// inputs less, and walk fewer streams of addresses.
void choose_units(Plan& plan, int num_threads) {
  struct Size {
    int tiles, tokens;
    double efficiency;
  };
  constexpr Size kSizes[] = {{8, 96, 1.0}, {4, 96, 0.98}, {4, 48, 0.93}, {2, 96, 0.85}, {2, 24, 0.75}, {1, 24, 0.6}};
  const Size* best = kSizes;
  double best_value = 0.0;
  for (const Size& size : kSizes) {
    const int64_t num_units = cut_into_units(plan, size.tiles, size.tokens);
    const int64_t rounds = divide_up(num_units, num_threads);
    const double value = size.efficiency * static_cast<double>(num_units) / static_cast<double>(rounds * num_threads);
    if (value <= best_value) continue;
    best = &size;
    best_value = value;
  }
  cut_into_units(plan, best->tiles, best->tokens);
}

void repack(const Input& input, int64_t step, std::byte* to) {
  const MatrixView<const float>& source = input.source;
  const int64_t end = std::min<int64_t>((step + 1) * kRepackTokens, source.rows);
  for (int64_t token = step * kRepackTokens; token < end; ++token) {
    const float* from = source.row(token);
    const int64_t first = token / input.unit_tokens * input.unit_tokens;
    const int64_t token_bytes = kGroupColumns * input.value_bytes();
    std::byte* group_to = to + (first * (source.cols / kGroupColumns) + token - first) * token_bytes;
    for (int64_t group = 0; group < source.cols / kGroupColumns;
         ++group, from += kGroupColumns, group_to += input.unit_tokens_at(first) * token_bytes) {
      if (!input.is_bf16) {
        float scaled[kGroupColumns];
        for (int k = 0; k < kGroupColumns; ++k) scaled[k] = from[k] * input.scale;
        std::memcpy(group_to, scaled, sizeof(scaled));
        continue;
      }
      uint16_t halves[kGroupColumns];
      for (int k = 0; k < kGroupColumns; ++k) halves[k] = static_cast<uint16_t>(std::bit_cast<uint32_t>(from[k]) >> 16);
      std::memcpy(group_to, halves, sizeof(halves));
    }
  }
}

// Runs body(index) for all indices: in this thread if there is little to do.
template <typename Body>
void run_all(ThreadPool& pool, int64_t count, bool is_little, Body&& body) {
  if (is_little) {
    for (int64_t i = 0; i < count; ++i) body(i);
  } else {
    pool.run(count, [&](int64_t i, int) { body(i); });
  }
}

void repack_inputs(ThreadPool& pool, Plan& plan) {
  // Tasks with one input have as many tokens, so their units have too.
  for (const PlannedTask& planned : plan.tasks) plan.inputs[planned.input].unit_tokens = planned.unit_tokens;
  std::byte* scratch = plan.scratch.at_least(plan.scratch_bytes + kSlackTokens * kGroupColumns * 2);
  for (Input& input : plan.inputs) {
    input.data = input.is_in_place() ? reinterpret_cast<const std::byte*>(input.source.data) : scratch + input.offset;
  }
  run_all(pool, plan.num_steps, plan.num_inputs < kFewInputs, [&](int64_t step) {
    auto input = std::upper_bound(plan.inputs.begin(), plan.inputs.end(), step,
                                  [](int64_t s, const Input& i) { return s < i.first_step; }) -
                 1;
    repack(*input, step - input->first_step, scratch + input->offset);
  });
}

void store_row(const float* totals, int64_t count, bool round, float* out) {
  if (!round) {
    std::memcpy(out, totals, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = round_to_bfloat16(totals[i]);
}

void run_unit(const Plan& plan, int64_t index) {
  const PlannedTask& planned = *(std::upper_bound(plan.tasks.begin(), plan.tasks.end(), index,
                                                  [](int64_t i, const PlannedTask& t) { return i < t.first_unit; }) -
                                 1);
  const LinearTask& task = *planned.task;
  const ops::PackedWeight& weight = *task.weight;
  const Input& input = plan.inputs[planned.input];
  // Threads that run side by side share the tokens, so that these stay in their caches.
  const int64_t first_tile = (index - planned.first_unit) % planned.num_row_units * plan.unit_tiles;
  const int64_t first_token = (index - planned.first_unit) / planned.num_row_units * planned.unit_tokens;

  alignas(kLineBytes) float totals[kMaxUnitTokens * kMaxUnitTiles * kTileRows];
  LinearUnit unit;
  unit.tile_bytes = tile_bytes(weight.format, weight.cols);
  unit.tiles = weight.data.get() + first_tile * unit.tile_bytes;
  unit.scales_bytes = tile_scales_bytes(weight.format, weight.cols);
  unit.num_tiles = static_cast<int>(std::min<int64_t>(plan.unit_tiles, planned.num_tiles - first_tile));
  unit.num_groups = weight.cols / kGroupColumns;
  unit.num_tokens = static_cast<int>(input.unit_tokens_at(first_token));
  unit.input = input.data + first_token * weight.cols * input.value_bytes();
  unit.input_group_bytes = unit.num_tokens * kGroupColumns * input.value_bytes();
  unit.totals = totals;
  planned.function(unit);

  const int64_t first_row = first_tile * kTileRows;
  const int64_t num_rows = std::min<int64_t>(unit.num_tiles * kTileRows, weight.rows - first_row);
  for (int t = 0; t < unit.num_tokens; ++t) {
    store_row(totals + t * unit.num_tiles * kTileRows, num_rows, task.round_output_to_bf16,
              planned.out.row(first_token + t) + first_row);
  }
}

void run_tiled(ThreadPool& pool, std::span<const LinearTask> tasks, const LinearUnitFunctions& fp32,
               const LinearUnitFunctions* bf16) {
  thread_local Plan plan;
  plan.inputs.clear();
  plan.tasks.clear();
  plan.num_products = plan.num_steps = plan.num_inputs = plan.scratch_bytes = 0;
  for (const LinearTask& task : tasks) add_task(plan, task, fp32, bf16);
  if (plan.tasks.empty()) return;
  const bool is_little = plan.num_products < kFewProducts;
  choose_units(plan, is_little ? 1 : pool.num_threads());
  repack_inputs(pool, plan);
  const Plan& shared = plan;  // a thread_local's name means another object in each worker
  run_all(pool, shared.num_units, is_little, [&shared](int64_t index) { run_unit(shared, index); });
}

// Whether multiplying subnormals takes no longer than other numbers.
bool has_fast_subnormals() { return __builtin_cpu_is("amd"); }

ops::PackedWeight pack_avx2(ThreadPool& pool, const ops::WeightSource& source) {
  return pack_tiles(pool, source, has_fast_subnormals() ? LineOrder::kYmmLanes : LineOrder::kYmm);
}

void run_avx2(ThreadPool& pool, std::span<const LinearTask> tasks) {
  run_tiled(pool, tasks, has_fast_subnormals() ? kAvx2LanesUnits : kAvx2Units, nullptr);
}

ops::PackedWeight pack_avx512(ThreadPool& pool, const ops::WeightSource& source) {
  return pack_tiles(pool, source, LineOrder::kZmm);
}

void run_avx512(ThreadPool& pool, std::span<const LinearTask> tasks) { run_tiled(pool, tasks, kAvx512Units, nullptr); }

void run_avx512_bf16(ThreadPool& pool, std::span<const LinearTask> tasks) {
  run_tiled(pool, tasks, kAvx512Units, &kAvx512Bf16Units);
}

void run_amx(ThreadPool& pool, std::span<const LinearTask> tasks) { run_tiled(pool, tasks, kAvx512Units, &kAmxUnits); }

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}

// Linux saves the registers of AMX only for processes that have asked for them.
bool has_amx() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr LinearKernels kAvx2 = {"avx2", has_avx2, pack_avx2, run_avx2};
constexpr LinearKernels kAvx512 = {"avx512", has_avx512, pack_avx512, run_avx512};
constexpr LinearKernels kAvx512Bf16 = {"avx512_bf16", has_avx512_bf16, pack_avx512, run_avx512_bf16};
constexpr LinearKernels kAmx = {"amx", has_amx, pack_avx512, run_amx};

}  // namespace

const LinearKernels& avx2_linear() { return kAvx2; }
const LinearKernels& avx512_linear() { return kAvx512; }
const LinearKernels& avx512_bf16_linear() { return kAvx512Bf16; }
const LinearKernels& amx_linear() { return kAmx; }

}  // namespace deepinfer::cpu
