"""Triton kernels for the two parts of hyper-connections that plain PyTorch runs as dozens of small kernels.

Sinkhorn normalises 4x4 matrices twenty times; spread combines four streams with a sublayer's output. Both have a
plain twin in hyper.py, which is what tests compare with and what runs without a GPU. Four streams are assumed.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _sinkhorn_start(raw, eps):
    largest = tl.max(raw, axis=2)
    e = tl.exp(raw - largest[:, :, None])
    return e / tl.sum(e, axis=2)[:, :, None]


@triton.jit
def _sinkhorn_forward(raw_ptr, out_ptr, count, eps, steps: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    offset = token[:, None, None] * 16 + entry[None, :, :]
    mask = (token < count)[:, None, None] & (entry < 16)[None, :, :]
    b = _sinkhorn_start(tl.load(raw_ptr + offset, mask=mask, other=0.0), eps) + eps
    b = b / (tl.sum(b, axis=1) + eps)[:, None, :]
    for _ in range(steps - 1):
        b = b / (tl.sum(b, axis=2) + eps)[:, :, None]
        b = b / (tl.sum(b, axis=1) + eps)[:, None, :]
    tl.store(out_ptr + offset, b, mask=mask)


@triton.jit
def _sinkhorn_backward(raw_ptr, grad_ptr, out_ptr, sums_ptr, count, eps, steps: tl.constexpr, BLOCK: tl.constexpr):
    """Runs forward once more keeping only the divisors, then undoes one division after the other."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    offset = token[:, None, None] * 16 + entry[None, :, :]
    mask = (token < count)[:, None, None] & (entry < 16)[None, :, :]
    lane = token[:, None] * 4 + tl.arange(0, 4)[None, :]
    lane_mask = (token < count)[:, None] & (tl.arange(0, 4) < 4)[None, :]
    p = _sinkhorn_start(tl.load(raw_ptr + offset, mask=mask, other=0.0), eps)
    b = p + eps
    s = tl.sum(b, axis=1) + eps
    b = b / s[:, None, :]
    first = s
    for i in range(steps - 1):
        s = tl.sum(b, axis=2) + eps
        tl.store(sums_ptr + (2 * i) * count * 4 + lane, s, mask=lane_mask)
        b = b / s[:, :, None]
        s = tl.sum(b, axis=1) + eps
        tl.store(sums_ptr + (2 * i + 1) * count * 4 + lane, s, mask=lane_mask)
        b = b / s[:, None, :]
    d = tl.load(grad_ptr + offset, mask=mask, other=0.0)
    for j in range(steps - 1):
        i = steps - 2 - j
        s = tl.load(sums_ptr + (2 * i + 1) * count * 4 + lane, mask=lane_mask, other=1.0)
        d = (d - tl.sum(d * b, axis=1)[:, None, :]) / s[:, None, :]
        b = b * s[:, None, :]
        s = tl.load(sums_ptr + (2 * i) * count * 4 + lane, mask=lane_mask, other=1.0)
        d = (d - tl.sum(d * b, axis=2)[:, :, None]) / s[:, :, None]
        b = b * s[:, :, None]
    d = (d - tl.sum(d * b, axis=1)[:, None, :]) / first[:, None, :]
    d = p * (d - tl.sum(d * p, axis=2)[:, :, None])
    tl.store(out_ptr + offset, d, mask=mask)


_SINKHORN_BLOCK = 32


def sinkhorn_forward(raw, steps, eps):
    count = raw.numel() // 16
    out = torch.empty_like(raw)
    _sinkhorn_forward[(triton.cdiv(count, _SINKHORN_BLOCK),)](raw, out, count, eps, steps, _SINKHORN_BLOCK, num_warps=4)
    return out


def sinkhorn_backward(raw, grad, steps, eps):
    count = raw.numel() // 16
    out = torch.empty_like(raw)
    sums = torch.empty(2 * steps, count, 4, device=raw.device, dtype=torch.float32)
    grid = (triton.cdiv(count, _SINKHORN_BLOCK),)
    _sinkhorn_backward[grid](raw, grad, out, sums, count, eps, steps, _SINKHORN_BLOCK, num_warps=4)
    return out


@triton.jit
def _spread_forward(x_ptr, y_ptr, c_ptr, b_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    x = x_ptr + token * 4 * width + column
    x0 = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(x + width, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x + 2 * width, mask=mask, other=0.0).to(tl.float32)
    x3 = tl.load(x + 3 * width, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    for j in tl.static_range(4):
        b = b_ptr + token * 16 + j
        r = tl.load(c_ptr + token * 4 + j) * y
        r += tl.load(b) * x0 + tl.load(b + 4) * x1 + tl.load(b + 8) * x2 + tl.load(b + 12) * x3
        tl.store(out_ptr + (token * 4 + j) * width + column, r.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _spread_backward(
    g_ptr, x_ptr, y_ptr, c_ptr, b_ptr, dx_ptr, dy_ptr, dc_ptr, db_ptr, width, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    g = g_ptr + token * 4 * width + column
    g0 = tl.load(g, mask=mask, other=0.0).to(tl.float32)
    g1 = tl.load(g + width, mask=mask, other=0.0).to(tl.float32)
    g2 = tl.load(g + 2 * width, mask=mask, other=0.0).to(tl.float32)
    g3 = tl.load(g + 3 * width, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + token * width + column, mask=mask, other=0.0).to(tl.float32)
    c = c_ptr + token * 4
    dy = tl.load(c) * g0 + tl.load(c + 1) * g1 + tl.load(c + 2) * g2 + tl.load(c + 3) * g3
    tl.store(dy_ptr + token * width + column, dy.to(dy_ptr.dtype.element_ty), mask=mask)
    dc = dc_ptr + token * 4
    tl.store(dc, tl.sum(g0 * y, axis=0))
    tl.store(dc + 1, tl.sum(g1 * y, axis=0))
    tl.store(dc + 2, tl.sum(g2 * y, axis=0))
    tl.store(dc + 3, tl.sum(g3 * y, axis=0))
    for i in tl.static_range(4):
        x = tl.load(x_ptr + (token * 4 + i) * width + column, mask=mask, other=0.0).to(tl.float32)
        b = b_ptr + token * 16 + 4 * i
        dx = tl.load(b) * g0 + tl.load(b + 1) * g1 + tl.load(b + 2) * g2 + tl.load(b + 3) * g3
        tl.store(dx_ptr + (token * 4 + i) * width + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        db = db_ptr + token * 16 + 4 * i
        tl.store(db, tl.sum(g0 * x, axis=0))
        tl.store(db + 1, tl.sum(g1 * x, axis=0))
        tl.store(db + 2, tl.sum(g2 * x, axis=0))
        tl.store(db + 3, tl.sum(g3 * x, axis=0))


def spread_forward(x, y, c, b):
    width = x.shape[-1]
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _spread_forward[(x.numel() // (4 * width),)](x, y, c, b, out, width, block, num_warps=2)
    return out


def spread_backward(grad, x, y, c, b):
    width = x.shape[-1]
    dx, dy, dc, db = (torch.empty_like(t) for t in (x, y, c, b))
    block = triton.next_power_of_2(width)
    grid = (x.numel() // (4 * width),)
    _spread_backward[grid](grad, x, y, c, b, dx, dy, dc, db, width, block, num_warps=2)
    return dx, dy, dc, db
