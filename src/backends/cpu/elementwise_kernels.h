// Kernels of ops/elementwise.h. Included by vector_ops_*.cc, once a processor level.
#pragma once

#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_stream.h"
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
  for_ranges(stream, a.out.rows, rows_per_task(a.out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out.row(t);
      const std::byte* source = a.table + static_cast<int64_t>(a.tokens[t]) * a.hidden * 2;
      for (int64_t i = 0; i < a.hidden; ++i) {
        uint16_t bits;
        std::memcpy(&bits, source + 2 * i, 2);
        out[i] = to_float(BFloat16{bits});
      }
      for (int64_t s = a.hidden; s < a.out.cols; s += a.hidden) std::memcpy(out + s, out, a.hidden * sizeof(float));
    }
  });
}

inline void rms_norm_kernel(Stream& stream, const ops::RmsNormArgs& a) {
  for_ranges(stream, a.in.rows, rows_per_task(a.in.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      normalise(a.out.row(r), a.in.row(r), a.weight, a.in.cols, a.eps, a.round_to_bf16);
    }
  });
}

inline float largest_magnitude(const float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    const float m = std::fabs(x[i]);
    largest = m > largest ? m : largest;
  }
  return largest;
}

// E4M3 rounding as floats: to 3 mantissa bits, ties to even, below 2^-6 to steps of 2^-9. Requires: |x| <= 448.
inline float round_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits ^ sign;
  const uint32_t normal = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) & 0xFFF00000u;
  const float step = (std::bit_cast<float>(magnitude) + 16384.0f) - 16384.0f;
  const uint32_t rounded = magnitude >= 0x3C800000u ? normal : std::bit_cast<uint32_t>(step);
  return std::bit_cast<float>(rounded | sign);
}

// E2M1 rounding as floats: steps of 0.5 below 2, of 1 below 4, of 2 above; ties to the even code. Requires: |x| <= 6.
inline float round_to_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  const float m = std::bit_cast<float>(bits ^ sign);
  // Adding 2^23 * step rounds to a multiple of the step, ties to even multiples, which here are the even codes.
  const float fine = (m + 4194304.0f) - 4194304.0f;
  const float middle = (m + 8388608.0f) - 8388608.0f;
  const float coarse = (m + 16777216.0f) - 16777216.0f;
  const float rounded = m < 2.0f ? fine : (m < 4.0f ? middle : coarse);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | sign);
}

inline void quantise_e4m3_group32(float* out, const float* in) {
  const float largest = std::max(largest_magnitude(in, 32), 1e-4f);
  const float scale = power_of_two_at_least(largest * (1.0f / 448.0f));
  const float inverse = 1.0f / scale;
  for (int i = 0; i < 32; ++i) {
    const float x = std::min(std::max(in[i] * inverse, -448.0f), 448.0f);
    out[i] = round_to_e4m3(x) * scale;
  }
}

inline void quantise_e2m1_group16(float* out, const float* in) {
  const float largest = std::max(largest_magnitude(in, 16), 6.0f / 512.0f);
  const float scale = e4m3_to_float(float_to_e4m3(largest / 6.0f));
  for (int i = 0; i < 16; ++i) {
    const float x = std::min(std::max(in[i] / scale, -6.0f), 6.0f);
    out[i] = round_to_e2m1(x) * scale;
  }
}

inline void quantise_e2m1_group32(float* out, const float* in) {
  const float largest = std::max(largest_magnitude(in, 32), 0x1.8p-124f);  // 6 * 2^-126
  const float scale = power_of_two_at_least(largest * (1.0f / 6.0f));
  for (int i = 0; i < 32; ++i) {
    const float x = std::min(std::max(in[i] / scale, -6.0f), 6.0f);
    out[i] = round_to_e2m1(x) * scale;
  }
}

inline void fake_quant_kernel(Stream& stream, const ops::FakeQuantArgs& a) {
  for_ranges(stream, a.in.rows, rows_per_task(a.in.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = a.out.row(r);
      const float* in = a.in.row(r);
      switch (a.kind) {
        case ops::FakeQuant::kE4m3Group32:
          for (int64_t i = 0; i < a.in.cols; i += 32) quantise_e4m3_group32(out + i, in + i);
          break;
        case ops::FakeQuant::kE2m1Group16:
          for (int64_t i = 0; i < a.in.cols; i += 16) quantise_e2m1_group16(out + i, in + i);
          break;
        case ops::FakeQuant::kE2m1Group32:
          for (int64_t i = 0; i < a.in.cols; i += 32) quantise_e2m1_group32(out + i, in + i);
          break;
      }
    }
  });
}

inline void rope_angles_kernel(Stream& stream, const ops::RopeAnglesArgs& a) {
  for_ranges(stream, a.cosine.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float position = static_cast<float>(a.positions[r]);
      for (size_t j = 0; j < a.frequencies.size(); ++j) {
        const float angle =
            position * a.frequencies[j];  // the model rounds the angle to fp32; then exact functions of it
        a.cosine.row(r)[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
        a.sine.row(r)[j] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

inline void rope_kernel(Stream& stream, const ops::RopeArgs& a) {
  const int64_t head_dim = a.data.cols / a.num_heads;
  const int64_t pairs = a.cosine.cols;
  const float sign = a.inverse ? -1.0f : 1.0f;
  for_ranges(stream, a.data.rows, rows_per_task(a.num_heads * pairs * 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* cosine = a.cosine.row(r);
      const float* sine = a.sine.row(r);
      for (int64_t h = 0; h < a.num_heads; ++h) {
        float* x = a.data.row(r) + (h + 1) * head_dim - 2 * pairs;
        for (int64_t j = 0; j < pairs; ++j) {
          const float c = cosine[j], s = sine[j] * sign;
          const float first = x[2 * j] * c - x[2 * j + 1] * s;
          const float second = x[2 * j] * s + x[2 * j + 1] * c;
          x[2 * j] = round_bf16_if(first, a.round_to_bf16);
          x[2 * j + 1] = round_bf16_if(second, a.round_to_bf16);
        }
      }
    }
  });
}

inline void swiglu_kernel(Stream& stream, const ops::SwigluArgs& a) {
  const float limit = a.limit;
  for_ranges(stream, a.out.rows, rows_per_task(a.out.cols * 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float weight = a.row_weight ? a.row_weight[r] : 1.0f;
      float* out = a.out.row(r);
      const float* gates = a.gate.row(r);
      const float* ups = a.up.row(r);
      for (int64_t i = 0; i < a.out.cols; ++i) {
        const float gate = gates[i] < limit ? gates[i] : limit;
        const float up = std::min(std::max(ups[i], -limit), limit);
        const float y = gate * sigmoid_f32(gate) * up * weight;
        out[i] = round_bf16_if(y, a.round_to_bf16);
      }
    }
  });
}

inline void gather_rows_kernel(Stream& stream, const ops::GatherRowsArgs& a) {
  for_ranges(stream, a.out.rows, rows_per_task(a.out.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) std::memcpy(a.out.row(r), a.in.row(a.rows[r]), a.out.cols * sizeof(float));
  });
}

inline void write_rows_kernel(Stream& stream, const ops::WriteRowsArgs& a) {
  for_ranges(stream, a.in.rows, rows_per_task(a.in.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* out = a.tables[r]->row(a.rows[r]);
      const float* in = a.in.row(r);
      if (a.tables[r]->type == ops::RowType::kF32) {
        std::memcpy(out, in, a.in.cols * sizeof(float));
      } else {
        auto* bits = reinterpret_cast<uint16_t*>(out);
        for (int64_t i = 0; i < a.in.cols; ++i) bits[i] = to_bfloat16(in[i]).bits;
      }
    }
  });
}

// The row as fp32: in place where it is stored so, else widened into `buffer`.
inline const float* read_row(const ops::RowTable& table, int64_t row, float* buffer) {
  const std::byte* data = table.row(row);
  if (table.type == ops::RowType::kF32) return reinterpret_cast<const float*>(data);
  const auto* bits = reinterpret_cast<const uint16_t*>(data);
  for (int64_t i = 0; i < table.width; ++i) buffer[i] = to_float(BFloat16{bits[i]});
  return buffer;
}

// A group's tokens lie in rows of [value | gate].
inline void compress_kernel(Stream& stream, const ops::CompressArgs& a) {
  const int64_t width = a.out.cols;
  for_ranges(stream, a.out.rows, rows_per_task(width * 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t g = begin; g < end; ++g) {
      float* out = a.out.row(g);
      for (int64_t c = 0; c < width; ++c) {
        const auto value_of = [&](int64_t i, int64_t column) {
          return reinterpret_cast<const float*>(a.tables[g]->row(a.first_rows[g] + i))[column];
        };
        float largest = value_of(0, width + c);
        for (int64_t i = 1; i < a.ratio; ++i) largest = std::max(largest, value_of(i, width + c));
        float total = 0, pooled = 0;
        for (int64_t i = 0; i < a.ratio; ++i) {
          const float weight = exp_f32(value_of(i, width + c) - largest);
          total += weight;
          pooled = std::fma(weight, value_of(i, c), pooled);
        }
        out[c] = round_bf16_if(pooled / total, a.round_to_bf16);
      }
    }
  });
}

inline void fill_elementwise(ops::OpTable& table) {
  table.embed = embed_kernel;
  table.rms_norm = rms_norm_kernel;
  table.fake_quant = fake_quant_kernel;
  table.rope_angles = rope_angles_kernel;
  table.rope = rope_kernel;
  table.swiglu = swiglu_kernel;
  table.gather_rows = gather_rows_kernel;
  table.write_rows = write_rows_kernel;
  table.compress = compress_kernel;
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
