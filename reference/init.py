"""Random parameters: a start for training, or weights that exercise every branch of a test without chaos."""

import math

import torch


def initialize(model, generator, style="train"):
    """Fills all parameters from a CPU torch.Generator, independent of the model's device and dtype.

    "train": streams start as near-independent copies that each sublayer reads in equal parts; matrices 1/sqrt(fan_in).
    "fixture": small matrices, and norms, sinks, biases and mixing spread around their neutral values.
    """
    fill = {"train": _train_value, "fixture": _fixture_value}[style]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(fill(name, noise, model.config))


def _kind(name):
    last, owner = name.split(".")[-1], name.split(".")[-2] if "." in name else ""
    if last in ("q_weight", "k_weight") or "norm" in owner:
        return "norm"
    if last.startswith("hc_"):
        return "mix_" + last.split("_")[-1]
    if last == "attn_sink" or last in ("bias", "bias_vl"):
        return last
    if owner == "gate":
        return "router"
    if owner == "embed":
        return "embedding"
    return "matrix"


def _train_value(name, noise, config):
    kind = _kind(name)
    if kind == "norm":
        return torch.ones_like(noise)
    if kind in ("attn_sink", "bias", "bias_vl"):
        return torch.zeros_like(noise)
    if kind == "mix_scale":
        return torch.full_like(noise, 0.1)
    if kind == "mix_base":
        return _neutral_base(config.hc_mult).to(noise)
    if kind == "embedding":
        # Engram rows start small, so that memories fade in instead of adding noise.
        return noise * (0.1 if "engram" in name else 1.0)
    return noise / math.sqrt(noise.shape[-1])


def _neutral_base(h):
    """Collapse reads 1/h of each stream, spread writes once to each, streams keep to themselves."""
    collapse = torch.full((h,), -math.log(h - 1.0) if h > 1 else 8.0)
    return torch.cat((collapse, torch.zeros(h), (4.0 * torch.eye(h)).flatten()))


def _fixture_value(name, noise, config):
    kind = _kind(name)
    if kind == "norm":
        return 1 + 0.1 * noise
    if kind == "attn_sink":
        return noise
    if kind in ("bias", "bias_vl"):
        return 0.1 * noise
    if kind == "mix_scale":
        return 0.7 + 0.1 * noise.clamp(-2, 2)
    if kind == "mix_base":
        return 0.5 * noise
    if kind == "mix_fn":
        return noise / math.sqrt(noise.shape[-1])
    if kind == "router":
        return 2 * noise / math.sqrt(noise.shape[-1])
    if kind == "embedding":
        return noise * (0.5 if "engram" in name else 1.0)
    if name == "head.weight":
        return noise / math.sqrt(noise.shape[-1])
    return 0.25 * noise / math.sqrt(noise.shape[-1])
