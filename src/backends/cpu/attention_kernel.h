// Kernel of ops/attention.h. Included by vector_ops_*.cc, once a processor level.
//
// A task is one token and a group of its heads. Keys go by in blocks of 64, widened to fp32 once a task; all heads of
// the group use them while they are in cache.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/row_kernels.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

inline constexpr int64_t kKeysPerBlock = 64;
inline constexpr int64_t kHeadsPerTask = 8;

// scores[i][k] = q_i . key_k for 2 heads and 2 keys. Requires: dim % 16 == 0.
inline void dot_2x2(const float* q0, const float* q1, const float* k0, const float* k1, int64_t dim, float* s0,
                    float* s1) {
  Vf a00 = broadcast(0), a01 = a00, a10 = a00, a11 = a00;
  for (int64_t d = 0; d < dim; d += 16) {
    const Vf x0 = load(q0 + d), x1 = load(q1 + d), y0 = load(k0 + d), y1 = load(k1 + d);
    a00 = fmadd(x0, y0, a00);
    a01 = fmadd(x0, y1, a01);
    a10 = fmadd(x1, y0, a10);
    a11 = fmadd(x1, y1, a11);
  }
  s0[0] = sum_lanes(a00);
  s0[1] = sum_lanes(a01);
  s1[0] = sum_lanes(a10);
  s1[1] = sum_lanes(a11);
}

// out_h[d] = out_h[d] * decay_h + sum_k weights_h[k] * keys[k][d], k ascending, for 2 heads.
inline void accumulate_2(float* out0, float* out1, float decay0, float decay1, const float* weights0,
                         const float* weights1, const float* const* keys, int64_t num_keys, int64_t dim) {
  int64_t d = 0;
  const Vf f0 = broadcast(decay0), f1 = broadcast(decay1);
  for (; d + 32 <= dim; d += 32) {
    Vf a00 = mul(load(out0 + d), f0), a01 = mul(load(out0 + d + 16), f0);
    Vf a10 = mul(load(out1 + d), f1), a11 = mul(load(out1 + d + 16), f1);
    for (int64_t k = 0; k < num_keys; ++k) {
      const Vf x0 = load(keys[k] + d), x1 = load(keys[k] + d + 16);
      const Vf w0 = broadcast(weights0[k]), w1 = broadcast(weights1[k]);
      a00 = fmadd(w0, x0, a00);
      a01 = fmadd(w0, x1, a01);
      a10 = fmadd(w1, x0, a10);
      a11 = fmadd(w1, x1, a11);
    }
    store(out0 + d, a00);
    store(out0 + d + 16, a01);
    store(out1 + d, a10);
    store(out1 + d + 16, a11);
  }
  for (; d < dim; d += 16) {
    Vf a0 = mul(load(out0 + d), f0), a1 = mul(load(out1 + d), f1);
    for (int64_t k = 0; k < num_keys; ++k) {
      const Vf x = load(keys[k] + d);
      a0 = fmadd(broadcast(weights0[k]), x, a0);
      a1 = fmadd(broadcast(weights1[k]), x, a1);
    }
    store(out0 + d, a0);
    store(out1 + d, a1);
  }
}

struct HeadState {
  float largest = -1e30f;
  float total = 0;
};

// Turns a block's scores into weights in place, updates the head's running state and returns the decay of what was
// summed before. `weights` has room for 64 and is padded with zeros.
inline float weigh_block(HeadState& head, float* weights, int64_t num_keys, float scale, bool round) {
  float largest = head.largest;
  for (int64_t k = 0; k < num_keys; ++k) {
    weights[k] *= scale;
    largest = std::max(largest, weights[k]);
  }
  for (int64_t k = num_keys; k < kKeysPerBlock; ++k) weights[k] = -std::numeric_limits<float>::infinity();
  for (int64_t k = 0; k < kKeysPerBlock; ++k) weights[k] = exp_f32(weights[k] - largest);
  const float decay = exp_f32(head.largest - largest);
  const float sum = sum_lanes(add(add(load(weights), load(weights + 16)), add(load(weights + 32), load(weights + 48))));
  head.total = head.total * decay + sum;
  head.largest = largest;
  if (round) {
    for (int64_t k = 0; k < kKeysPerBlock; ++k) weights[k] = round_to_bfloat16(weights[k]);
  }
  return decay;
}

// What a query reads, in this order.
struct QueryRows {
  ops::RowTable window;
  int64_t window_begin = 0;
  int64_t num_window = 0;
  ops::RowTable compressed;
  const int32_t* selected = nullptr;
  int64_t num_selected = 0;
};

inline bool is_padding(const ops::AttentionArgs& a, int64_t token) {
  return a.positions[token] < 0 || a.window.blocks[token] == nullptr;
}

inline QueryRows rows_of(const ops::AttentionArgs& a, int64_t token) {
  QueryRows rows;
  rows.window = a.window.of(token);
  const int64_t position = a.positions[token];
  const int64_t first = a.first_window_row != nullptr ? a.first_window_row[token] : 0;
  rows.window_begin = std::max(std::max<int64_t>(0, position + 1 - a.window_size), first <= position ? first : 0);
  rows.num_window = position + 1 - rows.window_begin;
  if (a.compressed.blocks != nullptr && a.compressed.blocks[token] != nullptr) {
    rows.compressed = a.compressed.of(token);
    rows.selected = a.selected.row(token);
    rows.num_selected = a.num_selected[token];
  }
  return rows;
}

// A group of a token's heads.
inline void attend(const ops::AttentionArgs& a, int64_t token, int64_t first_head, int64_t num_heads,
                   Scratch& scratch) {
  const int64_t dim = a.q.cols / a.num_heads;
  const bool rotates = a.cosine.data != nullptr;
  float* buffer =
      scratch.get<float>(kKeysPerBlock * dim + num_heads * kKeysPerBlock + (rotates ? 2 : 1) * num_heads * dim);
  float* weights = buffer + kKeysPerBlock * dim;
  float* sums = weights + num_heads * kKeysPerBlock;
  std::memset(sums, 0, num_heads * dim * sizeof(float));
  const float* q = a.q.f32().row(token) + first_head * dim;
  float* outs = a.out.f32().row(token) + first_head * dim;
  const auto rotate = [&](float* heads, float sign) {
    rotate_heads(heads, num_heads, dim, a.cosine.row(token), a.sine.row(token), a.cosine.cols, sign, a.round_to_bf16);
  };
  if (rotates) {
    float* rotated = sums + num_heads * dim;
    std::memcpy(rotated, q, num_heads * dim * sizeof(float));
    rotate(rotated, 1.0f);
    q = rotated;
  }
  HeadState heads[kHeadsPerTask];
  const float* keys[kKeysPerBlock];
  const QueryRows source = rows_of(a, token);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const int64_t num_total = source.num_window + source.num_selected;

  for (int64_t begin = 0; begin < num_total; begin += kKeysPerBlock) {
    const int64_t count = std::min(kKeysPerBlock, num_total - begin);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = begin + k;
      keys[k] = i < source.num_window
                    ? read_row(source.window, source.window_begin + i, buffer + k * dim)
                    : read_row(source.compressed, source.selected[i - source.num_window], buffer + k * dim);
    }
    // Odd counts repeat a head or key; the repeated result is computed twice and is the same.
    for (int64_t h = 0; h < num_heads; h += 2) {
      const int64_t other = std::min(h + 1, num_heads - 1);
      for (int64_t k = 0; k < count; k += 2) {
        float s0[2], s1[2];
        dot_2x2(q + h * dim, q + other * dim, keys[k], keys[std::min(k + 1, count - 1)], dim, s0, s1);
        for (int64_t i = 0; i < 2 && k + i < count; ++i) {
          weights[h * kKeysPerBlock + k + i] = s0[i];
          weights[other * kKeysPerBlock + k + i] = s1[i];
        }
      }
    }
    float decay[kHeadsPerTask];
    for (int64_t h = 0; h < num_heads; ++h) {
      decay[h] = weigh_block(heads[h], weights + h * kKeysPerBlock, count, scale, a.round_to_bf16);
    }
    for (int64_t h = 0; h + 2 <= num_heads; h += 2) {
      accumulate_2(sums + h * dim, sums + (h + 1) * dim, decay[h], decay[h + 1], weights + h * kKeysPerBlock,
                   weights + (h + 1) * kKeysPerBlock, keys, count, dim);
    }
    if (num_heads % 2 == 1) {  // the last head alone, its twin written to the block's spare buffer row
      const int64_t h = num_heads - 1;
      float* spare = outs + h * dim;
      std::memset(spare, 0, dim * sizeof(float));
      accumulate_2(sums + h * dim, spare, decay[h], 0, weights + h * kKeysPerBlock, weights + h * kKeysPerBlock, keys,
                   count, dim);
    }
  }
  for (int64_t h = 0; h < num_heads; ++h) {
    const float total = heads[h].total + exp_f32(a.sink[first_head + h] - heads[h].largest);
    float* out = outs + h * dim;
    for (int64_t d = 0; d < dim; ++d) out[d] = round_bf16_if(sums[h * dim + d] / total, a.round_to_bf16);
  }
  if (rotates) rotate(outs, -1.0f);
}

inline void attention_kernel(Stream& stream, const ops::AttentionArgs& a) {
  const int64_t groups = (a.num_heads + kHeadsPerTask - 1) / kHeadsPerTask;
  for_ranges(stream, a.q.rows * groups, 1, [&](int64_t task, int64_t, int thread) {
    const int64_t first_head = task % groups * kHeadsPerTask;
    if (is_padding(a, task / groups)) return;
    attend(a, task / groups, first_head, std::min(kHeadsPerTask, a.num_heads - first_head),
           cpu_stream(stream).thread_scratch(thread));
  });
}

inline void fill_attention(ops::OpTable& table) { table.attention = attention_kernel; }

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
