"""Rotary positions on the last channels, adjacent pairs, with YaRN for layers that compress.

Frequencies and angles are float32 by definition: the angle is the rounded product of position and frequency, and
only its cosine and sine are taken in higher precision.
"""

import math

import numpy as np
import torch


def frequencies(rope_dim, theta, yarn=None):
    """float32 [rope_dim / 2]. `yarn` has factor, beta_fast, beta_slow, original_max_position_embeddings."""
    exponent = np.arange(0, rope_dim, 2, dtype=np.float32) / np.float32(rope_dim)
    base = (np.float64(theta) ** exponent.astype(np.float64)).astype(np.float32)
    freq = np.float32(1.0) / base
    if yarn is None:
        return freq
    ramp = _yarn_ramp(rope_dim, theta, yarn)
    return freq / np.float32(yarn.factor) * ramp + freq * (np.float32(1.0) - ramp)


def _yarn_ramp(rope_dim, theta, yarn):
    def channel(rotations):
        return rope_dim * math.log(yarn.original_max_position_embeddings / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(channel(yarn.beta_fast)), 0)
    high = min(math.ceil(channel(yarn.beta_slow)), rope_dim - 1)
    index = np.arange(rope_dim // 2, dtype=np.float32)
    return np.clip((index - np.float32(low)) / np.float32(max(high - low, 0.001)), 0, 1).astype(np.float32)


def cos_sin(positions, freq, dtype):
    """([n, rope_dim / 2], same) for an integer tensor of positions and float32 frequencies."""
    angle = positions.to(torch.float32)[:, None] * torch.as_tensor(freq, device=positions.device)
    angle = angle.to(torch.float64)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, table, numerics, inverse=False):
    """Rotates the last channels of x [batch, n, ..., size]; axis 1 is the one the table runs along."""
    cos, sin = (t.reshape(t.shape[0], *[1] * (x.dim() - 3), t.shape[1]) for t in table)
    if inverse:
        sin = -sin
    keep = x.shape[-1] - 2 * cos.shape[-1]
    a, b = x[..., keep::2], x[..., keep + 1 :: 2]
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :keep], numerics.bf16(rotated)), dim=-1)
