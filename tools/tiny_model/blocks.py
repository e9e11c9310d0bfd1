"""The model's blocks as functions of activations and storage-format weights: what training compiles.

All activations are flat, [T, ...] for T = batch * length tokens, in bf16; coefficients are float32. Roundings are those
of reference.numerics.OFFICIAL with weight formats; sums over experts stay unrounded until the end.
"""

import torch
import torch.nn.functional as F

from . import hyper
from .fast_quant import act8, fq4i, fq4k

NORM_EPS = 1e-20
MIX_EPS = 1e-6


def linear(x, w):
    """bf16 product. A CPU without bf16 units is a hundred times faster in float32, with the same rounding at the end."""
    return F.linear(x, w) if x.is_cuda else F.linear(x.float(), w.float()).to(x.dtype)


def batched(a, b):
    return torch.bmm(a, b) if a.is_cuda else torch.bmm(a.float(), b.float()).to(a.dtype)


def rms_norm(x, weight):
    f = x.float()
    return (weight.float() * (f * torch.rsqrt(f.square().mean(dim=-1, keepdim=True) + NORM_EPS))).to(torch.bfloat16)


def rotate(x, cos, sin):
    """Adjacent pairs of the last channels; cos and sin broadcast against x[..., pairs]."""
    keep = x.shape[-1] - 2 * cos.shape[-1]
    a, b = x[..., keep::2].float(), x[..., keep + 1 :: 2].float()
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :keep], rotated.to(x.dtype)), dim=-1)


def exact_linear(x, w):
    """bf16 operands, float32 result. TF32 holds bf16 exactly, so tensor cores lose nothing."""
    return F.linear(x.float(), w.float())


def mix_in(x, a, fn, scale, base, norm):
    """Start of a sublayer on streams x [T, 4, D]: its input u [T, D], and A, C, B of this Mix."""
    flat = x.flatten(1)
    statistic = torch.rsqrt(flat.float().square().mean(dim=-1, keepdim=True) + NORM_EPS)
    m = hyper.wide_product(flat, fn) * statistic
    next_a = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + MIX_EPS
    c = 2 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    b = hyper.sinkhorn(m[:, 8:] * scale[2] + base[8:])
    return collapse_norm(x, a, norm), next_a, c, b


def collapse(x, a):
    s = a.unsqueeze(-1)
    u = s[:, 0] * x[:, 0].float() + s[:, 1] * x[:, 1].float() + s[:, 2] * x[:, 2].float() + s[:, 3] * x[:, 3].float()
    return u.to(torch.bfloat16)


def collapse_norm(x, a, norm):
    return rms_norm(collapse(x, a), norm)


def queries_and_window(u, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, heads):
    x = act8(u)
    qr = rms_norm(linear(x, wq_a), q_norm)
    q = linear(act8(qr), wq_b).unflatten(-1, (heads, -1))
    q = rotate(q, cos.unsqueeze(1), sin.unsqueeze(1))
    kv = rms_norm(linear(x, wkv), kv_norm)
    return qr, q, act8(rotate(kv, cos, sin))


def compress_pairs(u, wkv, wgate, norm, cos, sin):
    """Ratio 2: (latents, rows) [T / 2, d]; cos and sin at the first token of each pair."""
    values, gates = exact_linear(u, wkv).unflatten(0, (-1, 2)), exact_linear(u, wgate).unflatten(0, (-1, 2))
    w = torch.softmax(gates, dim=1)
    latent = rms_norm((w * values).sum(dim=1).to(torch.bfloat16), norm)
    return latent, fq4k(rotate(latent, cos, sin))


def compress_each(u, wkv, norm, cos, sin):
    latent = rms_norm(linear(u, wkv), norm)
    return latent, fq4k(rotate(latent, cos, sin))


def index_keys(latent, wk, k_norm, cos, sin):
    return fq4i(rotate(rms_norm(linear(latent, wk), k_norm), cos, sin))


def index_queries(qr, u, wq_b, weights_proj, cos, sin):
    """(queries [T, heads, size], head weights [T, heads] float32)"""
    weights = linear(u, weights_proj).float()
    heads = weights.shape[-1]
    q = linear(act8(qr), wq_b).unflatten(-1, (heads, -1))
    q = fq4i(rotate(q, cos.unsqueeze(1), sin.unsqueeze(1)))
    return q, weights * (q.shape[-1] ** -0.5 * heads**-0.5)


def index_scores(q, weights, keys):
    """[B, n, M] float32 from q [B, n, heads, size], weights [B, n, heads], keys [B, M, size]; a product a head."""
    transposed = keys.transpose(1, 2)
    total = 0.0
    for head in range(q.shape[2]):
        total = total + torch.relu(batched(q[:, :, head], transposed).float()) * weights[:, :, head, None]
    return total


def attention_out(o, wo_a, wo_b, cos, sin, groups):
    """o [T, heads, d] back through the inverse rotation and the grouped low-rank projection."""
    o = rotate(o, cos.unsqueeze(1), -sin.unsqueeze(1)).flatten(1).unflatten(1, (groups, -1))
    z = batched(o.transpose(0, 1), wo_a.unflatten(0, (groups, -1)).transpose(1, 2))
    return linear(act8(z.transpose(0, 1).flatten(1)), wo_b)


def route(u, gate, bias, count, scaling):
    """Weights [T, E] float32, zero where an expert is not chosen; ties go to the lower index."""
    scores = F.softplus(exact_linear(u, gate)).sqrt()
    ranked = (scores + bias).detach()
    experts = torch.arange(ranked.shape[-1], device=u.device)
    mine, other = ranked.unsqueeze(-1), ranked.unsqueeze(-2)
    ahead = (other > mine) | ((other == mine) & (experts < experts.unsqueeze(-1)))
    chosen = scores * (ahead.sum(dim=-1) < count)
    return chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20) * scaling


def moe(u, gate, bias, into, out, count, scaling, limit):
    """Every expert on every token, with weight zero where not chosen: three large products instead of a sort.

    (output [T, D], tokens per expert [E])"""
    weights = route(u, gate, bias, count, scaling)
    load = (weights.detach() > 0).float().sum(dim=0)
    inner = into.shape[0] // 2
    g, v = linear(act8(u), into).split(inner, dim=-1)
    size = inner // (weights.shape[1] + 1)
    all_weights = torch.cat((weights, torch.ones_like(weights[:, :1])), dim=1)
    g, v = g.float().clamp(max=limit), v.float().clamp(-limit, limit)
    a = (g * torch.sigmoid(g) * v).unflatten(-1, (-1, size)) * all_weights.unsqueeze(-1)
    return linear(act8(a.flatten(1).to(torch.bfloat16)), out), load


def engram(x, memory, wkv, q_weight, k_weight):
    """Streams x [T, 4, D] plus the gated memory [T, K]."""
    kv = linear(act8(memory), wkv).unflatten(-1, (5, -1)).float()
    key, value = kv[:, :4], kv[:, 4:]
    f = x.float()
    dot = (f * (q_weight.float() * k_weight.float()) * key).sum(dim=-1)
    dot = dot * torch.rsqrt(f.square().mean(dim=-1) + NORM_EPS) * torch.rsqrt(key.square().mean(dim=-1) + NORM_EPS)
    dot = dot / x.shape[-1] ** 0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return (f + gate.unsqueeze(-1) * value).to(torch.bfloat16)


def head_logits(x, a, norm, head):
    return exact_linear(collapse_norm(x, a, norm), head)


def head_loss(x, a, norm, head, labels, weights):
    """(sum of weighted losses, all losses [T]) in nats."""
    losses = F.cross_entropy(head_logits(x, a, norm, head), labels, reduction="none")
    return (losses * weights).sum(), losses.detach()


# --- drafter -------------------------------------------------------------------------------------------------------


def draft_feature(taps, main_proj, main_norm):
    return rms_norm(linear(act8(taps), main_proj), main_norm)


def draft_context(feature, wkv, kv_norm, cos, sin):
    """Cached rows of one stage, from features of committed tokens."""
    return act8(rotate(rms_norm(linear(act8(feature), wkv), kv_norm), cos, sin))


def draft_attention(q, keys, allowed, sink):
    """q [blocks, rows, H, d] over keys [blocks, K, d] shared by all rows; allowed bool [blocks, K]."""
    b, rows, heads, d = q.shape
    scores = batched(q.flatten(1, 2), keys.transpose(1, 2)).float() * d**-0.5
    scores = scores.masked_fill(~allowed.unsqueeze(1), float("-inf")).unflatten(1, (rows, heads))
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(dim=-1, keepdim=True) + torch.exp(sink.view(1, 1, -1, 1) - largest)
    out = batched(weights.to(q.dtype).flatten(1, 2), keys).unflatten(1, (rows, heads))
    return (out.float() / total).to(q.dtype)


# How much of the confidence's gradient reaches the stages. With none the head finds little to read: a linear map of the
# collapsed streams says next to nothing about whether the draft is right (area under the curve 0.59 on stories).
CONFIDENCE_SHARE = 0.25


def draft_losses(h, previous, norm, head, markov_head, proj, final, labels, weights):
    """Sums over rows [R] of the losses, and statistics without gradient.

    h: collapsed streams; previous: Markov embeddings of the tokens before; final: the target's normalised output at the
    same predictions. Returns (cross-entropy, |q - p|, confidence), overlap [R], greedy match [R], logit z [R].
    """
    logits = exact_linear(rms_norm(h, norm), head) + exact_linear(previous, markov_head)
    logs = torch.log_softmax(logits, dim=-1)
    cross = -logs.gather(1, labels.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        target_logits = exact_linear(final, head)
        p = torch.softmax(target_logits, dim=-1)
        match = (logits.argmax(dim=-1) == target_logits.argmax(dim=-1)).float()
    distance = (logs.exp() - p).abs().sum(dim=-1)
    inputs = torch.cat((h, previous), dim=-1).float()
    inputs = inputs.detach() + CONFIDENCE_SHARE * (inputs - inputs.detach())
    z = F.linear(inputs, proj.float()).squeeze(-1)
    confidence = F.binary_cross_entropy_with_logits(z, match, reduction="none")
    sums = torch.stack([(part * weights).sum() for part in (cross, distance, confidence)])
    return sums, 1 - 0.5 * distance.detach(), match, z.detach()
