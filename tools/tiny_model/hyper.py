"""Hyper-connections for training: operators that torch.compile treats as opaque, on Triton kernels or plain PyTorch.

sinkhorn(raw [T, 16])             doubly stochastic matrices, as reference.mhc.sinkhorn
spread(x [T, 4, D], y, c, b)      C[j] y + sum_i B[i][j] X[i], as reference.mhc.spread
wide_product(x [T, K], w [O, K])  bf16 times a float32 weight held as two bf16 parts, float32 result
"""

import torch

from reference import mhc

STEPS = 20
EPS = 1e-6

_use_triton = True
_use_wide_output = True


def use_triton(enabled):
    """Turns the kernels off, for machines where they fail to build."""
    global _use_triton
    _use_triton = enabled


def use_wide_output(enabled):
    """Turns bf16 products with float32 results off, for libraries without them."""
    global _use_wide_output
    _use_wide_output = enabled


def _kernels():
    from . import triton_kernels

    return triton_kernels


# --- sinkhorn ------------------------------------------------------------------------------------------------------


def plain_sinkhorn(raw):
    return mhc.sinkhorn(raw.unflatten(-1, (4, 4)), STEPS, EPS).flatten(-2)


def sinkhorn(raw):
    return _sinkhorn(raw) if raw.is_cuda and _use_triton else plain_sinkhorn(raw)


@torch.library.custom_op("tiny_model::sinkhorn", mutates_args=(), device_types="cuda")
def _sinkhorn(raw: torch.Tensor) -> torch.Tensor:
    return _kernels().sinkhorn_forward(raw.contiguous(), STEPS, EPS)


@torch.library.custom_op("tiny_model::sinkhorn_backward", mutates_args=(), device_types="cuda")
def _sinkhorn_backward(raw: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return _kernels().sinkhorn_backward(raw.contiguous(), grad.contiguous(), STEPS, EPS)


@_sinkhorn.register_fake
def _(raw):
    return torch.empty_like(raw, memory_format=torch.contiguous_format)


@_sinkhorn_backward.register_fake
def _(raw, grad):
    return torch.empty_like(raw, memory_format=torch.contiguous_format)


_sinkhorn.register_autograd(
    lambda ctx, grad: _sinkhorn_backward(ctx.saved_tensors[0], grad),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


# --- spread --------------------------------------------------------------------------------------------------------


def plain_spread(x, y, c, b):
    return mhc.spread(c, b.unflatten(-1, (4, 4)), y.float(), x.float()).to(x.dtype)


def spread(x, y, c, b):
    return _spread(x, y, c, b) if x.is_cuda and _use_triton else plain_spread(x, y, c, b)


@torch.library.custom_op("tiny_model::spread", mutates_args=(), device_types="cuda")
def _spread(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _kernels().spread_forward(x.contiguous(), y.contiguous(), c.contiguous(), b.contiguous())


@torch.library.custom_op("tiny_model::spread_backward", mutates_args=(), device_types="cuda")
def _spread_backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _kernels().spread_backward(*(t.contiguous() for t in (grad, x, y, c, b)))


@_spread.register_fake
def _(x, y, c, b):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_spread_backward.register_fake
def _(grad, x, y, c, b):
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, y, c, b))


_spread.register_autograd(
    lambda ctx, grad: _spread_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


# --- wide product --------------------------------------------------------------------------------------------------


def two_parts(w):
    """bf16 parts [2, O, K] whose sum is the value a float32 weight is held at: 16 bits of it."""
    high = w.to(torch.bfloat16)
    return torch.stack((high, (w - high.float()).to(torch.bfloat16)))


def on_wide_grid(w):
    """The values that wide_product really multiplies by."""
    return two_parts(w).float().sum(dim=0)


@torch.library.custom_op("tiny_model::wide_product", mutates_args=())
def wide_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    parts = two_parts(w)
    if x.is_cuda and _use_wide_output:
        both = torch.mm(x, parts.flatten(0, 1).t(), out_dtype=torch.float32)
        return both[:, : w.shape[0]] + both[:, w.shape[0] :]
    return x.float() @ parts.float().sum(dim=0).t()


@torch.library.custom_op("tiny_model::wide_product_backward", mutates_args=())
def _wide_product_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.is_cuda and _use_wide_output:
        g = grad.to(torch.bfloat16)
        return torch.mm(g, w.to(torch.bfloat16)), torch.mm(g.t(), x, out_dtype=torch.float32)
    return (grad @ w).to(x.dtype), grad.t() @ x.float()


@wide_product.register_fake
def _(x, w):
    return x.new_empty((x.shape[0], w.shape[0]), dtype=torch.float32)


@_wide_product_backward.register_fake
def _(grad, x, w):
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(w)


wide_product.register_autograd(
    lambda ctx, grad: _wide_product_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
