"""Indexer: scores compressed rows for each query, keeps the best, and names candidate rows for later layers.

Keys always are those of the layer's own KV source. Ties go to the lower row, and to the lower block.
"""

import torch
from torch import nn

from . import rope
from .linear import Bf16Linear, QuantizedLinear
from .norm import RMSNorm


def visible_rows(num_tokens, ratio, device):
    """bool [tokens, tokens // ratio]: row g is visible at position p iff g < (p + 1) // ratio."""
    count = (torch.arange(num_tokens, device=device) + 1) // ratio
    return torch.arange(num_tokens // ratio, device=device) < count[:, None]


def index_scores(q, k, weights, numerics):
    """sum over heads of relu(q . k) * weight: q [b, n, heads, d], k [b, g, d], weights [b, n, heads] to [b, n, g]."""
    dots = numerics.index_score(torch.einsum("bnhd,bgd->bnhg", q, k))
    products = numerics.index_score(torch.relu(dots) * weights.unsqueeze(-1))
    return numerics.index_score(products.sum(dim=-2))


def best(scores, allowed, count):
    """bool mask of the `count` best allowed entries along the last axis; ties go to the lower index."""
    count = min(count, scores.shape[-1])
    masked = (scores.detach() + 0.0).masked_fill(~allowed, float("-inf"))  # + 0.0 makes -0 and 0 tie
    order = torch.sort(masked, dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(allowed).scatter(-1, order[..., :count], True) & allowed


def candidate_rows(scores, visible, num_blocks, block_size):
    """bool [b, n, g]: rows of the best blocks by their best visible row; the newest visible row's block is forced."""
    rows = scores.shape[-1]
    padding = -rows % block_size
    masked = scores.detach().masked_fill(~visible, float("-inf"))
    masked = nn.functional.pad(masked, (0, padding), value=float("-inf"))
    blocks = masked.unflatten(-1, ((rows + padding) // block_size, block_size)).amax(dim=-1)
    newest = torch.div(visible.sum(dim=-1, keepdim=True) - 1, block_size, rounding_mode="floor")
    index = torch.arange(blocks.shape[-1], device=scores.device)
    blocks = blocks.masked_fill(index == newest, float("inf"))
    kept = best(blocks, blocks > float("-inf"), num_blocks)
    return kept.repeat_interleave(block_size, dim=-1)[..., :rows]


def row_list(selected, width):
    """int64 [..., width]: selected rows ascending, -1 after the last."""
    rows = selected.shape[-1]
    index = torch.arange(rows, device=selected.device).expand(selected.shape)
    index = index.masked_fill(~selected, rows).sort(dim=-1).values[..., :width]
    return index.masked_fill(index == rows, -1)


class Indexer(nn.Module):
    """Query side in every index source; key side (wk, k_norm) only where the layer owns its KV."""

    def __init__(self, config, owns_keys):
        super().__init__()
        self.heads, self.size = config.index_n_heads, config.index_head_dim
        self.wq_b = QuantizedLinear(config.q_lora_rank, self.heads * self.size)
        self.weights_proj = Bf16Linear(config.hidden_size, self.heads)
        if owns_keys:
            self.wk = Bf16Linear(config.head_dim, self.size)
            self.k_norm = RMSNorm(self.size, config.rms_norm_eps)

    def keys(self, latent, table, numerics):
        """Index keys [batch, rows, size] from latents before their RoPE; `table` at the rows' first tokens."""
        key = self.k_norm(self.wk(latent, numerics), numerics)
        return numerics.index_row(rope.rotate(key, table, numerics))

    def scores(self, qr, u, keys, table, numerics):
        query = self.wq_b(qr, numerics).unflatten(-1, (self.heads, self.size))
        query = numerics.index_row(rope.rotate(query, table, numerics))
        factor = self.size**-0.5 * self.heads**-0.5
        weights = numerics.index_score(self.weights_proj(u, numerics) * factor)
        return index_scores(query, keys, weights, numerics)
