"""The whole training forward: reference parameters, compiled blocks, packed rows of several documents.

A Batch is rows of one length, each holding documents side by side. A document never sees another: its Engram history,
window and compressed rows begin at its start, which lies on a multiple of 8 tokens so that compressed groups and
candidate blocks are cut as if the document stood alone.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from reference import rope

from . import blocks
from .attention_paths import AttentionPaths
from .weights import expert_matrices, stored_values

DOCUMENT_ALIGNMENT = 8


@dataclass
class Batch:
    tokens: torch.Tensor  # int64 [B, N]
    start: torch.Tensor  # int64 [B, N]: position in the row where the token's document begins
    replay: torch.Tensor  # int64 [B, N]: window bound of the decoder layers, at least `start`
    labels: torch.Tensor  # int64 [B, N]: the next token
    weights: torch.Tensor  # float32 [B, N]: 0 where there is no next token

    def to(self, device):
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))


@dataclass
class Forward:
    loss: torch.Tensor = None  # sum of weighted losses
    losses: torch.Tensor = None  # [B, N], without gradient
    logits: torch.Tensor = None
    index_loss: torch.Tensor = None
    load: list = field(default_factory=list)  # tokens per expert, a tensor a layer
    taps: dict = field(default_factory=dict)  # stream means entering the drafter's target layers, [B, N, D]
    final: tuple = None  # (streams, collapse weights) behind the last layer
    engram_rows: dict = field(default_factory=dict)


class Compiled:
    """blocks.* by attribute, compiled on demand; falls back to eager for good if compiling fails."""

    def __init__(self, enabled, log=print):
        self.enabled, self.log, self._functions = enabled, log, {}

    # Small or rare: compiling them takes longer than it saves.
    EAGER = ("compress_pairs", "compress_each", "index_keys", "collapse", "head_logits")

    def compile(self, function):
        return torch.compile(function, dynamic=False) if self.enabled else function

    def __getattr__(self, name):
        if name not in self._functions:
            plain = getattr(blocks, name)
            self._functions[name] = plain if name in self.EAGER else self._guarded(name, plain)
        return self._functions[name]

    def _guarded(self, name, plain):
        fast, failed = self.compile(plain), []

        def call(*arguments):
            if not self.enabled or failed:
                return plain(*arguments)
            try:
                return fast(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as problem:
                failed.append(problem)
                self.log("compiling %s failed, running it eagerly: %s" % (name, (str(problem).splitlines() or [""])[0]))
                return plain(*arguments)

        return call


class FastModel:
    """Runs `target` (a reference.transformer.Transformer used as a container of parameters)."""

    def __init__(self, target, compiled=None, log=print):
        self.target, self.config = target, target.config
        self.f = compiled or Compiled(False)
        self.attend = AttentionPaths(self.config.sliding_window, self.f.compile if self.f.enabled else None, log)
        self.decoder_start = max(self.config.kv_source_layer_ids)
        self._tables = {}

    # --- per forward tables ----------------------------------------------------------------------------------------

    def _rope(self, batch, length, device):
        """By ratio > 0: (cos, sin), each [batch * length, pairs]."""
        key = (batch, length, device)
        if key not in self._tables:
            config, positions = self.config, torch.arange(length, device=device)
            tables = {}
            for compressing, theta, yarn in ((False, config.rope_theta, None), (True, config.compress_rope_theta, config.yarn)):
                frequencies = rope.frequencies(config.qk_rope_head_dim, theta, yarn)
                pair = rope.cos_sin(positions, frequencies, torch.float32)
                tables[compressing] = tuple(t.repeat(batch, 1) for t in pair)
            self._tables[key] = tables
        return self._tables[key]

    def visible(self, start, ratio):
        """bool [B, N, M]: rows that are complete at a query and belong to its document."""
        length = start.shape[1]
        row = torch.arange(length // ratio, device=start.device) * ratio
        query = torch.arange(length, device=start.device)
        return (row + ratio - 1 <= query[:, None]) & (row >= start.unsqueeze(-1))

    def engram_rows(self, tokens, start):
        """{layer: int64 [B, N, columns]}"""
        if not self.target.hash:
            return {}
        hashing, config = self.target.hash, self.config
        compressed = self.target.token_map[tokens]
        pad = self.target.token_map[config.engram_pad_token_id]
        position = torch.arange(tokens.shape[1], device=tokens.device)
        history = []
        for distance in range(hashing.size):
            shifted = F.pad(compressed, (distance, 0))[:, : tokens.shape[1]]
            history.append(torch.where(position - distance >= start, shifted, pad))
        result = {}
        for index, layer in enumerate(config.engram_layer_ids):
            mixed = history[0] * hashing.multipliers[index][0]
            columns = []
            for order in range(1, hashing.size):
                mixed = torch.bitwise_xor(mixed, history[order] * hashing.multipliers[index][order])
                primes = torch.tensor(hashing.primes[index][order - 1], device=tokens.device)
                columns.append(mixed.unsqueeze(-1) % primes)
            offsets = torch.tensor(hashing.offsets[index], device=tokens.device)
            result[layer] = torch.cat(columns, dim=-1) + offsets
        return result

    # --- selection -------------------------------------------------------------------------------------------------

    def _best(self, scores, allowed, count):
        if scores.shape[-1] <= count:
            return allowed
        masked = scores.masked_fill(~allowed, float("-inf"))
        threshold = masked.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        return (masked >= threshold) & allowed

    def _candidates(self, scores, visible):
        config = self.config
        size = config.candidate_block_size
        masked = scores.masked_fill(~visible, float("-inf"))
        rows = masked.shape[-1]
        masked = F.pad(masked, (0, -rows % size), value=float("-inf")).unflatten(-1, (-1, size)).amax(dim=-1)
        newest = torch.arange(scores.shape[1], device=scores.device) // size  # ratio 1: row t is complete at query t
        block = torch.arange(masked.shape[-1], device=scores.device)
        masked = masked.masked_fill(block == newest[:, None], float("inf"))
        kept = self._best(masked, masked > float("-inf"), config.candidate_topk_blocks)
        return kept.repeat_interleave(size, dim=-1)[..., :rows] & visible

    # --- forward ---------------------------------------------------------------------------------------------------

    def values(self):
        """Storage-format weights of one step; gradients reach the parameters through them."""
        return stored_values(self.target)

    def __call__(self, batch, values, sparse=True, index_queries=0, taps=(), want="loss", off=(), dropout=(0.0, 0.0)):
        """want: "loss", "logits" or "final". index_queries: sampled queries a row that train the indexer; 0 for none.

        off: names of parts to ablate, of "engram", "candidates". dropout: of sublayer outputs, and of whole Engram rows.
        """
        config, f, v = self.config, self.f, values
        b, n = batch.tokens.shape
        result = Forward()
        tables = self._rope(b, n, batch.tokens.device)
        rows = {} if "engram" in off else self.engram_rows(batch.tokens, batch.start)
        result.engram_rows = rows
        trainer = IndexTrainer(self, b, n, index_queries, batch.tokens.device) if index_queries else None
        x = F.embedding(batch.tokens.flatten(), v["embed.weight"]).unsqueeze(1).expand(-1, config.hc_mult, -1).contiguous()
        a = torch.zeros(b * n, config.hc_mult, device=x.device)
        a[:, 0] = 1.0
        shared = _Shared({r: self.visible(batch.start, r) for r in set(config.compress_ratios) - {0}})
        shared.ablated = off
        for layer in range(config.num_hidden_layers):
            prefix = "layers.%d." % layer
            if layer in rows:
                table = v[prefix + "engram.embed.weight"]
                memory = _drop_rows(F.embedding(rows[layer].flatten(0, 1), table), dropout[1]).flatten(1)
                x = f.engram(x, memory, *(v[prefix + "engram." + w] for w in ("wkv.weight", "q_weight", "k_weight")))
            if layer in taps:
                result.taps[layer] = x.float().mean(dim=1).to(x.dtype).view(b, n, -1)
            u, next_a, c, m = self._mix_in(x, a, v, prefix, "attn")
            y = self._attention(layer, u, v, tables, batch, shared, sparse, trainer)
            x, a = f_spread(x, _drop(y, dropout[0]), c, m), next_a
            u, next_a, c, m = self._mix_in(x, a, v, prefix, "ffn")
            y, load = self._moe(u, v, prefix, config)
            result.load.append(load)
            x, a = f_spread(x, _drop(y, dropout[0]), c, m), next_a
        result.final = (x, a)
        if want == "logits":
            result.logits = f.head_logits(x, a, v["norm.weight"], v["head.weight"]).view(b, n, -1)
        elif want == "loss":
            labels, weights = batch.labels.flatten(), batch.weights.flatten()
            result.loss, losses = f.head_loss(x, a, v["norm.weight"], v["head.weight"], labels, weights)
            result.losses = losses.view(b, n)
        if trainer:
            result.index_loss = trainer.loss()
        return result

    def _mix_in(self, x, a, v, prefix, sub):
        names = ("hc_%s_fn", "hc_%s_scale", "hc_%s_base")
        return self.f.mix_in(x, a, *(v[prefix + name % sub] for name in names), v[prefix + "%s_norm.weight" % sub])

    def _moe(self, u, v, prefix, config):
        into, out = expert_matrices(v, prefix + "ffn.")
        gate, bias = v[prefix + "ffn.gate.weight"], v[prefix + "ffn.gate.bias"]
        count, scaling = config.num_experts_per_tok, config.routed_scaling_factor
        return self.f.moe(u, gate, bias, into, out, count, scaling, config.swiglu_limit)

    def _attention(self, layer, u, v, tables, batch, shared, sparse, trainer):
        config, f, p = self.config, self.f, "layers.%d.attn." % layer
        b, n = batch.tokens.shape
        ratio = config.ratio(layer)
        cos, sin = tables[ratio > 0]
        linears = ("wq_a.weight", "q_norm.weight", "wq_b.weight", "wkv.weight", "kv_norm.weight")
        qr, q, kv = f.queries_and_window(u, *(v[p + w] for w in linears), cos, sin, config.num_attention_heads)
        keys, selected = kv.view(b, n, -1), None
        if ratio:
            if config.is_kv_source(layer):
                self._compress(layer, u, v, p, (cos[::ratio], sin[::ratio]), b, shared)
            if config.is_index_source(layer):
                query_weights = (v[p + "indexer.wq_b.weight"], v[p + "indexer.weights_proj.weight"])
                if sparse:
                    self._select(layer, qr.detach(), u.detach(), query_weights, (cos, sin), shared, b)
                else:
                    shared.selected = shared.visible[ratio]
                if trainer:
                    trainer.begin(qr.detach(), u.detach(), query_weights, (cos, sin), shared.keys, shared.visible[ratio])
            keys, selected = torch.cat((keys, shared.rows), dim=1), shared.selected
        bound = batch.replay if layer >= self.decoder_start else batch.start
        q = q.view(b, n, config.num_attention_heads, -1)
        sink = v[p + "attn_sink"]
        if trainer and ratio:
            trainer.observe(q, keys, bound, sink)
        o = self.attend(q, keys, bound, selected, sink).flatten(0, 1)
        return f.attention_out(o, v[p + "wo_a.weight"], v[p + "wo_b.weight"], cos, sin, config.o_groups)

    def _compress(self, layer, u, v, p, table, b, shared):
        f, c = self.f, p + "compressor."
        if self.config.ratio(layer) == 1:
            latent, rows = f.compress_each(u, v[c + "wkv.weight"], v[c + "norm.weight"], *table)
        elif self.config.ratio(layer) == 2:
            latent, rows = f.compress_pairs(u, v[c + "wkv.weight"], v[c + "wgate.weight"], v[c + "norm.weight"], *table)
        else:
            raise ValueError("layer %d: training covers ratios 0, 1 and 2" % layer)
        keys = f.index_keys(latent.detach(), v[p + "indexer.wk.weight"], v[p + "indexer.k_norm.weight"], *table)
        shared.rows, shared.keys = rows.unflatten(0, (b, -1)), keys.unflatten(0, (b, -1))

    @torch.no_grad()
    def _select(self, layer, qr, u, query_weights, table, shared, b):
        config = self.config
        visible = shared.visible[config.ratio(layer)]
        q, w = self.f.index_queries(qr, u, *query_weights, *table)
        scores = self.f.index_scores(q.unflatten(0, (b, -1)), w.unflatten(0, (b, -1)), shared.keys)
        if layer == config.candidate_source_layer_id:
            shared.candidates = self._candidates(scores, visible)
        restricted = config.uses_candidates(layer) and "candidates" not in shared.ablated
        shared.selected = self._best(scores, shared.candidates if restricted else visible, config.index_topk)


def _drop(x, p):
    return F.dropout(x, p) if p else x


def _drop_rows(rows, p):
    """rows [T, columns, size]: each row is kept whole or dropped whole."""
    return rows * F.dropout(torch.ones_like(rows[..., :1]), p) if p else rows


def f_spread(x, y, c, m):
    from .hyper import spread

    return spread(x, y, c, m)


class _Shared:
    """What source layers leave for later layers."""

    def __init__(self, visible):
        self.visible = visible  # by ratio
        self.rows = self.keys = self.selected = self.candidates = None
        self.ablated = ()


class IndexTrainer:
    """Teaches each index source where the layers that use its selection put their attention.

    On sampled queries, with all visible rows: the target is the attention mass of those layers per compressed row,
    normalised; the loss is the cross-entropy of the softmax of index scores, whose gradient is that of the KL.
    """

    def __init__(self, model, b, n, count, device):
        self.model, self.b, self.n = model, b, n
        self.sample = torch.randint(0, n, (b, count), device=device).sort(dim=-1).values
        self.groups = []

    def _gather(self, x):
        """Rows of the sampled queries from x [T, ...]: [b, count, ...]"""
        offset = torch.arange(self.b, device=x.device).unsqueeze(1) * self.n
        return x[(self.sample + offset).flatten()]

    def begin(self, qr, u, query_weights, table, keys, visible):
        arguments = [self._gather(t) for t in (qr, u)] + list(query_weights) + [self._gather(t) for t in table]
        q, w = blocks.index_queries(*arguments)
        q, w = q.unflatten(0, (self.b, -1)), w.unflatten(0, (self.b, -1))
        index = self.sample.unsqueeze(-1).expand(-1, -1, visible.shape[-1])
        self.groups.append([blocks.index_scores(q, w, keys), visible.gather(1, index), 0.0])

    @torch.no_grad()
    def observe(self, q, keys, bound, sink):
        """Attention mass of one layer on compressed rows, summed over its heads."""
        _, visible, _ = self.groups[-1]
        window = self.model.config.sliding_window
        q = q.gather(1, self.sample[:, :, None, None].expand(-1, -1, *q.shape[2:]))
        if not q.is_cuda:
            q, keys = q.float(), keys.float()
        scores = torch.einsum("bnhd,bkd->bhnk", q, keys).float() * q.shape[-1] ** -0.5
        distance = self.sample.unsqueeze(-1) - torch.arange(self.n, device=q.device)
        near = (distance >= 0) & (distance < window) & (torch.arange(self.n, device=q.device) >= bound.gather(1, self.sample).unsqueeze(-1))
        scores = scores.masked_fill(~torch.cat((near, visible), dim=-1).unsqueeze(1), float("-inf"))
        sinks = sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        mass = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., self.n : -1]
        self.groups[-1][2] = self.groups[-1][2] + mass.sum(dim=1)

    def loss(self):
        total = 0.0
        for scores, visible, mass in self.groups:
            some = visible.any(dim=-1, keepdim=True)
            target = mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-9)
            scores = scores.masked_fill(~visible, float("-inf")).masked_fill(~some, 0.0)
            logs = torch.log_softmax(scores, dim=-1).masked_fill(~visible, 0.0)
            entropy = -(target * target.clamp(min=1e-9).log()).sum(dim=-1)
            divergence = -(target * logs).sum(dim=-1) - entropy
            total = total + (divergence * some.squeeze(-1)).sum() / some.sum().clamp(min=1)
        return total / len(self.groups)
