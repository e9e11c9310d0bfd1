// Cached rows of every type: rotation, fake quantisation, writing, and reading as fp32 for the kernels that attend and
// select. Included by vector_ops_*.cc, once a processor level.
#pragma once

#include <cstring>

#include "backends/cpu/elementwise_kernels.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

// Calls body with the quantiser's type.
template <typename Body>
inline void with_quantiser(ops::FakeQuant kind, Body&& body) {
  switch (kind) {
    case ops::FakeQuant::kE4m3Group32:
      return body(E4m3Group32());
    case ops::FakeQuant::kE2m1Group16:
      return body(E2m1Group16());
    case ops::FakeQuant::kE2m1Group32:
      return body(E2m1Group32());
  }
}

inline void fake_quant_kernel(Stream& stream, const ops::FakeQuantArgs& a) {
  const MatrixView<float> out = a.out.f32();
  const MatrixView<const float> in = a.in.f32();
  for_ranges(stream, in.rows, rows_per_task(in.cols), [&](int64_t begin, int64_t end, int) {
    with_quantiser(a.kind, [&]<typename Quantiser>(Quantiser) {
      for (int64_t r = begin; r < end; ++r) fake_quant_row<Quantiser>(out.row(r), in.row(r), in.cols);
    });
  });
}

inline void rope_kernel(Stream& stream, const ops::RopeArgs& a) {
  const MatrixView<float> data = a.data.f32();
  const int64_t head_dim = data.cols / a.num_heads;
  const int64_t pairs = a.cosine.cols;
  const float sign = a.inverse ? -1.0f : 1.0f;
  for_ranges(stream, data.rows, rows_per_task(a.num_heads * pairs * 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      rotate_heads(data.row(r), a.num_heads, head_dim, a.cosine.row(r), a.sine.row(r), pairs, sign, a.round_to_bf16);
      if (!a.quantise) continue;
      with_quantiser(*a.quantise, [&]<typename Quantiser>(Quantiser) {
        fake_quant_row<Quantiser>(data.row(r), data.row(r), data.cols);
      });
    }
  });
}

// Whether the type's codes and scales are those of the quantiser.
inline bool holds_codes_of(ops::RowType type, ops::FakeQuant kind) {
  switch (kind) {
    case ops::FakeQuant::kE4m3Group32:
      return type == ops::RowType::kE4m3Group32;
    case ops::FakeQuant::kE2m1Group16:
      return type == ops::RowType::kE2m1Group16;
    case ops::FakeQuant::kE2m1Group32:
      return type == ops::RowType::kE2m1Group32;
  }
  return false;
}

inline void write_row(ops::RowType type, std::byte* out, const float* in, int64_t width) {
  switch (type) {
    case ops::RowType::kF32:
      std::memcpy(out, in, width * sizeof(float));
      return;
    case ops::RowType::kBf16: {
      auto* bits = reinterpret_cast<uint16_t*>(out);
      for (int64_t i = 0; i < width; ++i) bits[i] = to_bfloat16(in[i]).bits;
      return;
    }
    case ops::RowType::kE4m3Group32:
      return pack_row<E4m3Group32>(out, in, width);
    case ops::RowType::kE2m1Group16:
      return pack_row<E2m1Group16>(out, in, width);
    case ops::RowType::kE2m1Group32:
      return pack_row<E2m1Group32>(out, in, width);
  }
}

// Stores one token's row, or nothing. `buffer`: room for the width.
inline void write_token(const ops::WriteRowsArgs& a, int64_t t, const float* values, int64_t width, float* buffer) {
  const ops::RowType type = a.tables.type;
  const int64_t position = a.positions[t];
  if (position < 0 || (position + 1) % a.ratio != 0 || a.tables.blocks[t] == nullptr) return;
  if (a.cosine.data != nullptr) {
    std::memcpy(buffer, values, width * sizeof(float));
    rotate_heads(buffer, 1, width, a.cosine.row(t), a.sine.row(t), a.cosine.cols, 1.0f, a.round_to_bf16);
    values = buffer;
  }
  if (a.quantise && !holds_codes_of(type, *a.quantise)) {
    with_quantiser(*a.quantise,
                   [&]<typename Quantiser>(Quantiser) { fake_quant_row<Quantiser>(buffer, values, width); });
    values = buffer;
  }
  write_row(type, a.tables.of(t).row(position / a.ratio), values, width);
}

inline void write_rows_kernel(Stream& stream, const ops::WriteRowsArgs& a) {
  const MatrixView<const float> in = a.in.f32();
  for_ranges(stream, in.rows, rows_per_task(in.cols), [&](int64_t begin, int64_t end, int thread) {
    float* buffer = cpu_stream(stream).thread_scratch(thread).get<float>(in.cols);
    for (int64_t t = begin; t < end; ++t) write_token(a, t, in.row(t), in.cols, buffer);
  });
}

// `buffer`: room for twice the width.
inline void finish_latent(const ops::LatentTask& a, int64_t t, float* buffer) {
  const int64_t width = a.in.cols;
  const float* values = a.in.f32().row(t);
  if (a.norm_weight != nullptr) {
    float* const normalised = a.out ? a.out.f32().row(t) : buffer + width;
    normalise(normalised, values, a.norm_weight, width, a.norm_eps, a.round_to_bf16);
    values = normalised;
  } else if (a.out && a.out.f32().row(t) != values) {
    std::memcpy(a.out.f32().row(t), values, width * sizeof(float));
  }
  if (a.quantised) quantise_row_if(a.quantised.f32(), t, values, width);
  if (a.tables.blocks != nullptr) write_token(a.rows_to_write(a.in), t, values, width, buffer);
}

inline void latents_kernel(Stream& stream, std::span<const ops::LatentTask> tasks) {
  if (tasks.empty()) return;
  int64_t widest = 0, values = 0;
  for (const ops::LatentTask& task : tasks) widest = std::max(widest, task.in.cols), values += task.in.cols;
  for_ranges(stream, tasks[0].in.rows, rows_per_task(values), [&](int64_t begin, int64_t end, int thread) {
    float* buffer = cpu_stream(stream).thread_scratch(thread).get<float>(2 * widest);
    for (int64_t t = begin; t < end; ++t) {
      for (const ops::LatentTask& task : tasks) finish_latent(task, t, buffer);
    }
  });
}

// A scale as it is stored in a row: never the codes 0 and 255.
inline float e8m0_scale(std::byte code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 23); }

// Codes become floats exactly and one multiplication follows, the same as in fake_quant_row.
inline void unpack_e4m3_group32(float* out, const std::byte* row, int64_t width) {
  const std::byte* scales = row + width;
  for (int64_t i = 0; i < width; i += 32) {
    const Vf scale = broadcast(e8m0_scale(*scales++));
    store(out + i, mul(load_e4m3(row + i), scale));
    store(out + i + 16, mul(load_e4m3(row + i + 16), scale));
  }
}

inline void unpack_e2m1_group32(float* out, const std::byte* row, int64_t width) {
  const std::byte* scales = row + width / 2;
  for (int64_t i = 0; i < width; i += 32) {
    const Vf scale = broadcast(e8m0_scale(*scales++));
    store(out + i, mul(load_e2m1(row + i / 2), scale));
    store(out + i + 16, mul(load_e2m1(row + i / 2 + 8), scale));
  }
}

inline void unpack_e2m1_group16(float* out, const std::byte* row, int64_t width) {
  const std::byte* codes = row + width / 2;
  const int64_t num_scales = width / 16;
  for (int64_t first = 0; first < num_scales; first += 16) {
    const int64_t count = std::min<int64_t>(16, num_scales - first);
    std::byte some[16] = {};  // sixteen bytes may be more than the row has left
    if (count < 16) std::memcpy(some, codes + first, count);
    float scales[16];
    store(scales, load_e4m3(count < 16 ? some : codes + first));
    for (int64_t g = 0; g < count; ++g) {
      store(out + (first + g) * 16, mul(load_e2m1(row + (first + g) * 8), broadcast(scales[g])));
    }
  }
}

// The row as fp32: in place where it is stored so, else widened into `buffer`, which has room for the width.
inline const float* read_row(const ops::RowTable& table, int64_t row, float* buffer) {
  const std::byte* data = table.row(row);
  switch (table.type) {
    case ops::RowType::kF32:
      return reinterpret_cast<const float*>(data);
    case ops::RowType::kBf16: {
      const auto* bits = reinterpret_cast<const uint16_t*>(data);
      for (int64_t i = 0; i < table.width; ++i) buffer[i] = to_float(BFloat16{bits[i]});
      break;
    }
    case ops::RowType::kE4m3Group32:
      unpack_e4m3_group32(buffer, data, table.width);
      break;
    case ops::RowType::kE2m1Group16:
      unpack_e2m1_group16(buffer, data, table.width);
      break;
    case ops::RowType::kE2m1Group32:
      unpack_e2m1_group32(buffer, data, table.width);
      break;
  }
  return buffer;
}

inline void fill_rows(ops::OpTable& table) {
  table.fake_quant = fake_quant_kernel;
  table.rope = rope_kernel;
  table.write_rows = write_rows_kernel;
  table.latents = latents_kernel;
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
