"""The text backbone: token ids to logits of every position, causal, for sequences that start at position 0."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from . import mhc, rope
from .attention import Attention, SharedRows
from .engram import DEAD, Engram, EngramHash
from .moe import MoE
from .norm import RMSNorm
from .numerics import OFFICIAL
from .recording import LayerRecord


@dataclass(frozen=True)
class ForwardOptions:
    """Ways to compute the same function, and two that serve training of the indexer."""

    attention: str = "dense"  # "dense": masks over all rows; "gather": only the rows read
    experts: str = "grouped"  # "grouped": chosen pairs only; "dense": every expert on every token
    selection: str = "best"  # "all" attends to every visible compressed row (not the model: indexer warm-up)
    detach_indexer: bool = True  # index scores send no gradient into the backbone


class Layer(nn.Module):
    FORMATS = {"hc_%s_%s" % (sub, part): "f32" for sub in ("attn", "ffn") for part in ("fn", "base", "scale")}

    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        h = config.hc_mult
        for name in ("attn", "ffn"):
            self.register_parameter("hc_%s_fn" % name, nn.Parameter(torch.zeros(2 * h + h * h, h * config.hidden_size)))
            self.register_parameter("hc_%s_base" % name, nn.Parameter(torch.zeros(2 * h + h * h)))
            self.register_parameter("hc_%s_scale" % name, nn.Parameter(torch.ones(3)))
        if layer in config.engram_layer_ids:
            rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
            self.engram = Engram(config, rows)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = MoE(config)

    def mix(self, x, name):
        fn, scale, base = (getattr(self, "hc_%s_%s" % (name, part)) for part in ("fn", "scale", "base"))
        config = self.config
        return mhc.mix(x, fn, scale, base, config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps)

    def forward(self, x, a, table, shared, image_mask, numerics, options, record):
        """Streams x [b, n, h, hidden] and collapse weights a [b, n, h]: each `a` serves one sublayer after its own Mix."""
        record("streams", x)
        record("collapse", a)
        next_a, c, b = self.mix(x, "attn")
        u = self.attn_norm(numerics.bf16(mhc.collapse(a, x)), numerics)
        record("attention_input", u)
        y = self.attn(u, table, shared, numerics, options, record)
        record("attention_output", y)
        x = numerics.bf16(mhc.spread(c, b, y, x))
        a, (next_a, c, b) = next_a, self.mix(x, "ffn")
        u = self.ffn_norm(numerics.bf16(mhc.collapse(a, x)), numerics)
        record("ffn_input", u)
        y = self.ffn(u, image_mask, numerics, options, record)
        record("ffn_output", y)
        return numerics.bf16(mhc.spread(c, b, y, x)), next_a


class Embedding(nn.Module):
    FORMATS = {"weight": "bf16"}

    def __init__(self, rows, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, size))


class Transformer(nn.Module):
    """Parameter names are the released tensor names, but for the stacked routed experts (ffn.experts.w1, w2, w3)."""

    def __init__(self, config, token_map=None):
        """token_map: compressed id of every token id; needed if the model has Engram layers."""
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Embedding(config.vocab_size, config.hidden_size)
        self.hash = EngramHash(config) if config.engram_layer_ids else None
        if self.hash and token_map is None:
            raise ValueError("the model has Engram layers %s: pass token_map" % (config.engram_layer_ids,))
        token_map = np.asarray([] if token_map is None else token_map, dtype=np.int64)
        self.pad = int(token_map[config.engram_pad_token_id]) if self.hash else None
        self.register_buffer("token_map", torch.from_numpy(token_map), persistent=False)
        self._last_tables = (None, None)

    def forward(self, tokens, numerics=OFFICIAL, image_mask=None, embeddings=None, recording=None, options=ForwardOptions()):
        """tokens int64 [batch, n] to logits [batch, n, vocab].

        image_mask bool [batch, n] marks image positions; embeddings [batch, n, hidden] replaces the embedding there.
        """
        y = self.hidden(tokens, numerics, image_mask, embeddings, recording, options)
        return y @ numerics.weight(self.head.weight, "bf16").t()

    def hidden(self, tokens, numerics=OFFICIAL, image_mask=None, embeddings=None, recording=None, options=ForwardOptions()):
        """Normalised output [batch, n, hidden] that the head multiplies."""
        x = numerics.weight(nn.functional.embedding(tokens, self.embed.weight), "bf16")
        if embeddings is not None:
            x = torch.where(image_mask.unsqueeze(-1), numerics.bf16(embeddings), x)
        x = x.unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
        a = torch.eye(self.config.hc_mult, dtype=x.dtype, device=x.device)[0].expand(*tokens.shape, -1)
        tables = self._rope_tables(tokens.shape[1], x)
        rows = self.engram_rows(tokens, image_mask)
        shared = SharedRows()
        for index, layer in enumerate(self.layers):
            record = LayerRecord(recording, index)
            if index in rows:
                x = layer.engram(x, rows[index], image_mask, numerics, record)
            table = tables[self.config.ratio(index) > 0]
            x, a = layer(x, a, table, shared, image_mask, numerics, options, record)
        return self.norm(numerics.bf16(mhc.collapse(a, x)), numerics)

    def engram_rows(self, tokens, image_mask=None):
        """Row ids [batch, n, columns] by Engram layer."""
        if not self.hash:
            return {}
        compressed = self.token_map[tokens]
        if image_mask is not None:
            compressed = compressed.masked_fill(image_mask, DEAD)
        return {layer: self.hash.rows(compressed, self.pad, i) for i, layer in enumerate(self.config.engram_layer_ids)}

    def _rope_tables(self, num_tokens, x):
        """By whether the layer compresses: (cos, sin), each [n, rope_dim / 2]. Kept until another length is asked for."""
        key = (num_tokens, x.device, x.dtype)
        if self._last_tables[0] != key:
            config, positions = self.config, torch.arange(num_tokens, device=x.device)
            size = config.qk_rope_head_dim
            plain = rope.frequencies(size, config.rope_theta)
            compressing = rope.frequencies(size, config.compress_rope_theta, config.yarn)
            tables = {kind: rope.cos_sin(positions, f, x.dtype) for kind, f in ((False, plain), (True, compressing))}
            self._last_tables = (key, tables)
        return self._last_tables[1]


def drafter_taps(recording, layers, numerics):
    """Inputs of the drafter, [batch, n, hidden] a layer: the mean over the streams entering it (record "streams")."""
    return [numerics.bf16(recording[layer, "streams"].mean(dim=2)) for layer in layers]
