"""Compressor of KV source layers: pools groups of `ratio` tokens into one latent row each."""

import torch
from torch import nn

from .linear import Bf16Linear
from .norm import RMSNorm


def pool(values, gates):
    """Per-channel softmax over the group axis: [batch, groups, ratio, size] twice to [batch, groups, size]."""
    return (torch.softmax(gates, dim=-2) * values).sum(dim=-2)


class Compressor(nn.Module):
    def __init__(self, config, ratio):
        super().__init__()
        self.ratio = ratio
        self.wkv = Bf16Linear(config.hidden_size, config.head_dim)
        if ratio > 1:
            self.wgate = Bf16Linear(config.hidden_size, config.head_dim)
        self.norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, u, numerics):
        """Latents [batch, n // ratio, head_dim], before RoPE; tokens of an incomplete last group are left out."""
        if self.ratio == 1:
            return self.norm(self.wkv(u, numerics), numerics)
        groups = u.shape[1] // self.ratio
        u = u[:, : groups * self.ratio].unflatten(1, (groups, self.ratio))
        pooled = pool(self.wkv.raw(u, numerics), self.wgate.raw(u, numerics))
        return self.norm(numerics.bf16(pooled), numerics)
