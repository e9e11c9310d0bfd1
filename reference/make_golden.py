"""Writes tests/golden/ops/*.json: inputs and outputs of single operations, for implementations in other languages.

    python3 -m reference.make_golden --out tests/golden/ops

Inputs are float32 (most of them bf16 values), outputs of arithmetic are computed in float64 from them, outputs of
quantisers and choices are exact. Everything follows from fixed seeds. The formats are described in
tests/golden/README.md.
"""

import argparse
import json
import os

import numpy as np
import torch

from . import attention, compressor, engram, indexer, mhc, moe, norm, numerics, quantize, rope
from .config import Yarn

ROUNDED = numerics.BF16_ACTIVATIONS


class Source:
    """Seeded random inputs: float64 tensors that hold bf16 or float32 values."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator).double()

    def bf16(self, *shape):
        return quantize.round_bf16(self.normal(*shape))

    def integers(self, high, *shape):
        return torch.randint(0, high, shape, generator=self.generator)


def f32(x):
    """Marks values to be printed as float32: shortest decimals that parse back to the same float."""
    return np.asarray(x.float() if torch.is_tensor(x) else x, dtype=np.float32)


# --- one function an operation: a list of cases --------------------------------------------------------------------


def rms_norm_cases():
    source, cases = Source(101), []
    for name, scale in (("unit", 1.0), ("tiny_inputs_feel_the_small_epsilon", 1e-11), ("large", 1e3)):
        x, weight = source.normal(3, 64) * scale, 1 + 0.1 * source.bf16(64)
        x, weight = x.float().double(), quantize.round_bf16(weight)
        out = norm.rms_norm(x, weight, 1e-20)
        cases.append(dict(name=name, x=f32(x), weight=f32(weight), eps=1e-20, out=out))
    return cases


def _quantiser_inputs():
    source = Source(102)
    x = torch.cat([source.bf16(4, 64) * scale for scale in (1e-6, 1e-3, 1.0, 50.0)])
    special = torch.zeros(6, 64, dtype=torch.float64)
    special[1, 5], special[1, 40] = 448.0, -6.0  # exact powers of two as scales
    special[2, :8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])  # ties of E2M1
    special[3, :4] = torch.tensor([17.0, 19.0, 448.0, 9.5])  # ties of E4M3
    special[4, ::2], special[4, 1::2] = 2.0**-30, -(2.0**-31)
    special[5] = torch.linspace(-3, 3, 64)
    return quantize.round_bf16(torch.cat((x, special)))


def quantiser_cases():
    x = _quantiser_inputs()
    parts = {"act8": quantize.act8_parts, "fq4k": quantize.fq4k_parts, "fq4i": quantize.fq4i_parts}
    cases = []
    for name, quantiser in parts.items():
        codes, scale = quantiser(x)
        group = codes.shape[-1]
        out = (codes * scale).reshape(x.shape)
        cases.append(dict(name=name, group=group, x=f32(x), out=f32(out), scale=f32(scale[..., 0])))
    return cases


def weight_format_cases():
    source, cases = Source(103), []
    for name in ("fp8_tile", "fp8_row", "fp4"):
        w = source.normal(64, 96) * torch.logspace(-3, 1, 96).double()
        codes, scale = quantize.encode_weight(w, name)
        values = quantize.decode_weight(codes, scale, name)
        cases.append(dict(name=name, w=f32(w), codes=codes, scale=scale, values=f32(values)))
    finite = torch.tensor([c for c in range(256) if c & 127 != 127], dtype=torch.uint8)
    cases.append(dict(name="e4m3_codes", codes=finite, values=f32(quantize.e4m3_decode(finite))))
    nibbles = torch.arange(16, dtype=torch.uint8)
    cases.append(dict(name="e2m1_codes", codes=nibbles, values=f32(quantize.e2m1_decode(nibbles))))
    return cases


def rope_cases():
    cases = []
    tables = (
        ("plain_64", 64, 10000, None),
        ("compressing_64", 64, 160000, Yarn()),
        ("plain_16", 16, 10000, None),
        ("compressing_16_over_64", 16, 160000, Yarn(original_max_position_embeddings=64)),
    )
    positions = torch.tensor([0, 1, 2, 3, 127, 4095, 65537, 100000, 1048575])
    source = Source(104)
    for name, size, theta, yarn in tables:
        freq = rope.frequencies(size, theta, yarn)
        table = rope.cos_sin(positions, freq, torch.float64)
        x = source.bf16(1, len(positions), size + 16)
        cases.append(
            dict(
                name=name, rope_dim=size, theta=theta, yarn=vars(yarn) if yarn else None, frequencies=f32(freq),
                positions=positions, cos=table[0], sin=table[1], x=f32(x[0]),
                rotated=rope.rotate(x, table, numerics.EXACT)[0],
                rotated_back=rope.rotate(x, table, numerics.EXACT, inverse=True)[0],
            )  # fmt: skip
        )
    return cases


def mhc_cases():
    source, cases = Source(105), []
    for name, h, scale_of_x in (("four_streams", 4, 1.0), ("two_streams", 2, 1.0), ("tiny_streams", 4, 1e-9)):
        x, y, rows = source.bf16(3, h, 32) * scale_of_x, source.bf16(3, 32), 2 * h + h * h
        x = quantize.round_bf16(x)
        fn = (source.normal(rows, h * 32) / (h * 32) ** 0.5).float().double()
        base, scale = (0.5 * source.normal(rows)).float().double(), torch.tensor([0.5, 0.7, 0.9]).double()
        weight = quantize.round_bf16(1 + 0.1 * source.normal(32))
        a, c, b = mhc.mix(x, fn, scale, base, 20, 1e-6, 1e-20)
        cases.append(
            dict(
                name=name, streams=f32(x.flatten(1)), fn=f32(fn), scale=f32(scale), base=f32(base), iterations=20,
                eps=1e-6, norm_eps=1e-20, projection=x.flatten(1) @ fn.t(), pre=a, post=c, mix=b.flatten(1),
                norm_weight=f32(weight), collapsed=norm.rms_norm(mhc.collapse(a, x), weight, 1e-20),
                y=f32(y), updated=mhc.spread(c, b, y, x).flatten(1),
            )  # fmt: skip
        )
    return cases


def attention_cases():
    source, cases = Source(106), []
    shapes = (("window_only", 9, 0, 4), ("window_and_rows", 12, 8, 4), ("more_than_one_block_of_keys", 90, 40, 64))
    for name, tokens, rows, window in shapes:
        heads, size = 2, 32
        q, window_rows = 2 * source.bf16(1, tokens, heads, size), source.bf16(1, tokens, size)
        compressed, sink = source.bf16(1, rows, size), source.normal(heads).float().double()
        visible = indexer.visible_rows(tokens, tokens // rows, "cpu")[:, :rows] if rows else torch.zeros(tokens, 0) > 0
        selected = (visible & (torch.rand(tokens, rows, generator=source.generator) < 0.7))[None]
        arguments = (q, window_rows, compressed, selected, sink, window)
        lists = [[g for g in range(rows) if selected[0, t, g]] for t in range(tokens)]
        keep = range(tokens) if tokens < 20 else [0, 63, 64, tokens - 1]
        pick = torch.tensor(list(keep))
        exact, _ = attention.attend_dense(*arguments, numerics.EXACT)
        rounded = ROUNDED.bf16(attention.attend_dense(*arguments, ROUNDED)[0])
        cases.append(
            dict(
                name=name, num_heads=heads, q=f32(q[0, pick].flatten(1)), window_rows=f32(window_rows[0]),
                compressed_rows=f32(compressed[0]), window_begin=[max(0, t - window + 1) for t in keep],
                window_end=[t + 1 for t in keep], selected=[lists[t] for t in keep], sink=f32(sink),
                out=exact[0, pick].flatten(1), out_rounded=f32(rounded[0, pick].flatten(1)),
            )  # fmt: skip
        )
    return cases


def compressor_cases():
    source, cases = Source(107), []
    for ratio in (2, 3):
        values, gates = source.normal(4, ratio, 16).float().double(), 3 * source.normal(4, ratio, 16).float().double()
        out = compressor.pool(values[None], gates[None])[0]
        cases.append(
            dict(name="ratio_%d" % ratio, ratio=ratio, values=f32(values.flatten(0, 1)), gates=f32(gates.flatten(0, 1)), out=out)
        )
    return cases


def _blocks(candidates, block_size):
    return [sorted({g // block_size for g in range(len(row)) if row[g]}) for row in candidates.tolist()]


def _rows(selected):
    return [[g for g, s in enumerate(row) if s] for row in selected.tolist()]


def _require_margin(scores, selected, allowed):
    """Refuses random data whose choice could flip by float32 rounding."""
    worst = scores.masked_fill(~selected, float("inf")).amin(-1)
    best = scores.masked_fill(selected | ~allowed, float("-inf")).amax(-1)
    if not (worst - best > 1e-4).all():
        raise ValueError("choose another seed: a selection is within 1e-4 of a tie")


def indexer_cases():
    source, cases = Source(108), []
    heads, size, tokens, top_k, block, num_blocks = 16, 32, 12, 6, 4, 3
    for name, ratio in (("ratio_1", 1), ("ratio_2", 2)):
        rows = 32
        q = quantize.fq4i(source.bf16(1, tokens, heads, size))
        k = quantize.fq4i(source.bf16(1, rows, size))
        weights = source.bf16(1, tokens, heads) / 16
        visible_count = torch.linspace(0 if ratio == 2 else 1, rows, tokens).long()
        visible = (torch.arange(rows) < visible_count[:, None])[None]
        scores = indexer.index_scores(q, k, weights, numerics.EXACT)
        selected = indexer.best(scores, visible, top_k)
        candidates = indexer.candidate_rows(scores, visible, num_blocks, block)
        restricted = indexer.best(scores, visible & candidates, top_k)
        _require_margin(scores, selected, visible)
        _require_margin(scores, restricted, visible & candidates)
        cases.append(
            dict(
                name=name, num_heads=heads, top_k=top_k, q=f32(q[0].flatten(1)), keys=f32(k[0]),
                head_weights=f32(weights[0]), num_visible=visible_count, scores=scores[0], selected=_rows(selected[0]),
                candidate_block=block, candidate_topk_blocks=num_blocks, candidate_blocks=_blocks(candidates[0], block),
                selected_within_candidates=_rows(restricted[0]),
            )  # fmt: skip
        )
    cases.append(_tie_case())
    return cases


def _tie_case():
    """Every score is exactly 1, 0 or 2, so only the rule for ties decides."""
    q = torch.ones(1, 3, 1, 32, dtype=torch.float64)
    pattern = torch.tensor([1.0, 0, 2, 1, 1, 0, 2, 1, 1, 1, 0, 0]).double()
    k = torch.zeros(1, 12, 32, dtype=torch.float64)
    k[0, :, 0] = pattern
    weights = torch.ones(1, 3, 1, dtype=torch.float64)
    count = torch.tensor([12, 9, 3])
    visible = (torch.arange(12) < count[:, None])[None]
    scores = indexer.index_scores(q, k, weights, numerics.EXACT)
    candidates = indexer.candidate_rows(scores, visible, 2, 2)
    return dict(
        name="ties", num_heads=1, top_k=4, q=f32(q[0].flatten(1)), keys=f32(k[0]), head_weights=f32(weights[0]),
        num_visible=count, scores=scores[0], selected=_rows(indexer.best(scores, visible, 4)[0]), candidate_block=2,
        candidate_topk_blocks=2, candidate_blocks=_blocks(candidates[0], 2),
        selected_within_candidates=_rows(indexer.best(scores, visible & candidates, 4)[0]),
    )  # fmt: skip


def router_cases():
    source, cases = Source(109), []
    random = 2 * source.normal(6, 12).float().double()
    extreme = torch.tensor([[-60.0, -30, -1, 0, 19, 20, 20.5, 40], [0.0] * 8]).double()
    for name, logits, top_k, temperature in (("random", random, 3, 1.0), ("temperature", random, 3, 2.0), ("extreme", extreme, 4, 1.0)):
        bias = (0.3 * source.normal(logits.shape[1])).float().double()
        scores = torch.nn.functional.softplus(logits / temperature).sqrt()
        experts, weights = moe.route(scores, bias, top_k, 1.5)
        cases.append(
            dict(name=name, logits=f32(logits), bias=f32(bias), top_k=top_k, temperature=temperature, scaling=1.5,
                 experts=experts, weights=weights)
        )  # fmt: skip
    zero = torch.zeros(1, 8).double()
    experts, weights = moe.route(torch.nn.functional.softplus(zero).sqrt(), zero[0], 3, 1.5)
    cases.append(
        dict(name="ties", logits=f32(zero), bias=f32(zero[0]), top_k=3, temperature=1.0, scaling=1.5, experts=experts, weights=weights)
    )
    return cases


def swiglu_cases():
    source = Source(110)
    gate, up = quantize.round_bf16(8 * source.normal(4, 32)), quantize.round_bf16(8 * source.normal(4, 32))
    weight = source.normal(4).abs().float().double()
    plain = moe.swiglu(gate, up, 10.0)
    return [
        dict(name="weighted", gate=f32(gate), up=f32(up), limit=10.0, weight=f32(weight), out=plain * weight[:, None]),
        dict(name="shared", gate=f32(gate), up=f32(up), limit=10.0, weight=None, out=plain),
    ]


def engram_gate_cases():
    source, cases = Source(111), []
    for name, scale in (("unit", 1.0), ("tiny_streams", 1e-8), ("opposite", -1.0)):
        h, hidden = 4, 32
        x, kv = source.bf16(3, h, hidden), source.bf16(3, h + 1, hidden)
        x = quantize.round_bf16(x * abs(scale) + (0.5 * scale * kv[:, :h] if name == "opposite" else 0))
        qw, kw = (quantize.round_bf16(1 + 0.2 * source.normal(h, hidden)) for _ in range(2))
        gates = engram.gate(x, kv[:, :h], qw, kw, 1e-20)
        cases.append(
            dict(
                name=name, num_streams=h, norm_eps=1e-20, streams=f32(x.flatten(1)), key_value=f32(kv.flatten(1)),
                q_weight=f32(qw), k_weight=f32(kw), gates=gates, out=(x + gates.unsqueeze(-1) * kv[:, h:]).flatten(1),
            )  # fmt: skip
        )
    return cases


class _HashSizes:
    def __init__(self, **sizes):
        vars(self).update(sizes)


def engram_hash_cases():
    released = _HashSizes(
        engram_layer_ids=(1, 14), engram_num_embeddings=(384006168, 384016682), engram_max_ngram_size=4,
        engram_n_heads=8, engram_vocab_size=16000000, engram_compressed_vocab_size=99092,
    )  # fmt: skip
    tiny = _HashSizes(
        engram_layer_ids=(1, 3), engram_num_embeddings=(630, 834), engram_max_ngram_size=4, engram_n_heads=2,
        engram_vocab_size=97, engram_compressed_vocab_size=64,
    )  # fmt: skip
    cases = []
    for name, sizes in (("released", released), ("tiny", tiny)):
        hashes = engram.EngramHash(sizes)
        ids = Source(112).integers(sizes.engram_compressed_vocab_size, 12)
        ids[4] = ids[5] = ids[9] = engram.DEAD
        rows = [hashes.rows(ids[None], 2, i)[0] for i in range(len(sizes.engram_layer_ids))]
        cases.append(
            dict(
                name=name, **{k: list(v) if isinstance(v, tuple) else v for k, v in vars(sizes).items()}, pad=2,
                primes=hashes.primes, offsets=hashes.offsets,
                multipliers=[[str(m) for m in layer] for layer in hashes.multipliers], compressed_ids=ids, rows=rows,
            )  # fmt: skip
        )
    return cases


OPERATIONS = {
    "rms_norm": rms_norm_cases,
    "quantisers": quantiser_cases,
    "weight_formats": weight_format_cases,
    "rope": rope_cases,
    "mhc": mhc_cases,
    "attention": attention_cases,
    "compressor": compressor_cases,
    "indexer": indexer_cases,
    "router": router_cases,
    "swiglu": swiglu_cases,
    "engram_gate": engram_gate_cases,
    "engram_hash": engram_hash_cases,
}


# --- writing -------------------------------------------------------------------------------------------------------


def _text(value):
    if torch.is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return str(value) if value.dtype == np.float32 else repr(value.item())
        return "[" + ",".join(_text(v) for v in value) + "]"
    if isinstance(value, np.float32):
        return str(value)
    if isinstance(value, (np.integer, np.floating)):
        return repr(value.item())
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(v) for v in value) + "]"
    return json.dumps(value)


def render(cases):
    """JSON text, a field a line."""
    texts = [",\n".join(' "%s": %s' % (key, _text(value)) for key, value in case.items()) for case in cases]
    return "[" + ",\n".join("{\n%s\n}" % text for text in texts) + "]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="directory to write to")
    directory = parser.parse_args().out
    os.makedirs(directory, exist_ok=True)
    for name, cases in OPERATIONS.items():
        with open(os.path.join(directory, name + ".json"), "w") as file:
            file.write(render(cases()))


if __name__ == "__main__":
    main()
