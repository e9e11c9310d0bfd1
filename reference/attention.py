"""Attention over a sliding window and selected compressed rows, one shared key/value latent for all heads."""

import torch
from torch import nn

from . import indexer, rope
from .compressor import Compressor
from .linear import QuantizedLinear
from .norm import RMSNorm


class SharedRows:
    """What source layers leave for later layers within one forward pass; rows and keys by KV source."""

    def __init__(self):
        self.compressed = {}  # [batch, rows, head_dim], rotated and quantised
        self.index_keys = {}  # [batch, rows, index_head_dim]
        self.candidates = None  # bool [batch, tokens, rows]
        self.selected = None  # bool [batch, tokens, rows], of the last index source


def window_mask(num_tokens, window, device):
    """bool [tokens, tokens]: query p sees p' in [p - window + 1, p]."""
    position = torch.arange(num_tokens, device=device)
    distance = position[:, None] - position
    return (distance >= 0) & (distance < window)


def softmax_with_sink(scores, allowed, sink, numerics):
    """(rounded weights, denominator) of scores [b, h, n, k]. The sink enters the denominator only, unscaled."""
    scores = scores.masked_fill(~allowed, float("-inf"))
    largest = scores.detach().amax(dim=-1, keepdim=True)  # a common factor of both results: needs no gradient
    weights = torch.exp(scores - largest)
    denominator = weights.sum(dim=-1, keepdim=True) + torch.exp(sink[:, None, None] - largest)
    return numerics.bf16(weights), denominator


def attend_dense(q, window_rows, compressed, selected, sink, window, numerics):
    """Masked attention over all rows. q [b, n, h, d]; rows [b, n or g, d]; selected bool [b, n, g].

    Returns the output [b, n, h, d] and the probabilities of compressed rows [b, h, n, g].
    """
    batch, num_tokens = q.shape[:2]
    keys = torch.cat((window_rows, compressed), dim=1)
    band = window_mask(num_tokens, window, q.device).expand(batch, -1, -1)
    allowed = torch.cat((band, selected), dim=-1).unsqueeze(1)
    scores = torch.einsum("bnhd,bkd->bhnk", q, keys) * q.shape[-1] ** -0.5
    weights, denominator = softmax_with_sink(scores, allowed, sink, numerics)
    out = torch.einsum("bhnk,bkd->bhnd", weights, keys) / denominator
    return out.transpose(1, 2), weights[..., num_tokens:] / denominator


def attend_gather(q, window_rows, compressed, selected, sink, window, numerics):
    """The same function over gathered rows: the window ascending, then the selected rows ascending."""
    batch, num_tokens = q.shape[:2]
    position = torch.arange(num_tokens, device=q.device)
    index = (position[:, None] - torch.arange(window - 1, -1, -1, device=q.device)).expand(batch, -1, -1)
    rows = indexer.row_list(selected, int(selected.sum(dim=-1).max()) if selected.numel() else 0)
    index = torch.cat((index, torch.where(rows < 0, rows, rows + num_tokens)), dim=-1)
    keys = torch.cat((window_rows, compressed), dim=1)
    batch_index = torch.arange(batch, device=q.device)[:, None, None]
    keys = keys[batch_index, index.clamp(min=0)]  # [b, n, k, d]
    scores = torch.einsum("bnhd,bnkd->bhnk", q, keys) * q.shape[-1] ** -0.5
    weights, denominator = softmax_with_sink(scores, (index >= 0).unsqueeze(1), sink, numerics)
    out = torch.einsum("bhnk,bnkd->bhnd", weights, keys) / denominator
    probabilities = (weights[..., window:] / denominator).transpose(1, 2)  # [b, n, h, k]
    spread = probabilities.new_zeros(*probabilities.shape[:3], compressed.shape[1] + 1)
    target = torch.where(rows < 0, torch.full_like(rows, compressed.shape[1]), rows)
    spread = spread.scatter(-1, target.unsqueeze(2).expand(probabilities.shape), probabilities)
    return out.transpose(1, 2), spread[..., :-1].transpose(1, 2)


ATTEND = {"dense": attend_dense, "gather": attend_gather}


class Attention(nn.Module):
    FORMATS = {"attn_sink": "f32"}

    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.config = layer, config
        self.ratio, self.source = config.ratio(layer), config.kv_source(layer)
        heads, size, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        self.wq_a = QuantizedLinear(config.hidden_size, config.q_lora_rank)
        self.q_norm = RMSNorm(config.q_lora_rank, eps)
        self.wq_b = QuantizedLinear(config.q_lora_rank, heads * size)
        self.wkv = QuantizedLinear(config.hidden_size, size)
        self.kv_norm = RMSNorm(size, eps)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wo_a = QuantizedLinear(heads * size // config.o_groups, config.o_groups * config.o_lora_rank)
        self.wo_b = QuantizedLinear(config.o_groups * config.o_lora_rank, config.hidden_size)
        if self.ratio and config.is_kv_source(layer):
            self.compressor = Compressor(config, self.ratio)
        if self.ratio and config.is_index_source(layer):
            self.indexer = indexer.Indexer(config, owns_keys=config.is_kv_source(layer))

    def forward(self, u, table, shared, numerics, options, record):
        """u [b, n, hidden]; table: cos and sin of the layer's RoPE at every token."""
        config = self.config
        qr = self.q_norm(self.wq_a(u, numerics), numerics)
        q = self.wq_b(qr, numerics).unflatten(-1, (config.num_attention_heads, config.head_dim))
        q = rope.rotate(q, table, numerics)
        kv = self.kv_norm(self.wkv(u, numerics), numerics)
        kv = numerics.window_row(rope.rotate(kv, table, numerics))
        record("window_rows", kv)
        compressed, selected = self._compressed(u, qr, table, shared, numerics, options, record)
        attend = ATTEND[options.attention]
        out, probabilities = attend(q, kv, compressed, selected, self.attn_sink, config.sliding_window, numerics)
        if record.wants("compressed_attention"):
            record("compressed_attention", probabilities.mean(dim=1))
        if record.wants("compressed_attention_heads"):
            record("compressed_attention_heads", probabilities)
        out = rope.rotate(numerics.bf16(out), table, numerics, inverse=True)
        return self._project(out, numerics)

    def _compressed(self, u, qr, table, shared, numerics, options, record):
        """Rows this layer may read and the mask of those it does; updates `shared` where the layer is a source."""
        if not self.ratio:
            nothing = u.new_zeros(u.shape[0], 0, self.config.head_dim)
            return nothing, torch.zeros(*u.shape[:2], 0, dtype=torch.bool, device=u.device)
        if hasattr(self, "compressor"):
            row_table = tuple(t[:: self.ratio][: u.shape[1] // self.ratio] for t in table)
            latent = self.compressor(u, numerics)
            index_latent = latent.detach() if options.detach_indexer else latent
            shared.index_keys[self.layer] = self.indexer.keys(index_latent, row_table, numerics)
            rows = numerics.compressed_row(rope.rotate(latent, row_table, numerics))
            shared.compressed[self.layer] = rows
            record("latents", latent)
            record("index_keys", shared.index_keys[self.layer])
            record("compressed_rows", rows)
        if hasattr(self, "indexer"):
            shared.selected = self._select(u, qr, table, shared, numerics, options, record)
        record("selected", shared.selected)
        return shared.compressed[self.source], shared.selected

    def _select(self, u, qr, table, shared, numerics, options, record):
        if options.detach_indexer:
            u, qr = u.detach(), qr.detach()
        config = self.config
        scores = self.indexer.scores(qr, u, shared.index_keys[self.source], table, numerics)
        visible = indexer.visible_rows(u.shape[1], self.ratio, u.device).expand(scores.shape)
        record("index_scores", scores)
        record("visible", visible)
        if self.layer == config.candidate_source_layer_id:
            blocks, size = config.candidate_topk_blocks, config.candidate_block_size
            shared.candidates = indexer.candidate_rows(scores, visible, blocks, size)
            record("candidates", shared.candidates)
        if options.selection == "all":
            return visible
        allowed = visible & shared.candidates if config.uses_candidates(self.layer) else visible
        return indexer.best(scores, allowed, config.index_topk)

    def _project(self, out, numerics):
        """Grouped low-rank output: wo_a takes its input as it is, wo_b quantises it."""
        groups = self.config.o_groups
        out = out.flatten(-2).unflatten(-1, (groups, self.wo_a.weight.shape[1]))
        weight = self.wo_a.values(numerics).unflatten(0, (groups, self.config.o_lora_rank))
        z = numerics.bf16(torch.einsum("bngi,goi->bngo", out, weight))
        return self.wo_b(z.flatten(-2), numerics)
