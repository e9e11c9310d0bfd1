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

// The projection goes through the linear kernels into the shared scratch.
inline void mhc_coefficients_kernel(Stream& stream, const ops::MhcCoefficientsArgs& a) {
  const ops::MhcWeights& w = a.weights;
  const MatrixView<const float> streams = a.streams.f32();
  const int64_t h = w.num_streams, num_outputs = h * (h + 2);
  float* values = cpu_stream(stream).shared_scratch().get<float>(streams.rows * num_outputs);
  const MatrixView<float> projection = {values, streams.rows, num_outputs, num_outputs};
  const ops::LinearTask task = {projection, streams, w.fn};
  stream.ops().linear(stream, {&task, 1});
  for_ranges(stream, streams.rows, rows_per_task(streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float mean = sum_of_squares(streams.row(t), streams.cols) / static_cast<float>(streams.cols);
      const float norm = 1.0f / std::sqrt(mean + w.norm_eps);
      const float* m = projection.row(t);
      float* mix = a.out.mix.row(t);
      for (int64_t s = 0; s < h; ++s) {
        a.out.pre.row(t)[s] = sigmoid_f32(m[s] * norm * w.scale[0] + w.base[s]) + w.eps;
        a.out.post.row(t)[s] = 2.0f * sigmoid_f32(m[h + s] * norm * w.scale[1] + w.base[h + s]);
      }
      for (int64_t i = 0; i < h * h; ++i) mix[i] = m[2 * h + i] * norm * w.scale[2] + w.base[2 * h + i];
      sinkhorn(mix, h, w.iterations, w.eps);
    }
  });
}

inline void mhc_collapse_kernel(Stream& stream, const ops::MhcCollapseArgs& a) {
  const MatrixView<float> result = a.out.f32(), quantised = a.quantised.f32();
  const MatrixView<const float> all_streams = a.streams.f32();
  const int64_t hidden = result.cols;
  for_ranges(stream, result.rows, rows_per_task(all_streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = result.row(t);
      const float* streams = all_streams.row(t);
      for (int64_t i = 0; i < hidden; ++i) out[i] = 0;
      for (int64_t s = 0; s < a.pre.cols; ++s) {
        const float weight = a.pre.row(t)[s];
        for (int64_t i = 0; i < hidden; ++i) out[i] = std::fma(weight, streams[s * hidden + i], out[i]);
      }
      if (a.round_to_bf16) {
        for (int64_t i = 0; i < hidden; ++i) out[i] = round_to_bfloat16(out[i]);
      }
      normalise(out, out, a.norm_weight, hidden, a.norm_eps, a.round_to_bf16);
      quantise_row_if(quantised, t, out, hidden);
    }
  });
}

inline void mhc_update_kernel(Stream& stream, const ops::MhcUpdateArgs& a) {
  const MatrixView<float> all_streams = a.streams.f32();
  const MatrixView<const float> ys = a.y.f32();
  const int64_t h = a.post.cols;
  const int64_t hidden = ys.cols;
  for_ranges(stream, ys.rows, rows_per_task(all_streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* streams = all_streams.row(t);
      const float* y = ys.row(t);
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

inline void mhc_boundary_kernel(Stream& stream, const ops::MhcBoundaryArgs& a) {
  const ops::MhcCoefficients& c = a.coefficients;
  if (a.y) mhc_update_kernel(stream, {a.streams, a.y, c.post, c.mix, a.round_to_bf16});
  mhc_collapse_kernel(stream,
                      {a.out, a.streams, c.pre, a.norm_weight, a.weights.norm_eps, a.round_to_bf16, a.quantised});
  mhc_coefficients_kernel(stream, {a.weights, c, a.streams});
}

// e4m3_to_float without branches, so that the loop over a row becomes vector code; NaN included.
inline float widen_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t is_subnormal = magnitude < 8 ? 1u : 0u;
  const uint32_t nan = magnitude == 0x7F ? 0x7FC00000u : 0u;
  // A subnormal m * 2^-9 is read as 2^-6 * (1 + m / 8), minus 2^-6.
  const uint32_t bits = (magnitude << 20) + ((120u + is_subnormal) << 23);
  const float value = std::bit_cast<float>(bits | nan) - std::bit_cast<float>(is_subnormal * 0x3C800000u);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (code & 0x80u) << 24);
}

inline void engram_rows_kernel(Stream& stream, const ops::EngramRowsArgs& a) {
  constexpr int64_t kScaled = 32;  // codes that share a scale
  const MatrixView<float> result = a.out.f32();
  const int64_t dim = a.num_columns > 0 ? result.cols / a.num_columns : 0;
  for_ranges(stream, result.rows, rows_per_task(result.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t entry = begin * a.num_columns; entry < end * a.num_columns; ++entry) {
      const int64_t row = a.rows != nullptr ? a.rows[entry] : entry;
      const uint8_t* codes = a.codes + row * dim;
      const uint8_t* scales = a.scales + row * (dim / kScaled);
      float* out = result.row(entry / a.num_columns) + entry % a.num_columns * dim;
      for (int64_t group = 0; group < dim; group += kScaled) {
        const float scale = e8m0_to_float(*scales++);
        for (int64_t i = group; i < group + kScaled; ++i) out[i] = widen_e4m3(codes[i]) * scale;
      }
      if (a.quantise) fake_quant_row<E4m3Group32>(out, out, dim);
    }
  });
}

inline void engram_apply_kernel(Stream& stream, const ops::EngramApplyArgs& a) {
  const MatrixView<float> streams = a.streams.f32();
  const MatrixView<const float> key_value = a.key_value.f32();
  const int64_t h = a.num_streams;
  const int64_t hidden = streams.cols / h;
  const float width = static_cast<float>(hidden);
  for_ranges(stream, streams.rows, rows_per_task(streams.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* value = key_value.row(t) + h * hidden;
      for (int64_t s = 0; s < h; ++s) {
        float* x = streams.row(t) + s * hidden;
        const float* key = key_value.row(t) + s * hidden;
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
  table.mhc_boundary = mhc_boundary_kernel;
  table.engram_rows = engram_rows_kernel;
  table.engram_apply = engram_apply_kernel;
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
