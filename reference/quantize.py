"""Number formats E4M3, E8M0, E2M1 and bfloat16: rounding, fake quantisers, and codecs between values and bytes.

Every fake quantiser returns values of the input's dtype and passes gradients straight through. All work in float32
and float64 alike; scales are always found from float32 bits, since that is how the model defines them.
"""

import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
GROUP = 32  # channels that share a scale: Act8, FQ8, FQ4i, FP4 weights, Engram rows; also the edge of an FP8 tile
FQ4K_GROUP = 16

ACT8_MIN_AMAX = 1e-4
FQ4K_MIN_AMAX = E2M1_MAX * 2.0**-9
FQ4I_MIN_AMAX = E2M1_MAX * 2.0**-126
WEIGHT_MIN_AMAX = 2.0**-100  # keeps the scale byte of an all-zero group inside E8M0

_HAS_FLOAT8 = hasattr(torch, "float8_e4m3fn")


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, replacement):
        return replacement.view_as(replacement)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def straight_through(x, replacement):
    """The values of `replacement`, with the gradient of `x`. Unlike x + (r - x) the values are exact."""
    return _StraightThrough.apply(x, replacement) if x.requires_grad else replacement


# --- rounding of single values -------------------------------------------------------------------------------------


def _bf16_values(x):
    if x.dtype == torch.float64:
        # One rounding from 53 to 8 bits; going through float32 would round twice.
        bits = x.contiguous().view(torch.int64)
        bits = (bits + ((bits >> 45) & 1) + (2**44 - 1)) & ~(2**45 - 1)
        return bits.view(torch.float64)
    return x.to(torch.bfloat16).to(x.dtype)


def _exponent(x):
    """floor(log2|x|) of normal float32 values, from the bits; at most -127 for zeros and subnormals."""
    return ((x.to(torch.float32).contiguous().view(torch.int32) >> 23) & 0xFF) - 127


def _ceil_log2(x):
    """ceil(log2 x) of positive normal float32 values, from the bits."""
    bits = x.to(torch.float32).contiguous().view(torch.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def power_of_two(exponent, dtype):
    """2^exponent for integer tensors with values in [-126, 127], exactly."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32).to(dtype)


def _round_on_grid(x, min_exponent, mantissa_bits):
    step = power_of_two(_exponent(x).clamp(min=min_exponent) - mantissa_bits, x.dtype)
    return torch.round(x / step) * step  # torch.round sends halves to the even neighbour


def e4m3_values(x):
    """Nearest E4M3 values, ties to even, saturating at 448."""
    x = x.clamp(-E4M3_MAX, E4M3_MAX)
    if _HAS_FLOAT8 and x.dtype == torch.float32:
        return x.to(torch.float8_e4m3fn).to(torch.float32)
    return _round_on_grid(x, -6, 3)


def e2m1_values(x):
    """Nearest E2M1 values, ties to the even code, saturating at 6."""
    return _round_on_grid(x.clamp(-E2M1_MAX, E2M1_MAX), 0, 1)


def round_bf16(x):
    return straight_through(x, _bf16_values(x.detach()))


# --- group quantisers: (codes as values, scale) --------------------------------------------------------------------


def _grouped(x, size):
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _amax(groups):
    return groups.abs().amax(dim=-1, keepdim=True).to(torch.float32)


def power_scale(amax, largest, min_amax):
    """The smallest power of two s with amax <= largest * s, by the model's float32 rule."""
    # A float32 product with the float32 nearest to 1 / largest: that is what a Python factor becomes.
    return power_of_two(_ceil_log2(amax.clamp(min=min_amax) * (1.0 / largest)), torch.float32)


def act8_parts(x):
    groups = _grouped(x, GROUP)
    scale = power_scale(_amax(groups), E4M3_MAX, ACT8_MIN_AMAX).to(x.dtype)
    return e4m3_values(groups / scale), scale


def fq4k_parts(x):
    groups = _grouped(x, FQ4K_GROUP)
    scale = e4m3_values(_amax(groups).clamp(min=FQ4K_MIN_AMAX) / E2M1_MAX).to(x.dtype)
    return e2m1_values(groups / scale), scale


def fq4i_parts(x):
    groups = _grouped(x, GROUP)
    scale = power_scale(_amax(groups), E2M1_MAX, FQ4I_MIN_AMAX).to(x.dtype)
    return e2m1_values(groups / scale), scale


def _fake(parts, x):
    codes, scale = parts(x.detach())
    return straight_through(x, (codes * scale).reshape(x.shape))


def act8(x):
    """FP8 activation quantiser: groups of 32 along the last axis, power-of-two scales."""
    return _fake(act8_parts, x)


def fq8(x):
    """Act8 on cached window rows. Its values are exact in bfloat16, so no further rounding is needed."""
    return _fake(act8_parts, x)


def fq4k(x):
    """FP4 with E4M3 scales on groups of 16: compressed rows."""
    return _fake(fq4k_parts, x)


def fq4i(x):
    """FP4 with power-of-two scales on groups of 32: indexer queries and keys."""
    return _fake(fq4i_parts, x)


# --- weight formats ------------------------------------------------------------------------------------------------


def _tiles(w):
    """[..., O, I] -> [..., ceil(O/32), ceil(I/32), 32, 32], zero padded."""
    rows, columns = w.shape[-2:]
    w = torch.nn.functional.pad(w, (0, -columns % GROUP, 0, -rows % GROUP))
    w = w.reshape(*w.shape[:-2], w.shape[-2] // GROUP, GROUP, w.shape[-1] // GROUP, GROUP)
    return w.transpose(-3, -2)


def _untile(tiles, shape):
    w = tiles.transpose(-3, -2)
    w = w.reshape(*w.shape[:-4], w.shape[-4] * GROUP, w.shape[-2] * GROUP)
    return w[..., : shape[-2], : shape[-1]]


def fp8_tile_parts(w):
    """Codes as values [..., rows, columns] and scales [..., row tiles, column tiles]."""
    tiles = _tiles(w)
    amax = tiles.abs().amax(dim=(-2, -1), keepdim=True).to(torch.float32)
    scale = power_scale(amax, E4M3_MAX, WEIGHT_MIN_AMAX).to(w.dtype)
    return e4m3_values(tiles / scale), scale


def fp8_row_parts(w):
    groups = _grouped(w, GROUP)
    scale = power_scale(_amax(groups), E4M3_MAX, WEIGHT_MIN_AMAX).to(w.dtype)
    return e4m3_values(groups / scale), scale


def fp4_parts(w):
    groups = _grouped(w, GROUP)
    scale = power_scale(_amax(groups), E2M1_MAX, WEIGHT_MIN_AMAX).to(w.dtype)
    return e2m1_values(groups / scale), scale


def fp8_tile_weight(w):
    codes, scale = fp8_tile_parts(w.detach())
    return straight_through(w, _untile(codes * scale, w.shape))


def fp8_row_weight(w):
    return _fake(fp8_row_parts, w)


def fp4_weight(w):
    return _fake(fp4_parts, w)


WEIGHT_QUANTIZERS = {
    "fp8_tile": fp8_tile_weight,  # 32x32 tiles, E8M0 scales: dense linears
    "fp8_row": fp8_row_weight,  # 1x32 groups, E8M0 scales: Engram tables
    "fp4": fp4_weight,  # 1x32 groups, E8M0 scales: routed experts
    "bf16": round_bf16,
    "f32": lambda w: w,
}


# --- codecs --------------------------------------------------------------------------------------------------------


def e4m3_encode(x):
    """uint8 codes of the nearest E4M3 values."""
    values = _round_on_grid(x.to(torch.float32).clamp(-E4M3_MAX, E4M3_MAX), -6, 3)
    bits = values.contiguous().view(torch.int32)
    exponent = ((bits >> 23) & 0xFF) - 127
    normal = ((exponent + 7) << 3) | ((bits >> 20) & 7)
    subnormal = (values.abs() * 2.0**9).to(torch.int32)
    code = torch.where(exponent >= -6, normal, subnormal) | ((bits < 0).to(torch.int32) << 7)
    return code.to(torch.uint8)


def _e4m3_table():
    code = torch.arange(256)
    exponent, mantissa = (code >> 3) & 15, (code & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * power_of_two((exponent - 7).clamp(min=-6), torch.float32)
    values = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    values = torch.where((code & 127) == 127, torch.full_like(values, float("nan")), values)
    return torch.where(code >= 128, -values, values)


def e4m3_decode(codes):
    return _e4m3_table().to(codes.device)[codes.to(torch.int64)]


def e8m0_encode(scale):
    """uint8 bytes of positive powers of two."""
    return (_exponent(scale) + 127).to(torch.uint8)


def e8m0_decode(codes):
    bits = codes.to(torch.int32)
    bits = torch.where(bits == 0, torch.full_like(bits, 0x00400000), bits << 23)  # byte 0 is a float32 subnormal
    values = bits.view(torch.float32)
    return torch.where(codes == 255, torch.full_like(values, float("nan")), values)


_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e2m1_encode(x):
    """4-bit codes of the nearest E2M1 values, one a byte."""
    values = e2m1_values(x.to(torch.float32))
    table = torch.tensor(_E2M1_VALUES, device=x.device)
    code = torch.searchsorted(table, values.abs().contiguous())
    negative = values.contiguous().view(torch.int32) < 0
    return (code + 8 * negative).to(torch.uint8)


def e2m1_decode(codes):
    table = torch.tensor(_E2M1_VALUES + tuple(-v for v in _E2M1_VALUES), device=codes.device)
    return table[codes.to(torch.int64)]


def encode_weight(w, weight_format):
    """(codes, scale bytes) of a 2-d weight; FP4 codes are packed with the even column in the low nibble."""
    w = w.detach().to(torch.float32)
    if weight_format == "fp8_tile":
        codes, scale = fp8_tile_parts(w)
        return e4m3_encode(_untile(codes, w.shape)), e8m0_encode(scale[..., 0, 0])
    if weight_format == "fp8_row":
        codes, scale = fp8_row_parts(w)
        return e4m3_encode(codes.reshape(w.shape)), e8m0_encode(scale[..., 0])
    codes, scale = fp4_parts(w)
    nibbles = e2m1_encode(codes.reshape(w.shape))
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), e8m0_encode(scale[..., 0])


def decode_weight(codes, scale_bytes, weight_format):
    """Exact float32 values of a stored weight; the inverse of encode_weight for any scales."""
    scale = e8m0_decode(scale_bytes)
    if weight_format == "fp4":
        nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
        values = e2m1_decode(nibbles)
    else:
        values = e4m3_decode(codes)
    if weight_format == "fp8_tile":
        scale = scale.repeat_interleave(GROUP, dim=-2)
    scale = scale.repeat_interleave(GROUP, dim=-1)
    return values * scale[..., : values.shape[-2], : values.shape[-1]]
