"""Mixture of experts: a sqrt-softplus router with selection bias, clamped SwiGLU experts, one shared expert."""

import torch
from torch import nn

from .linear import QuantizedLinear


def route(scores, bias, count, scaling):
    """(experts [..., count] ascending, weights [..., count]); the bias helps to choose but is no part of a weight."""
    order = torch.sort((scores + bias).detach(), dim=-1, descending=True, stable=True).indices
    experts = order[..., :count].sort(dim=-1).values
    weights = scores.gather(-1, experts)
    return experts, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * scaling


def swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clamp(up, -limit, limit); the gate has no lower clamp."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(gate) * up.clamp(-limit, limit)


class Gate(nn.Module):
    """Biases steer selection only, so they get no gradient; training moves them by load."""

    FORMATS = {"weight": "bf16", "bias": "f32", "bias_vl": "f32"}

    def __init__(self, config):
        super().__init__()
        self.count, self.scaling = config.num_experts_per_tok, config.routed_scaling_factor
        self.temperature = config.gate_temp
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.n_routed_experts), requires_grad=False)
        self.bias_vl = nn.Parameter(torch.zeros(config.n_routed_experts), requires_grad=False)

    def forward(self, u, image_mask, numerics, record):
        logits = u @ numerics.weight(self.weight, "bf16").t()
        scores = nn.functional.softplus(logits / self.temperature).sqrt()
        bias = self.bias
        if image_mask is not None:
            bias = torch.where(image_mask.unsqueeze(-1), self.bias_vl, self.bias)
        experts, weights = route(scores, bias, self.count, self.scaling)
        record("router_scores", scores)
        record("chosen_experts", experts)
        record("expert_weights", weights)
        return experts, weights


class Experts(nn.Module):
    """All routed experts, stacked: w1 (gate) and w3 (up) [E, inter, hidden], w2 (down) [E, hidden, inter]."""

    FORMATS = {"w1": "fp4", "w2": "fp4", "w3": "fp4"}

    def __init__(self, config):
        super().__init__()
        count, hidden, inter = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.limit = config.swiglu_limit
        self.w1 = nn.Parameter(torch.zeros(count, inter, hidden))
        self.w2 = nn.Parameter(torch.zeros(count, hidden, inter))
        self.w3 = nn.Parameter(torch.zeros(count, inter, hidden))

    def _run(self, x, weights, numerics):
        """x [E or 1, tokens, hidden], already quantised; weights [E, tokens]."""
        w1, w2, w3 = (numerics.weight(w, "fp4").transpose(-1, -2) for w in (self.w1, self.w2, self.w3))
        gate, up = numerics.bf16(torch.matmul(x, w1)), numerics.bf16(torch.matmul(x, w3))
        inner = numerics.bf16(swiglu(gate, up, self.limit) * weights.unsqueeze(-1))
        return numerics.bf16(torch.matmul(numerics.linear_input(inner), w2))

    def grouped(self, x, experts, weights, numerics):
        """Only chosen pairs: tokens gathered by expert, padded to the longest list. Sums in ascending expert order."""
        tokens, count = experts.shape
        index, slot = _expert_lists(experts, self.w1.shape[0])
        x = numerics.linear_input(x)
        x = torch.cat((x, x.new_zeros(1, x.shape[1])))
        flat = torch.cat((weights.flatten(), weights.new_zeros(1)))
        y = self._run(x[torch.div(index, count, rounding_mode="floor")], flat[index], numerics)
        y = y[experts, slot]  # [tokens, count, hidden]
        total = y[:, 0]
        for k in range(1, count):
            total = total + y[:, k]
        return total

    def dense(self, x, experts, weights, numerics):
        """Every expert on every token, zero weight where not chosen: no data-dependent shapes."""
        all_weights = weights.new_zeros(x.shape[0], self.w1.shape[0]).scatter(-1, experts, weights)
        return self._run(numerics.linear_input(x).unsqueeze(0), all_weights.t(), numerics).sum(dim=0)


def _expert_lists(experts, num_experts):
    """For experts [tokens, count]: pair numbers by expert [E, longest], padded with tokens * count, and each pair's slot."""
    flat = experts.flatten()
    order = torch.sort(flat, stable=True).indices
    sizes = torch.bincount(flat, minlength=num_experts)
    starts = sizes.cumsum(0) - sizes
    slot = torch.arange(flat.numel(), device=flat.device) - starts[flat[order]]
    index = torch.full((num_experts, int(sizes.max())), flat.numel(), dtype=torch.int64, device=flat.device)
    index[flat[order], slot] = order
    slots = torch.empty_like(slot)
    slots[order] = slot
    return index, slots.reshape(experts.shape)


class SharedExpert(nn.Module):
    def __init__(self, config):
        super().__init__()
        inter = config.moe_intermediate_size * config.n_shared_experts
        self.limit = config.swiglu_limit
        self.w1 = QuantizedLinear(config.hidden_size, inter)
        self.w2 = QuantizedLinear(inter, config.hidden_size)
        self.w3 = QuantizedLinear(config.hidden_size, inter)

    def forward(self, x, numerics):
        inner = swiglu(self.w1(x, numerics), self.w3(x, numerics), self.limit)
        return self.w2(numerics.bf16(inner), numerics)


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = Gate(config)
        self.experts = Experts(config)
        self.shared_experts = SharedExpert(config)

    def forward(self, u, image_mask, numerics, options, record):
        experts, weights = self.gate(u, image_mask, numerics, record)
        run = getattr(self.experts, options.experts)
        routed = run(u.flatten(0, 1), experts.flatten(0, 1), weights.flatten(0, 1), numerics)
        return numerics.bf16(routed.unflatten(0, u.shape[:2]) + self.shared_experts(u, numerics))
