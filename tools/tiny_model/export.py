"""Writes a checkpoint directory in the released layout: shards with an index, config, tokenizer, token map.

    python3 -m tools.tiny_model.export --size tiny --tokenizer models/tiny/tokenizer.json --random 1 --out DIR
    python3 -m tools.tiny_model.export --state .train/state --tokenizer models/tiny/tokenizer.json --out models/tiny
"""

import argparse
import json
import os
import re
import shutil

import torch

from reference.checkpoint import encode_parameters
from reference.config import parse_config
from reference.init import initialize
from reference.safetensors import write_safetensors
from reference.transformer import Transformer

from .config import SIZES, build_config
from .drafter import Drafter
from .vocabulary import compressed_ids, read_tokenizer

SHARD_BYTES = 9_000_000
GENERATION = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.95,
}


def build_models(config, token_map):
    """(target, drafter) with parameters of zeros and ones. config: a config.json dictionary."""
    parsed = parse_config(config)
    return Transformer(parsed, token_map), Drafter(parsed)


def released_order(name):
    """Sort key: embedding, layers, head, drafter, and the Engram tensors last."""
    layer = re.match(r"(layers|mtp)\.(\d+)\.", name)
    group = {"embed": 0, "layers": 1, "head": 2, "norm": 2, "mtp": 3}[name.split(".")[0]]
    numbers = [int(n) for n in re.findall(r"\.(\d+)\.", name)]
    return (4 if ".engram." in name else group, numbers[:1] if layer else [], numbers[1:], name)


def shards(tensors, limit):
    """Lists of names of at most `limit` bytes each (or one tensor), in released order."""
    groups, size = [[]], 0
    for name in sorted(tensors, key=released_order):
        if groups[-1] and size + tensors[name][1].nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensors[name][1].nbytes
    return groups


def write_shards(directory, tensors, limit=SHARD_BYTES):
    groups = shards(tensors, limit)
    weight_map = {}
    for number, names in enumerate(groups, start=1):
        file = "model-%05d-of-%05d.safetensors" % (number, len(groups))
        write_safetensors(os.path.join(directory, file), {n: tensors[n] for n in names})
        weight_map.update(dict.fromkeys(names, file))
    total = sum(array.nbytes for _, array in tensors.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=0)
        file.write("\n")
    return total


def with_temperatures(config, temperatures):
    """The config with the divisors of the drafter's confidence logits, one a block position."""
    text = {**config["text_config"], "dspark_confidence_head_temperature": [round(t, 4) for t in temperatures]}
    if len(temperatures) != text["dspark_block_size"]:
        raise ValueError("%d temperatures for blocks of %d" % (len(temperatures), text["dspark_block_size"]))
    return {**config, "text_config": text}


def write_checkpoint(directory, config, tokenizer_path, target, drafter):
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if name.endswith(".safetensors"):
            os.remove(os.path.join(directory, name))
    total = write_shards(directory, {**encode_parameters(target), **encode_parameters(drafter)})
    files = {
        "config.json": (config, 1),
        "generation_config.json": (GENERATION, 1),
        "token_map.json": (compressed_ids(read_tokenizer(tokenizer_path)), None),
    }
    for name, (value, indent) in files.items():
        with open(os.path.join(directory, name), "w") as file:
            json.dump(value, file, indent=indent)
            file.write("\n")
    target_path = os.path.join(directory, "tokenizer.json")
    if os.path.abspath(tokenizer_path) != os.path.abspath(target_path):
        shutil.copyfile(tokenizer_path, target_path)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--state", help="folder of a training state")
    source.add_argument("--random", type=int, metavar="SEED", help="random weights instead: for tests of an engine")
    arguments = parser.parse_args()
    tokenizer = read_tokenizer(arguments.tokenizer)
    config = build_config(SIZES[arguments.size], tokenizer)
    target, drafter = build_models(config, compressed_ids(tokenizer))
    if arguments.state:
        from .state import load_state

        counters = load_state(arguments.state, target, drafter)
        if "dspark" in counters:
            config = with_temperatures(config, counters["dspark"]["temperatures"])
    else:
        generator = torch.Generator().manual_seed(arguments.random)
        initialize(target, generator, "fixture")
        initialize(drafter, generator, "fixture")
    total = write_checkpoint(arguments.out, config, arguments.tokenizer, target, drafter)
    print("%s: %.3f MB of tensors in %d shards" % (arguments.out, total / 1e6, sum(n.endswith(".safetensors") for n in os.listdir(arguments.out))))


if __name__ == "__main__":
    main()
