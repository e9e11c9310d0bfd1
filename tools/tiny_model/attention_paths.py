"""Attention of one layer over window and compressed rows: a flash kernel through FlexAttention, or plain PyTorch.

Rows: keys [B, N + M, d], the N window rows of the sequence, then its M = N // ratio compressed rows. A query reads
window rows k with k >= bound[query] and query - k < window, and the compressed rows of a boolean mask.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from .fast_quant import straight_through


def plain_attention(q, keys, bound, selected, sink, window):
    """q [B, N, H, d], keys [B, N + M, d], bound [B, N], selected bool [B, N, M], sink [H]: output [B, N, H, d]."""
    length = q.shape[1]
    scores = torch.einsum("bnhd,bkd->bhnk", q.float(), keys.float()) * q.shape[-1] ** -0.5
    allowed = torch.cat((window_rows(bound, length, window), selected), dim=-1).unsqueeze(1)
    scores = scores.masked_fill(~allowed, float("-inf"))
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(dim=-1, keepdim=True) + torch.exp(sink.view(1, -1, 1, 1) - largest)
    weights = straight_through(weights, weights.to(torch.bfloat16).float())
    out = torch.einsum("bhnk,bkd->bnhd", weights, keys.float())
    return (out / total.transpose(1, 2)).to(q.dtype)


def window_rows(bound, length, window):
    """bool [B, N, N]"""
    position = torch.arange(length, device=bound.device)
    distance = position[:, None] - position
    return (distance >= 0) & (distance < window) & (position >= bound.unsqueeze(-1))


def block_mask(length, ratio, window, device):
    """Blocks that any sequence of this length may read, by position alone."""

    def readable(batch, head, query, key):
        in_window = (key < length) & (query >= key) & (query - key < window)
        if ratio == 0:
            return in_window
        return in_window | ((key >= length) & ((key - length + 1) * ratio <= query + 1))

    rows = length + (length // ratio if ratio else 0)
    return create_block_mask(readable, None, None, length, rows, device=device)


def flex_path(q, keys, bound, selected, sink, blocks, window):
    """The same function as plain_attention; compile it."""
    length = q.shape[1]
    if selected is None:

        def score(s, b, h, query, key):
            return torch.where((query >= key) & (query - key < window) & (key >= bound[b, query]), s, float("-inf"))

    else:
        last = selected.shape[2] - 1

        def score(s, b, h, query, key):
            in_window = (key < length) & (query >= key) & (query - key < window) & (key >= bound[b, query])
            row = torch.clamp(key - length, 0, last)
            return torch.where(in_window | ((key >= length) & selected[b, query, row]), s, float("-inf"))

    k = keys.unsqueeze(1)
    out, lse = flex_attention(
        q.transpose(1, 2), k, k, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True
    )
    share = torch.sigmoid(lse - sink.view(1, -1, 1))
    return (out.float() * share.unsqueeze(-1)).to(q.dtype).transpose(1, 2)


class AttentionPaths:
    """Chooses the kernel at first use and says so once; a kernel that fails or disagrees is not used again."""

    def __init__(self, window, compiler, log=print):
        self.window, self.log = window, log
        self._flex = compiler(flex_path) if compiler else None
        self._blocks, self._checked = {}, set()

    def __call__(self, q, keys, bound, selected, sink):
        if self._flex is not None and q.is_cuda:
            key = (tuple(q.shape), keys.shape[1])
            if key not in self._checked:
                self._check(q, keys, bound, selected, sink)
                self._checked.add(key)
        if self._flex is not None and q.is_cuda:
            return self._run_flex(q, keys, bound, selected, sink)
        if selected is None:
            selected = torch.zeros(*q.shape[:2], 0, dtype=torch.bool, device=q.device)
        arguments = (q, keys, bound, selected, sink, self.window)
        if not torch.is_grad_enabled():
            return plain_attention(*arguments)
        return checkpoint(plain_attention, *arguments, use_reentrant=False)

    def disable(self):
        self._flex = None

    def _run_flex(self, q, keys, bound, selected, sink):
        length, rows = q.shape[1], keys.shape[1] - q.shape[1]
        if (length, rows) not in self._blocks:
            self._blocks[length, rows] = block_mask(length, length // rows if rows else 0, self.window, q.device)
        return self._flex(q, keys, bound, selected, sink, self._blocks[length, rows], self.window)

    def _check(self, q, keys, bound, selected, sink):
        """Compares output and gradients on the first two sequences; runs the kernel at its full shape."""
        try:
            none = torch.zeros(*q.shape[:2], 0, dtype=torch.bool, device=q.device)
            chosen = none if selected is None else selected

            def slow(q, keys, sink):
                return plain_attention(q, keys, bound[:2], chosen[:2], sink, self.window)

            def fast(q, keys, sink):
                return self._run_flex(q, keys, bound, selected, sink)

            whole = _with_gradients(fast, q, keys, sink)
            few = _with_gradients(slow, q[:2], keys[:2], sink)
            errors = [((w[:2] - f).norm() / f.norm()).item() for w, f in zip(whole[:3], few[:3])]
            self.log(
                "attention kernel, %s queries, %d rows: relative errors of output %.1e, dq %.1e, dk %.1e"
                % (tuple(q.shape), keys.shape[1], *errors)
            )
            if max(errors) < 0.03:
                return
        except Exception as problem:
            self.log("attention kernel failed: %s" % (str(problem).splitlines() or [repr(problem)])[0])
        self.log("attention falls back to plain PyTorch")
        self._flex = None


def _with_gradients(attend, q, keys, sink):
    """Output and the gradients of its weighted sum, the weights the same for every call on the same sequences."""
    inputs = [t.detach().clone().requires_grad_() for t in (q, keys, sink)]
    with torch.enable_grad():
        out = attend(*inputs)
        ramp = torch.arange(out[0].numel(), device=out.device).view(out[0].shape)
        gradients = torch.autograd.grad((out.float() * torch.sin(ramp.float())).sum(), inputs)
    return [t.detach().float() for t in (out, *gradients)]
