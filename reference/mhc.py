"""Single-pass manifold-constrained hyper-connections: mixing of the residual streams around each sublayer.

Mix reads the streams and gives three coefficient sets: A collapses streams into one sublayer input (and is used one
sublayer later than computed), C spreads the sublayer's output over the streams, B mixes the streams among themselves.
"""

import torch


def sinkhorn(raw, iterations, eps):
    """Nearly doubly stochastic matrices [..., h, h] from raw scores; row steps first, a column step last."""
    b = torch.softmax(raw, dim=-1) + eps
    b = b / (b.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        b = b / (b.sum(dim=-1, keepdim=True) + eps)
        b = b / (b.sum(dim=-2, keepdim=True) + eps)
    return b


def split_mix(m, scale, base, streams, iterations, eps):
    """A [..., h], C [..., h] and B [..., h, h] from the projected statistics m [..., 2h + h*h]."""
    h = streams
    a = torch.sigmoid(m[..., :h] * scale[0] + base[:h]) + eps
    c = 2 * torch.sigmoid(m[..., h : 2 * h] * scale[1] + base[h : 2 * h])
    raw = (m[..., 2 * h :] * scale[2] + base[2 * h :]).unflatten(-1, (h, h))
    return a, c, sinkhorn(raw, iterations, eps)


def mix(x, fn, scale, base, iterations, hc_eps, norm_eps):
    """Coefficients for streams x [..., h, hidden]. One RMS statistic over all streams, applied after the product."""
    flat = x.flatten(-2)
    m = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + norm_eps)
    return split_mix(m, scale, base, x.shape[-2], iterations, hc_eps)


def collapse(a, x):
    """sum_s A[s] X[s]: [..., h] and [..., h, hidden] to [..., hidden]."""
    return (a.unsqueeze(-1) * x).sum(dim=-2)


def spread(c, b, y, x):
    """C[j] y + sum_i B[i][j] X[i]. The contracted index of B is its first."""
    return c.unsqueeze(-1) * y.unsqueeze(-2) + b.transpose(-1, -2) @ x
