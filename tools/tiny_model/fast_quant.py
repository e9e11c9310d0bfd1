"""The fake quantisers of reference.quantize for bf16 activations, written so that a compiler fuses each into one kernel.

Values equal the reference's; gradients pass straight through. Exponents come from float32 bits, as the model defines.
"""

import torch


def straight_through(x, values):
    """`values` with the gradient of x: x - x is an exact zero."""
    return values.detach() + (x - x.detach())


def _power_scale(amax, largest):
    """(scale, 1 / scale): the smallest power of two with amax <= largest * scale."""
    bits = (amax * (1.0 / largest)).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32), ((254 - exponent) << 23).view(torch.float32)


def _e4m3(x):
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(torch.float32)


def _e2m1(x):
    """Nearest E2M1 value; ties go to the even code because round() sends halves to even multiples of the step."""
    a = x.abs().clamp(max=6.0)
    rounded = torch.where(a < 2.0, torch.round(a * 2.0) * 0.5, torch.where(a < 4.0, torch.round(a), torch.round(a * 0.5) * 2.0))
    return torch.copysign(rounded, x)


def _groups(x, size):
    groups = x.detach().float().unflatten(-1, (x.shape[-1] // size, size))
    return groups, groups.abs().amax(dim=-1, keepdim=True)


def act8(x):
    groups, amax = _groups(x, 32)
    scale, inverse = _power_scale(amax.clamp(min=1e-4), 448.0)
    return straight_through(x, (_e4m3(groups * inverse) * scale).flatten(-2).to(x.dtype))


def fq4k(x):
    groups, amax = _groups(x, 16)
    scale = _e4m3(amax.clamp(min=6.0 * 2.0**-9) / 6.0)
    return straight_through(x, (_e2m1(groups / scale) * scale).flatten(-2).to(x.dtype))


def fq4i(x):
    groups, amax = _groups(x, 32)
    scale, inverse = _power_scale(amax.clamp(min=6.0 * 2.0**-126), 6.0)
    return straight_through(x, (_e2m1(groups * inverse) * scale).flatten(-2).to(x.dtype))


# --- weights: float32 masters, stacked [n, rows, columns], to bf16 values of the storage format ---------------------


class _Quantised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, values):
        return values.to(torch.bfloat16)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.float(), None


def _fp8_tile(w):
    n, rows, columns = w.shape
    tiles = w.view(n, rows // 32, 32, columns // 32, 32)
    amax = tiles.abs().amax(dim=(2, 4), keepdim=True).clamp(min=2.0**-100)
    scale, inverse = _power_scale(amax, 448.0)
    return (_e4m3(tiles * inverse) * scale).view(w.shape)


def _rows_of_32(w, largest, codes):
    groups = w.unflatten(-1, (w.shape[-1] // 32, 32))
    scale, inverse = _power_scale(groups.abs().amax(dim=-1, keepdim=True).clamp(min=2.0**-100), largest)
    return (codes(groups * inverse) * scale).flatten(-2)


_FORMATS = {
    "fp8_tile": _fp8_tile,
    "fp8_row": lambda w: _rows_of_32(w, 448.0, _e4m3),
    "fp4": lambda w: _rows_of_32(w, 6.0, _e2m1),
}


def quantised_weight(w, weight_format):
    """bf16, exactly the values that a checkpoint would store. w float32 [n, ..., rows, columns]."""
    if weight_format == "bf16":
        return w.to(torch.bfloat16)
    return _Quantised.apply(w, _FORMATS[weight_format](w.detach()))
