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
        num_experts = self.w1.shape[0]
        pair_of_slot, slot_of_pair = _expert_lists(experts, num_experts)
        pairs = numerics.linear_input(x).unsqueeze(1).expand(-1, count, -1).flatten(0, 1)
        gathered = _Reorder.apply(pairs, pair_of_slot, slot_of_pair).unflatten(0, (num_experts, pair_of_slot.numel() // num_experts))
        gathered_weights = _Reorder.apply(weights.flatten(), pair_of_slot, slot_of_pair).unflatten(0, (num_experts, pair_of_slot.numel() // num_experts))
        y = self._run(gathered, gathered_weights, numerics).flatten(0, 1)
        y = _Reorder.apply(y, slot_of_pair, pair_of_slot).unflatten(0, (tokens, count))
        total = y[:, 0]
        for k in range(1, count):
            total = total + y[:, k]
        return total

    def dense(self, x, experts, weights, numerics):
        """Every expert on every token, zero weight where not chosen: no data-dependent shapes."""
        all_weights = weights.new_zeros(x.shape[0], self.w1.shape[0]).scatter(-1, experts, weights)
        return self._run(numerics.linear_input(x).unsqueeze(0), all_weights.t(), numerics).sum(dim=0)


class _Reorder(torch.autograd.Function):
    """Rows of x at `index`, zeros at the index past the end. `inverse` leads every row of x back to its only copy, so the
    gradient is a gather as well: no atomic additions, hence fast and the same in every run."""

    @staticmethod
    def forward(ctx, x, index, inverse):
        ctx.save_for_backward(index, inverse)
        return _take(x, index)

    @staticmethod
    def backward(ctx, gradient):
        index, inverse = ctx.saved_tensors
        return _Reorder.apply(gradient, inverse, index), None, None


def _take(x, index):
    return torch.cat((x, x.new_zeros(1, *x.shape[1:])))[index]


def _expert_lists(experts, num_experts):
    """Pairs (token, choice) of experts [tokens, count] lined up by expert, each list padded to the longest.

    Returns the pair of each slot [E * longest], tokens * count in padding, and the slot of each pair [tokens * count].
    """
    flat = experts.flatten()
    order = torch.sort(flat, stable=True).indices
    sizes = torch.bincount(flat, minlength=num_experts)
    longest = int(sizes.max())
    starts = sizes.cumsum(0) - sizes
    sorted_experts = flat[order]
    slot = torch.arange(flat.numel(), device=flat.device) - starts[sorted_experts] + sorted_experts * longest
    pair_of_slot = torch.full((num_experts * longest,), flat.numel(), dtype=torch.int64, device=flat.device)
    slot_of_pair = torch.empty_like(slot)
    pair_of_slot[slot] = order
    slot_of_pair[order] = slot
    return pair_of_slot, slot_of_pair


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
