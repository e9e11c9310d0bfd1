// Kernels of ops/mhc.h and ops/engram.h. Included by vector_ops_*.cc, once a processor level.
#pragma once

#include "backends/cpu/elementwise_kernels.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

// Divides each of `count` strided values by (their sum + eps).
inline void divide_by_sum(float* values, int64_t count, int64_t stride, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i * stride];
  sum += eps;
  for (int64_t i = 0; i < count; ++i) values[i * stride] /= sum;
}

inline void sinkhorn(float* mix, int64_t h, int iterations, float eps) {
  for (int64_t i = 0; i < h; ++i) {
    float* row = mix + i * h;
    float largest = row[0];
    for (int64_t j = 1; j < h; ++j) largest = std::max(largest, row[j]);
    float sum = 0;
    for (int64_t j = 0; j < h; ++j) {
      row[j] = exp_f32(row[j] - largest);
      sum += row[j];
    }
    for (int64_t j = 0; j < h; ++j) row[j] = row[j] / sum + eps;
  }
  for (int64_t j = 0; j < h; ++j) divide_by_sum(mix + j, h, h, eps);
  for (int k = 1; k < iterations; ++k) {
    for (int64_t i = 0; i < h; ++i) divide_by_sum(mix + i * h, h, 1, eps);
    for (int64_t j = 0; j < h; ++j) divide_by_sum(mix + j, h, h, eps);
  }
}

inline void mhc_coefficients_kernel(Stream& stream, const ops::MhcCoefficientsArgs& a) {
  const int64_t h = a.num_streams;
  for_ranges(stream, a.streams.rows, rows_per_task(a.streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float mean = sum_of_squares(a.streams.row(t), a.streams.cols) / static_cast<float>(a.streams.cols);
      const float norm = 1.0f / std::sqrt(mean + a.norm_eps);
      const float* m = a.projection.row(t);
      float* mix = a.mix.row(t);
      for (int64_t s = 0; s < h; ++s) {
        a.pre.row(t)[s] = sigmoid_f32(m[s] * norm * a.scale[0] + a.base[s]) + a.eps;
        a.post.row(t)[s] = 2.0f * sigmoid_f32(m[h + s] * norm * a.scale[1] + a.base[h + s]);
      }
      for (int64_t i = 0; i < h * h; ++i) mix[i] = m[2 * h + i] * norm * a.scale[2] + a.base[2 * h + i];
      sinkhorn(mix, h, a.iterations, a.eps);
    }
  });
}

inline void mhc_collapse_kernel(Stream& stream, const ops::MhcCollapseArgs& a) {
  const int64_t hidden = a.out.cols;
  for_ranges(stream, a.out.rows, rows_per_task(a.streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out.row(t);
      const float* streams = a.streams.row(t);
      for (int64_t i = 0; i < hidden; ++i) out[i] = 0;
      for (int64_t s = 0; s < a.pre.cols; ++s) {
        const float weight = a.pre.row(t)[s];
        for (int64_t i = 0; i < hidden; ++i) out[i] = std::fma(weight, streams[s * hidden + i], out[i]);
      }
      if (a.round_to_bf16) {
        for (int64_t i = 0; i < hidden; ++i) out[i] = round_to_bfloat16(out[i]);
      }
      normalise(out, out, a.norm_weight, hidden, a.norm_eps, a.round_to_bf16);
    }
  });
}

inline void mhc_update_kernel(Stream& stream, const ops::MhcUpdateArgs& a) {
  const int64_t h = a.post.cols;
  const int64_t hidden = a.y.cols;
  for_ranges(stream, a.y.rows, rows_per_task(a.streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* streams = a.streams.row(t);
      const float* y = a.y.row(t);
      const float* post = a.post.row(t);
      const float* mix = a.mix.row(t);
      for (int64_t c = 0; c < hidden; c += 16) {
        Vf in[ops::kMaxStreams];
        for (int64_t i = 0; i < h; ++i) in[i] = load(streams + i * hidden + c);
        for (int64_t j = 0; j < h; ++j) {
          Vf out = mul(broadcast(post[j]), load(y + c));
          for (int64_t i = 0; i < h; ++i) out = fmadd(broadcast(mix[i * h + j]), in[i], out);
          float* target = streams + j * hidden + c;
          store(target, out);
          if (a.round_to_bf16) {
            for (int64_t i = 0; i < 16; ++i) target[i] = round_to_bfloat16(target[i]);
          }
        }
      }
    }
  });
}

inline void engram_apply_kernel(Stream& stream, const ops::EngramApplyArgs& a) {
  const int64_t h = a.num_streams;
  const int64_t hidden = a.streams.cols / h;
  const float width = static_cast<float>(hidden);
  for_ranges(stream, a.streams.rows, rows_per_task(a.streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* value = a.key_value.row(t) + h * hidden;
      for (int64_t s = 0; s < h; ++s) {
        float* x = a.streams.row(t) + s * hidden;
        const float* key = a.key_value.row(t) + s * hidden;
        const float* weight = a.query_key_weight + s * hidden;
        Vf sum = broadcast(0);
        for (int64_t c = 0; c < hidden; c += 16) sum = fmadd(mul(load(x + c), load(weight + c)), load(key + c), sum);
        const float rms_x = 1.0f / std::sqrt(sum_of_squares(x, hidden) / width + a.norm_eps);
        const float rms_key = 1.0f / std::sqrt(sum_of_squares(key, hidden) / width + a.norm_eps);
        const float g = sum_lanes(sum) * rms_x * rms_key / std::sqrt(width);
        const float gate = sigmoid_f32(std::copysign(std::sqrt(std::max(std::fabs(g), 1e-6f)), g));
        for (int64_t c = 0; c < hidden; ++c) x[c] = round_bf16_if(std::fma(gate, value[c], x[c]), a.round_to_bf16);
      }
    }
  });
}

inline void fill_mhc(ops::OpTable& table) {
  table.mhc_coefficients = mhc_coefficients_kernel;
  table.mhc_collapse = mhc_collapse_kernel;
  table.mhc_update = mhc_update_kernel;
  table.engram_apply = engram_apply_kernel;
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
