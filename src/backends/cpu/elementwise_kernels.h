// Kernels of ops/elementwise.h but those that quantise and store rows, which are in row_kernels.h. Included by
// vector_ops_*.cc, once a processor level.
#pragma once

#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_stream.h"
#include "backends/cpu/group_quantisers.h"
#include "backends/cpu/simd.h"
#include "ops/op_table.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

// Rows a task when each row is cheap: enough work to be worth waking a thread for.
inline int64_t rows_per_task(int64_t values_a_row) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, values_a_row));
}

// Sum of x[i]^2 in the fixed order: four running sums over blocks of 16, then a tree. Requires: n % 16 == 0.
inline float sum_of_squares(const float* x, int64_t n) {
  Vf sum[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const Vf v = load(x + i + 16 * j);
      sum[j] = fmadd(v, v, sum[j]);
    }
  }
  for (int j = 0; i < n; i += 16, ++j) {
    const Vf v = load(x + i);
    sum[j] = fmadd(v, v, sum[j]);
  }
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

inline void normalise(float* out, const float* in, const float* weight, int64_t width, float eps, bool round) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(in, width) / static_cast<float>(width) + eps);
  if (round) {
    for (int64_t i = 0; i < width; ++i) out[i] = round_to_bfloat16(weight[i] * (in[i] * scale));
  } else {
    for (int64_t i = 0; i < width; ++i) out[i] = weight[i] * (in[i] * scale);
  }
}

inline void embed_kernel(Stream& stream, const ops::EmbedArgs& a) {
  const MatrixView<float> result = a.out.f32();
  for_ranges(stream, result.rows, rows_per_task(result.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = result.row(t);
      const std::byte* source = a.table + static_cast<int64_t>(a.tokens[t]) * a.hidden * 2;
      for (int64_t i = 0; i < a.hidden; ++i) {
        uint16_t bits;
        std::memcpy(&bits, source + 2 * i, 2);
        out[i] = to_float(BFloat16{bits});
      }
      for (int64_t s = a.hidden; s < result.cols; s += a.hidden) std::memcpy(out + s, out, a.hidden * sizeof(float));
    }
  });
}

// What a linear layer reads, if it is wanted. Requires: width % 32 == 0 then.
inline void quantise_row_if(const MatrixView<float>& quantised, int64_t row, const float* in, int64_t width) {
  if (quantised.data != nullptr) fake_quant_row<E4m3Group32>(quantised.row(row), in, width);
}

inline void rms_norm_kernel(Stream& stream, const ops::RmsNormArgs& a) {
  const MatrixView<const float> in = a.in.f32();
  const MatrixView<float> out = a.out.f32(), quantised = a.quantised.f32();
  for_ranges(stream, in.rows, rows_per_task(in.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      normalise(out.row(r), in.row(r), a.weight, in.cols, a.eps, a.round_to_bf16);
      quantise_row_if(quantised, r, out.row(r), in.cols);
    }
  });
}

inline void rope_angles_kernel(Stream& stream, const ops::RopeAnglesArgs& a) {
  for_ranges(stream, a.cosine.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      if (a.positions[r] < 0) continue;
      const float position = static_cast<float>(a.positions[r] / a.ratio * a.ratio);
      for (int64_t j = 0; j < a.cosine.cols; ++j) {
        const float angle =
            position * a.frequencies[j];  // the model rounds the angle to fp32; then exact functions of it
        a.cosine.row(r)[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        a.sine.row(r)[j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

// Rotates the last channels of each of a row's heads in place; sign -1 turns back.
inline void rotate_heads(float* row, int64_t num_heads, int64_t head_dim, const float* cosine, const float* sine,
                         int64_t pairs, float sign, bool round) {
  for (int64_t h = 0; h < num_heads; ++h) {
    float* x = row + (h + 1) * head_dim - 2 * pairs;
    for (int64_t j = 0; j < pairs; ++j) {
      const float c = cosine[j], s = sine[j] * sign;
      const float first = x[2 * j] * c - x[2 * j + 1] * s;
      const float second = x[2 * j] * s + x[2 * j + 1] * c;
      x[2 * j] = round_bf16_if(first, round);
      x[2 * j + 1] = round_bf16_if(second, round);
    }
  }
}

inline void swiglu_kernel(Stream& stream, const ops::SwigluArgs& a) {
  const float limit = a.limit;
  const MatrixView<float> result = a.out.f32();
  const MatrixView<const float> gate_rows = a.gate.f32(), up_rows = a.up.f32();
  for_ranges(stream, result.rows, rows_per_task(result.cols * 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float weight = a.row_weight ? a.row_weight[r] : 1.0f;
      float* out = result.row(r);
      const float* gates = gate_rows.row(r);
      const float* ups = up_rows.row(r);
      for (int64_t i = 0; i < result.cols; ++i) {
        const float gate = gates[i] < limit ? gates[i] : limit;
        const float up = std::min(std::max(ups[i], -limit), limit);
        const float y = gate * sigmoid_f32(gate) * up * weight;
        out[i] = round_bf16_if(y, a.round_to_bf16);
      }
    }
  });
}

inline void gather_rows_kernel(Stream& stream, const ops::GatherRowsArgs& a) {
  const MatrixView<float> out = a.out.f32();
  const MatrixView<const float> in = a.in.f32();
  for_ranges(stream, out.rows, rows_per_task(out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) std::memcpy(out.row(r), in.row(a.rows[r]), out.cols * sizeof(float));
  });
}

// A group's tokens lie in rows of [value | gate].
inline void compress_group(float* out, int64_t width, const ops::RowTable& table, int64_t first_row, int64_t ratio,
                           bool round) {
  for (int64_t c = 0; c < width; ++c) {
    const auto value_of = [&](int64_t i, int64_t column) {
      return reinterpret_cast<const float*>(table.row(first_row + i))[column];
    };
    float largest = value_of(0, width + c);
    for (int64_t i = 1; i < ratio; ++i) largest = std::max(largest, value_of(i, width + c));
    float total = 0, pooled = 0;
    for (int64_t i = 0; i < ratio; ++i) {
      const float weight = exp_f32(value_of(i, width + c) - largest);
      total += weight;
      pooled = std::fma(weight, value_of(i, c), pooled);
    }
    out[c] = round_bf16_if(pooled / total, round);
  }
}

inline void compress_kernel(Stream& stream, const ops::CompressArgs& a) {
  const MatrixView<float> out = a.out.f32();
  for_ranges(stream, out.rows, rows_per_task(out.cols * 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = a.positions[t];
      const bool closes = position >= 0 && (position + 1) % a.ratio == 0 && a.rows.blocks[t] != nullptr;
      if (closes) {
        compress_group(out.row(t), out.cols, a.rows.of(t), position + 1 - a.ratio, a.ratio, a.round_to_bf16);
      } else {
        for (int64_t c = 0; c < out.cols; ++c) out.row(t)[c] = 0;
      }
    }
  });
}

inline void fill_elementwise(ops::OpTable& table) {
  table.embed = embed_kernel;
  table.rms_norm = rms_norm_kernel;
  table.rope_angles = rope_angles_kernel;
  table.swiglu = swiglu_kernel;
  table.gather_rows = gather_rows_kernel;
  table.compress = compress_kernel;
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
