"""Configuration of the small model: the sizes, the config.json that carries them, and a table of their bytes on disk.

    python3 -m tools.tiny_model.config --tokenizer models/tiny/tokenizer.json --out models/tiny

The byte table counts the released formats (FP8 with 32x32 tiles, MXFP4 experts, BF16, F32) without building a model.
"""

import argparse
import json
import os
from dataclasses import dataclass, replace
from typing import Tuple

from reference.config import dump_config, parse_config
from reference.engram import bucket_primes

from .vocabulary import compressed_ids, read_tokenizer

NOISE_TOKEN = "<｜System｜>"
IMAGE_TOKEN = "<｜deepseek_image｜>"


@dataclass(frozen=True)
class Sizes:
    """What distinguishes one small model from another; everything else follows."""

    hidden: int = 320
    heads: int = 6
    head_dim: int = 128
    rope: int = 32
    q_lora: int = 128
    o_groups: int = 2
    o_lora: int = 96
    inter: int = 128
    experts: int = 16
    experts_per_token: int = 4
    window: int = 64
    ratios: Tuple[int, ...] = (0, 2, 2, 2, 2, 1, 1, 1, 1, 1)
    kv_sources: Tuple[int, ...] = (1, 3, 5)
    index_sources: Tuple[int, ...] = (1, 3, 5, 7, 9)
    candidate_source: int = 5
    candidate_blocks: int = 32
    candidate_block: int = 8
    index_heads: int = 16
    index_dim: int = 64
    index_topk: int = 64
    engram_layers: Tuple[int, ...] = (1, 3)
    engram_heads: int = 4
    engram_dim: int = 32
    engram_rows: int = 2000  # start of the prime search, so about this many rows a column
    max_positions: int = 8192
    yarn_original: int = 512
    draft_stages: int = 2
    draft_targets: Tuple[int, ...] = (7, 8, 9)
    draft_experts: int = 4
    draft_experts_per_token: int = 2
    markov_rank: int = 64


TINY = Sizes()

# Seconds on a CPU; every block kind of TINY with as few channels as the formats allow.
TOY = replace(
    TINY,
    hidden=64,
    heads=2,
    head_dim=64,
    rope=16,
    q_lora=32,
    o_lora=32,
    inter=32,
    experts=4,
    experts_per_token=2,
    window=16,
    ratios=(0, 2, 2, 1, 1, 1),
    kv_sources=(1, 3),
    index_sources=(1, 3, 5),
    candidate_source=3,
    candidate_blocks=6,
    candidate_block=4,
    index_dim=32,
    index_topk=8,
    engram_layers=(1, 2),
    engram_heads=2,
    engram_rows=97,
    max_positions=1024,
    yarn_original=64,
    draft_targets=(3, 4, 5),
    draft_experts=2,
    draft_experts_per_token=1,
    markov_rank=16,
)

SIZES = {"tiny": TINY, "toy": TOY}


def build_config(sizes, tokenizer):
    """config.json as a dictionary, nested dialect. `tokenizer`: a parsed tokenizer.json."""
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    primes = bucket_primes(len(sizes.engram_layers), 3, sizes.engram_heads, sizes.engram_rows)
    text = dict(
        vocab_size=1 + max(added.values()),
        hidden_size=sizes.hidden,
        num_hidden_layers=len(sizes.ratios),
        num_attention_heads=sizes.heads,
        head_dim=sizes.head_dim,
        qk_rope_head_dim=sizes.rope,
        q_lora_rank=sizes.q_lora,
        o_groups=sizes.o_groups,
        o_lora_rank=sizes.o_lora,
        moe_intermediate_size=sizes.inter,
        n_routed_experts=sizes.experts,
        num_experts_per_tok=sizes.experts_per_token,
        compress_ratios=list(sizes.ratios) + [0] * sizes.draft_stages,
        kv_source_layer_ids=list(sizes.kv_sources),
        index_source_layer_ids=list(sizes.index_sources),
        candidate_source_layer_id=sizes.candidate_source,
        candidate_topk_blocks=sizes.candidate_blocks,
        candidate_block_size=sizes.candidate_block,
        index_n_heads=sizes.index_heads,
        index_head_dim=sizes.index_dim,
        index_topk=sizes.index_topk,
        sliding_window=sizes.window,
        rope_theta=10000,
        compress_rope_theta=160000,
        rope_scaling=dict(
            rope_type="yarn",
            factor=16,
            beta_fast=32,
            beta_slow=1,
            original_max_position_embeddings=sizes.yarn_original,
        ),
        max_position_embeddings=sizes.max_positions,
        engram_layer_ids=list(sizes.engram_layers),
        engram_num_embeddings=[sum(map(sum, layer)) for layer in primes],
        engram_max_ngram_size=4,
        engram_n_heads=sizes.engram_heads,
        engram_head_dim=sizes.engram_dim,
        engram_vocab_size=sizes.engram_rows,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=1 + max(compressed_ids(tokenizer)),
        num_nextn_predict_layers=sizes.draft_stages,
        dspark_block_size=5,
        dspark_noise_token_id=added[NOISE_TOKEN],
        dspark_target_layer_ids=list(sizes.draft_targets),
        dspark_markov_rank=sizes.markov_rank,
        dspark_n_routed_experts=sizes.draft_experts,
        dspark_num_experts_per_tok=sizes.draft_experts_per_token,
        attention_bias=False,
        attention_dropout=0.0,
        initializer_range=0.02,
        use_cache=True,
    )
    root = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2, image_token_id=added[IMAGE_TOKEN], text_config=text)
    config = dump_config(parse_config(root))
    check(config["text_config"])
    return config


def check(text):
    """The divisibility and selection rules of the formats; raises with the offending value."""
    multiples = dict(
        hidden_size=text["hidden_size"],
        q_lora_rank=text["q_lora_rank"],
        head_dim=text["head_dim"],
        group=text["num_attention_heads"] * text["head_dim"] // text["o_groups"],
        o=text["o_groups"] * text["o_lora_rank"],
        moe_intermediate_size=text["moe_intermediate_size"],
        index_head_dim=text["index_head_dim"],
        engram_head_dim=text["engram_head_dim"],
    )
    for name, value in multiples.items():
        if value % 32:
            raise ValueError("%s = %d must be a multiple of 32" % (name, value))
    pool = text["candidate_topk_blocks"] * text["candidate_block_size"] - (text["candidate_block_size"] - 1)
    if pool < text["index_topk"]:
        raise ValueError("candidate pool of %d rows is smaller than index_topk %d" % (pool, text["index_topk"]))
    if text["qk_rope_head_dim"] > min(text["head_dim"], text["index_head_dim"]):
        raise ValueError("qk_rope_head_dim %d exceeds a head" % text["qk_rope_head_dim"])


# --- bytes on disk -------------------------------------------------------------------------------------------------


def _fp8(rows, columns):
    return rows * columns + -(-rows // 32) * -(-columns // 32)


def _fp4(rows, columns):
    return rows * columns // 2 + rows * columns // 32


def _layer_bytes(t, experts):
    """Bytes by kind of one ratio-0 layer."""
    hidden, inter, streams = t["hidden_size"], t["moe_intermediate_size"], t["hc_mult"]
    heads, group = t["num_attention_heads"] * t["head_dim"], t["o_groups"]
    return {
        "attention": _fp8(t["q_lora_rank"], hidden)
        + _fp8(heads, t["q_lora_rank"])
        + _fp8(t["head_dim"], hidden)
        + _fp8(group * t["o_lora_rank"], heads // group)
        + _fp8(hidden, group * t["o_lora_rank"])
        + 4 * t["num_attention_heads"]
        + 2 * (t["q_lora_rank"] + t["head_dim"]),
        "mhc": 8 * ((2 + streams) * streams * (streams * hidden + 1) + 3),
        "experts": experts * 3 * _fp4(inter, hidden),
        "shared expert": 3 * _fp8(inter, hidden),
        "gates and norms": 2 * experts * hidden + 8 * experts + 4 * hidden,
    }


def byte_table(config):
    """Bytes by kind of the whole checkpoint, headers not counted."""
    t = config["text_config"]
    hidden, total = t["hidden_size"], {}

    def add(parts, prefix=""):
        for kind, size in parts.items():
            total[prefix + kind] = total.get(prefix + kind, 0) + size

    add({"embedding and head": 4 * t["vocab_size"] * hidden + 2 * hidden})
    for layer in range(t["num_hidden_layers"]):
        add(_layer_bytes(t, t["n_routed_experts"]))
        if layer in t["kv_source_layer_ids"]:
            gates = 2 if t["compress_ratios"][layer] > 1 else 1
            latent = t["head_dim"] * hidden * 2 * gates + 2 * t["head_dim"]
            add({"compressors": latent + 2 * t["index_head_dim"] * (t["head_dim"] + 1)})
        if layer in t["index_source_layer_ids"]:
            queries = t["index_n_heads"] * t["index_head_dim"]
            add({"indexers": _fp8(queries, t["q_lora_rank"]) + 2 * t["index_n_heads"] * hidden})
    columns = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"]
    for rows in t["engram_num_embeddings"]:
        add({"engram tables": rows * (t["engram_head_dim"] + t["engram_head_dim"] // 32)})
        projection = _fp8((t["hc_mult"] + 1) * hidden, columns * t["engram_head_dim"])
        add({"engram projections": projection + 4 * t["hc_mult"] * hidden})
    for _ in range(t["num_nextn_predict_layers"]):
        add({"layers": sum(_layer_bytes(t, t["dspark_n_routed_experts"]).values())}, "draft ")
    taps = len(t["dspark_target_layer_ids"])
    rank = t["dspark_markov_rank"]
    add({"heads": _fp8(hidden, taps * hidden) + 4 * t["vocab_size"] * rank + 2 * (3 * hidden + rank)}, "draft ")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES))
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json")
    parser.add_argument("--out", help="directory for config.json and token_map.json; nothing is written without it")
    arguments = parser.parse_args()
    tokenizer = read_tokenizer(arguments.tokenizer)
    config = build_config(SIZES[arguments.size], tokenizer)
    for kind, size in byte_table(config).items():
        print("%-22s %9.3f MB" % (kind, size / 1e6))
    print("%-22s %9.3f MB" % ("all", sum(byte_table(config).values()) / 1e6))
    if arguments.out:
        os.makedirs(arguments.out, exist_ok=True)
        with open(os.path.join(arguments.out, "config.json"), "w") as file:
            json.dump(config, file, indent=1)
            file.write("\n")
        with open(os.path.join(arguments.out, "token_map.json"), "w") as file:
            json.dump(compressed_ids(tokenizer), file)
            file.write("\n")


if __name__ == "__main__":
    main()
