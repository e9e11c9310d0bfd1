"""The drafter's training forward: blocks of five rows behind sampled anchors, over the frozen target's features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from reference import rope

from .hyper import spread
from .weights import expert_matrices, stored_values


@dataclass
class Blocks:
    """Blocks [R = rows of the batch x anchors], flattened."""

    row: torch.Tensor  # int64 [R]: batch row
    anchor: torch.Tensor  # int64 [R]: position of the anchor in it
    h: torch.Tensor = None  # bf16 [R, block, D]: collapsed streams before the norm


class DraftModel:
    def __init__(self, target_model, drafter):
        """target_model: a FastModel, whose compiled functions and tables are shared."""
        self.model, self.drafter, self.f = target_model, drafter, target_model.f
        self.config, self.block, self.noise = drafter.config, drafter.block, drafter.noise
        self.window = self.config.sliding_window
        self._table = None

    def values(self):
        return stored_values(self.drafter)

    def _rope(self, positions):
        if self._table is None or self._table[0].device != positions.device:
            frequencies = rope.frequencies(self.config.qk_rope_head_dim, self.config.rope_theta)
            every = torch.arange(self.config.max_position_embeddings + self.block, device=positions.device)
            self._table = rope.cos_sin(every, frequencies, torch.float32)
        return tuple(t[positions.flatten()] for t in self._table)

    def features(self, taps, v):
        """[B, N, D] from the target's stream means by layer."""
        joined = torch.cat([taps[layer] for layer in self.drafter.targets], dim=-1)
        flat = self.f.draft_feature(joined.flatten(0, 1), v["mtp.0.main_proj.weight"], v["mtp.0.main_norm.weight"])
        return flat.unflatten(0, joined.shape[:2])

    def __call__(self, batch, features, target_values, v, row, anchor):
        """Blocks with h for anchors at positions anchor[R] of batch rows row[R]. (Blocks, loads per stage)"""
        b, n = batch.tokens.shape
        count, block = len(row), self.block
        config, f = self.config, self.f
        ids = torch.full((count, block), self.noise, device=row.device)
        ids[:, 0] = batch.tokens[row, anchor]
        positions = anchor.unsqueeze(1) + torch.arange(block, device=row.device)
        cos, sin = self._rope(positions)
        every = torch.arange(n, device=row.device).expand(b, n)
        context_table = self._rope(every)
        near = anchor.unsqueeze(1) - torch.arange(self.window, 0, -1, device=row.device)
        known = near >= batch.start[row, anchor].unsqueeze(1)
        allowed = torch.cat((known, torch.ones(count, block, dtype=torch.bool, device=row.device)), dim=1)
        near = near.clamp(min=0)
        x = F.embedding(ids.flatten(), target_values["embed.weight"]).detach()
        x = x.unsqueeze(1).expand(-1, config.hc_mult, -1).contiguous()
        a = torch.zeros(x.shape[0], config.hc_mult, device=x.device)
        a[:, 0] = 1.0
        loads = []
        for stage in range(len(self.drafter.mtp)):
            p = "mtp.%d." % stage
            cached = f.draft_context(
                features.flatten(0, 1), v[p + "attn.wkv.weight"], v[p + "attn.kv_norm.weight"], *context_table
            ).view(b, n, -1)
            u, next_a, c, m = self._mix_in(x, a, v, p, "attn")
            linears = ("wq_a.weight", "q_norm.weight", "wq_b.weight", "wkv.weight", "kv_norm.weight")
            _, q, kv = f.queries_and_window(u, *(v[p + "attn." + w] for w in linears), cos, sin, config.num_attention_heads)
            keys = torch.cat((cached[row.unsqueeze(1), near], kv.unflatten(0, (count, block))), dim=1)
            o = f.draft_attention(q.unflatten(0, (count, block)), keys, allowed, v[p + "attn.attn_sink"])
            y = f.attention_out(
                o.flatten(0, 1), v[p + "attn.wo_a.weight"], v[p + "attn.wo_b.weight"], cos, sin, config.o_groups
            )
            x, a = spread(x, y, c, m), next_a
            u, next_a, c, m = self._mix_in(x, a, v, p, "ffn")
            into, out = expert_matrices(v, p + "ffn.")
            gate, bias = v[p + "ffn.gate.weight"], v[p + "ffn.gate.bias"]
            y, load = f.moe(
                u, gate, bias, into, out, config.num_experts_per_tok, config.routed_scaling_factor, config.swiglu_limit
            )
            loads.append(load)
            x, a = spread(x, y, c, m), next_a
        return Blocks(row, anchor, f.collapse(x, a).view(count, block, -1)), loads

    def _mix_in(self, x, a, v, prefix, sub):
        names = ("hc_%s_fn", "hc_%s_scale", "hc_%s_base")
        return self.f.mix_in(x, a, *(v[prefix + name % sub] for name in names), v[prefix + "%s_norm.weight" % sub])

    def last(self, v, name):
        return v["mtp.%d.%s" % (len(self.drafter.mtp) - 1, name)]

    @torch.no_grad()
    def greedy(self, blocks, anchor_tokens, target_values, v):
        """(drafts [R, block], confidence logits [R, block]): left to right, each row biased by the token before."""
        h = blocks.h
        norm, head = self.last(v, "norm.weight"), target_values["head.weight"]
        embed, markov = self.last(v, "markov_head.embed.weight"), self.last(v, "markov_head.head.weight")
        proj = self.last(v, "confidence_head.proj.weight").float()
        from .blocks import exact_linear, rms_norm

        previous, drafts, logits_z = anchor_tokens, [], []
        for k in range(self.block):
            e = embed[previous]
            logits = exact_linear(rms_norm(h[:, k], norm), head) + exact_linear(e, markov)
            previous = logits.argmax(dim=-1)
            drafts.append(previous)
            logits_z.append((torch.cat((h[:, k], e), dim=-1).float() @ proj.t()).squeeze(-1))
        return torch.stack(drafts, dim=1), torch.stack(logits_z, dim=1)
