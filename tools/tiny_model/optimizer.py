"""Muon for matrices inside the layers, Adam for everything else, one learning rate table.

Muon orthogonalises the momentum of each matrix; matrices of one shape are stacked and go through it together.
"""

import re

import torch

MUON_RATE = 0.02
MUON_MOMENTUM = 0.95
MUON_DECAY = 0.15  # the text is read several times: decay and dropout are what keeps the model from learning it by heart
ADAM_BETAS = (0.9, 0.95)
ADAM_EPS = 1e-10

_MUON = re.compile(
    r"(wq_a|wq_b|wkv|wgate|wo_a|wo_b|wk|main_proj|shared_experts\.w[123])\.weight$|experts\.w[123]$"
)

# First match gives the Adam rate and its decay. Embeddings have entries near 1, mixing and gates near 1 / sqrt(inputs).
_ADAM_RATES = (
    (r"engram\.embed", 0.01, 0.1),
    (r"^embed\.", 0.01, 0.03),
    (r"markov_head", 0.004, 0.1),
    (r"^head\.", 0.003, 0.2),
    (r"hc_.*_base$|attn_sink$", 0.01, 0.0),
    (r"hc_.*_scale$", 0.003, 0.0),
    (r"hc_.*_fn$", 0.001, 0.0),
    (r"confidence", 0.002, 0.0),
    (r"gate\.weight|weights_proj", 0.002, 0.0),
    (r".", 0.003, 0.0),
)


def is_matrix(name):
    return _MUON.search(name) is not None


def adam_rate(name):
    """(rate, decay)"""
    return next(settings for pattern, *settings in _ADAM_RATES if re.search(pattern, name))


def orthogonalised(g):
    """Nearest semi-orthogonal matrices to g [n, rows, columns], by five steps of a quintic iteration, in bf16 on a GPU."""
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * (s @ s)) @ x
    return x if wide else x.transpose(-1, -2)


class Optimizer:
    """Rates are relative: step(scale) multiplies the whole table."""

    def __init__(self, named_parameters):
        named = [(n, p) for n, p in named_parameters if p.requires_grad]
        self.parameters = [p for _, p in named]
        shapes = {}
        for name, p in named:
            if is_matrix(name):
                shapes.setdefault(tuple(p.shape), []).append(p)
        self.muon = list(shapes.values())
        self.momentum = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.muon]
        rates = {}
        for name, p in named:
            if not is_matrix(name):
                rates.setdefault(tuple(adam_rate(name)), []).append(p)
        groups = [{"params": ps, "lr": rate, "rate": rate, "weight_decay": decay} for (rate, decay), ps in rates.items()]
        fused = bool(self.parameters) and self.parameters[0].is_cuda
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=ADAM_BETAS, eps=ADAM_EPS, fused=fused) if groups else None

    @torch.no_grad()
    def step(self, scale):
        for group, momentum in zip(self.muon, self.momentum):
            if all(p.grad is None for p in group):
                continue
            gradient = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in group])
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            direction = gradient.lerp_(momentum, MUON_MOMENTUM).flatten(0, -3)
            rows, columns = direction.shape[-2:]
            update = orthogonalised(direction).float().view(len(group), *group[0].shape)
            rate = MUON_RATE * scale
            torch._foreach_mul_(group, 1 - rate * MUON_DECAY)
            torch._foreach_add_(group, list(update.unbind()), alpha=-rate * max(1.0, rows / columns) ** 0.5)
        if self.adam:
            for settings in self.adam.param_groups:
                settings["lr"] = settings["rate"] * scale
            self.adam.step()

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def forget(self):
        """Drops all momentum, after parameters were replaced from outside."""
        for m in self.momentum:
            m.zero_()
        if self.adam:
            self.adam.state.clear()
