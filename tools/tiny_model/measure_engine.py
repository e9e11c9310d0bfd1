"""Held-out bits per byte by `deepinfer score`, on the documents and by the rule of tools.tiny_model.measure.

    python3 -m tools.tiny_model.measure_engine --program build/release/apps/deepinfer --model models/tiny \
        --held-out .train/heldout --out engine.json [--groups stories dialogue] [--without engram candidates]

Documents go to the program as text in which control tokens are spelt out, and must come back as the same tokens.
"""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile

from .batches import load_groups
from .documents import GROUPS
from .measure import names_of
from .vocabulary import read_tokenizer, token_bytes


def text_of(ids, tokens):
    return b"".join(tokens[i] for i in ids).decode("utf-8", "replace")


def score(program, model, texts, threads):
    """Token records of all texts, in one run of the program."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
        file.flush()
        command = [program, "score", "-m", model, "--jsonl", "--json", "--control-tokens", "--threads", str(threads), file.name]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["tokens"]


def zero_tensor(directory, name):
    """Overwrites one tensor of a checkpoint with zero bytes."""
    with open(os.path.join(directory, "model.safetensors.index.json")) as file:
        path = os.path.join(directory, json.load(file)["weight_map"][name])
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
        file.seek(8 + size + begin)
        file.write(bytes(end - begin))


def ablated(model, directory, part):
    """A copy of the checkpoint without the memory of Engram, or without the candidate filter."""
    shutil.copytree(model, directory)
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = json.load(file)
    text = config["text_config"]
    if part == "engram":
        for layer in text["engram_layer_ids"]:
            zero_tensor(directory, "layers.%d.engram.embed.weight" % layer)
    elif part == "candidates":
        text["candidate_topk_blocks"] = text["max_position_embeddings"] // text["candidate_block_size"]
        with open(path, "w") as file:
            json.dump(config, file)
    else:
        raise ValueError("%s: name engram or candidates" % part)
    return directory


def measure(program, model, groups, tokenizer, threads):
    """{group or category: {"bits_per_byte", "bytes", "tokens"}}"""
    spelling = list(token_bytes(tokenizer))
    sizes = [len(b) for b in spelling]
    for token in tokenizer["added_tokens"]:
        spelling[token["id"]], sizes[token["id"]] = token["content"].encode(), 0
    sums = {}
    for group, documents in groups.items():
        texts = [text_of(d.ids[1:].tolist(), spelling) for d in documents]
        records, at = score(program, model, texts, threads), 0
        for document, text in zip(documents, texts):
            ids = document.ids[1:].tolist()
            if [r["id"] for r in records[at : at + len(ids)]] != ids:
                raise ValueError("a document of group %s is read as other tokens: %r" % (group, text[:60]))
            nats = -sum(r["logprob"] for r in records[at : at + len(ids)])
            at += len(ids)
            for name in names_of(group):
                total = sums.setdefault(name, [0.0, 0, 0])
                total[0] += nats
                total[1] += sum(sizes[i] for i in ids)
                total[2] += len(ids)
    return {n: {"bits_per_byte": t[0] / t[1] / math.log(2), "bytes": t[1], "tokens": t[2]} for n, t in sorted(sums.items())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--groups", nargs="+", default=tuple(GROUPS), choices=tuple(GROUPS))
    parser.add_argument("--without", nargs="*", default=(), choices=("engram", "candidates"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", required=True, help="JSON file that receives the figures, added to what it holds")
    arguments = parser.parse_args()
    groups = load_groups([arguments.held_out], tuple(arguments.groups))
    tokenizer = read_tokenizer(os.path.join(arguments.model, "tokenizer.json"))
    found = {}
    if os.path.exists(arguments.out):
        with open(arguments.out) as file:
            found = json.load(file)
    names = {None: "as stored", "engram": "without Engram", "candidates": "without the candidate filter"}
    for part in arguments.without or (None,):
        with tempfile.TemporaryDirectory() as directory:
            model = ablated(arguments.model, os.path.join(directory, "model"), part) if part else arguments.model
            found[names[part]] = measure(arguments.program, model, groups, tokenizer, arguments.threads)
        print(names[part] + ": " + "  ".join("%s %.4f" % (n, v["bits_per_byte"]) for n, v in found[names[part]].items()), flush=True)
        with open(arguments.out, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
