"""RMSNorm with a bfloat16 weight."""

import torch
from torch import nn


def rms_norm(x, weight, eps):
    """w * x / sqrt(mean(x^2) + eps) over the last axis; the caller rounds."""
    return weight * (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps))


class RMSNorm(nn.Module):
    FORMATS = {"weight": "bf16"}

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, numerics):
        return numerics.bf16(rms_norm(x, numerics.weight(self.weight, "bf16"), self.eps))
