"""Engram: hashed n-gram memory, added to the residual streams at the entry of its layers.

Row ids depend on token ids only. The hash works on compressed ids; a position of an image is DEAD: it takes part in
no n-gram and its own gate is shut.
"""

import numpy as np
import torch
from torch import nn

from .linear import QuantizedLinear

DEAD = -1
GATE_FLOOR = 1e-6


def hash_multipliers(layer, count, compressed_vocab_size):
    """Odd multipliers, one per look-back distance; a product with any compressed id stays below 2^63."""
    bound = max(1, (2**63 - 1) // compressed_vocab_size // 2)
    draws = np.random.default_rng(10007 * layer).integers(0, bound, size=count, dtype=np.int64)
    return [2 * int(d) + 1 for d in draws]


def _is_prime(n):
    if n < 4:
        return n > 1
    if n % 2 == 0:
        return False
    return all(n % d for d in range(3, int(n**0.5) + 1, 2))


def bucket_primes(num_layers, orders, heads, start):
    """[layer][order][head]: ascending from `start` again for each order, no prime used twice in the whole model."""
    used = set()
    layers = []
    for _ in range(num_layers):
        rows = []
        for _ in range(orders):
            row, candidate = [], start - 1
            while len(row) < heads:
                candidate += 1
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
            rows.append(row)
        layers.append(rows)
    return layers


def table_offsets(primes):
    """First table row of each column, columns ordered by n-gram order, then head."""
    flat = [p for row in primes for p in row]
    return [sum(flat[:i]) for i in range(len(flat))]


class EngramHash:
    """Row ids of all Engram layers for sequences that start at position 0."""

    def __init__(self, config):
        self.size = config.engram_max_ngram_size
        self.primes = bucket_primes(
            len(config.engram_layer_ids), self.size - 1, config.engram_n_heads, config.engram_vocab_size
        )
        self.offsets = [table_offsets(p) for p in self.primes]
        self.multipliers = [
            hash_multipliers(layer, self.size, config.engram_compressed_vocab_size) for layer in config.engram_layer_ids
        ]
        for layer, primes, rows in zip(config.engram_layer_ids, self.primes, config.engram_num_embeddings):
            if sum(map(sum, primes)) != rows:
                raise ValueError("layer %d: Engram primes sum to %d, config says %d" % (layer, sum(map(sum, primes)), rows))

    def windows(self, compressed, pad):
        """[batch, n, size]: the id at each look-back distance, `pad` from the first blocked one on."""
        batch, length = compressed.shape
        ids, blocked, is_blocked = [], [], torch.zeros_like(compressed, dtype=torch.bool)
        for distance in range(self.size):
            shifted = torch.full_like(compressed, DEAD)
            shifted[:, distance:] = compressed[:, : max(length - distance, 0)]
            is_blocked = is_blocked | (shifted == DEAD)
            ids.append(torch.where(is_blocked, torch.full_like(shifted, pad), shifted))
        return torch.stack(ids, dim=-1)

    def rows(self, compressed, pad, index):
        """int64 [batch, n, columns] for the index-th Engram layer; `compressed` is int64 with DEAD at images."""
        window = self.windows(compressed, pad)
        mixed = window[..., 0] * self.multipliers[index][0]
        columns, offsets = [], iter(self.offsets[index])
        for order, primes in enumerate(self.primes[index], start=1):
            mixed = torch.bitwise_xor(mixed, window[..., order] * self.multipliers[index][order])
            columns += [mixed % prime + next(offsets) for prime in primes]
        return torch.stack(columns, dim=-1)


def gate(x, key, q_weight, k_weight, eps):
    """Gates [..., h] of streams x and keys [..., h, hidden]: a signed square root, then a sigmoid."""
    dot = (x * (q_weight * k_weight) * key).sum(dim=-1)
    dot = dot * torch.rsqrt(x.square().mean(dim=-1) + eps) * torch.rsqrt(key.square().mean(dim=-1) + eps)
    dot = dot / x.shape[-1] ** 0.5
    return torch.sigmoid(torch.copysign(dot.abs().clamp(min=GATE_FLOOR).sqrt(), dot))


class EngramTable(nn.Module):
    FORMATS = {"weight": "fp8_row"}

    def __init__(self, rows, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, size))

    def forward(self, rows, numerics):
        return numerics.weight(nn.functional.embedding(rows, self.weight), "fp8_row")


class Engram(nn.Module):
    FORMATS = {"q_weight": "bf16", "k_weight": "bf16"}

    def __init__(self, config, num_rows):
        super().__init__()
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.streams, self.eps = config.hc_mult, config.rms_norm_eps
        self.embed = EngramTable(num_rows, config.engram_head_dim)
        self.wkv = QuantizedLinear(columns * config.engram_head_dim, (self.streams + 1) * config.hidden_size)
        self.q_weight = nn.Parameter(torch.ones(self.streams, config.hidden_size))
        self.k_weight = nn.Parameter(torch.ones(self.streams, config.hidden_size))

    def forward(self, x, rows, image_mask, numerics, record):
        """Streams x [batch, n, h, hidden] plus the gated memory; image_mask [batch, n] or None."""
        memory = numerics.bf16(self.embed(rows, numerics).flatten(-2))
        kv = self.wkv(memory, numerics).unflatten(-1, (self.streams + 1, x.shape[-1]))
        key, value = kv[..., :-1, :], kv[..., -1:, :]
        q_weight, k_weight = numerics.weight(self.q_weight, "bf16"), numerics.weight(self.k_weight, "bf16")
        opening = gate(x, key, q_weight, k_weight, self.eps)
        if image_mask is not None:
            opening = opening.masked_fill(image_mask.unsqueeze(-1), 0.0)
        record("engram_rows", rows)
        record("engram_gate", opening)
        return numerics.bf16(x + opening.unsqueeze(-1) * value)
