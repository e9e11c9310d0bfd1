"""The two linears of the backbone: with an FP8 weight and a BF16 weight. Weights are [out, in], no biases."""

import torch
from torch import nn


class QuantizedLinear(nn.Module):
    """LinQ: the input is fake-quantised (Act8) where the numerics ask for it, the output rounded to bf16."""

    FORMATS = {"weight": "fp8_tile"}

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))

    def values(self, numerics):
        return numerics.weight(self.weight, "fp8_tile")

    def forward(self, x, numerics):
        return numerics.bf16(numerics.linear_input(x) @ self.values(numerics).t())


class Bf16Linear(nn.Module):
    """LinB: no quantisation of the input. `raw` leaves the output unrounded."""

    FORMATS = {"weight": "bf16"}

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))

    def raw(self, x, numerics):
        return x @ numerics.weight(self.weight, "bf16").t()

    def forward(self, x, numerics):
        return numerics.bf16(self.raw(x, numerics))
