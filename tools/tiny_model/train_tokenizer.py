"""Trains the byte-level BPE tokenizer and writes tokenizer.json in the structure of the released one.

    python3 -m tools.tiny_model.train_tokenizer --corpus DIR --out models/tiny/tokenizer.json

Ids: 0..2 begin, end and padding; 3..258 the single bytes; 259 + k the result of merge k; the control tokens last.
"""

import argparse
import json
import os
import random

from .corpus import CATEGORIES, records
from .vocabulary import BYTE_ORDER, BYTE_TO_CHAR

DIGITS = r"\p{N}{1,3}"
HAN_AND_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    + "\r\n"
    + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    + "\r\n"
    + r"""]*|\s*["""
    + "\r\n"
    + r"""]+|\s+(?!\S)|\s+"""
)

FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
LAST_TOKENS = (
    *("<｜place▁holder▁no▁%d｜>" % i for i in range(8)),
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜begin▁sys｜>",
    "<｜end▁sys｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜task｜>",
    "<｜title｜>",
    "<｜answer｜>",
    "<｜search｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
    "<｜end_of_query｜>",
    "<｜deepseek_image｜>",
)

# Share of each category's records that the merges are counted on: books would otherwise crowd out the rest.
SHARES = {"stories": 1.0, "prose": 0.5, "dialogue": 1.0, "code-json": 1.0}


def pre_tokenizer():
    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split(DIGITS), split(HAN_AND_KANA), split(WORDS), byte_level]}


def tokenizer_json(merges):
    """The whole file as a dictionary. merges: pairs of byte-alphabet strings, most frequent first."""
    vocab = {token: i for i, token in enumerate(FIRST_TOKENS)}
    for byte in BYTE_ORDER:
        vocab[BYTE_TO_CHAR[byte]] = len(vocab)
    for left, right in merges:
        vocab[left + right] = len(vocab)
    added = list(enumerate(FIRST_TOKENS)) + [(len(vocab) + i, token) for i, token in enumerate(LAST_TOKENS)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in added],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": pre_tokenizer(),
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": ["%s %s" % pair for pair in merges],
        },
    }


def training_texts(directory, seed):
    rng = random.Random(seed)
    for category in CATEGORIES:
        for record in records(directory, category):
            if rng.random() < SHARES[category]:
                if "text" in record:
                    yield record["text"]
                else:
                    yield from (message["content"] for message in record["messages"])


def train_merges(texts, count):
    """`count` merges that never make one token twice, so that every merge has an id of its own."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    shell = tokenizer_json([])
    tokenizer = Tokenizer.from_str(json.dumps({**shell, "added_tokens": []}))
    tokenizer.model = BPE()
    alphabet = [BYTE_TO_CHAR[b] for b in BYTE_ORDER]
    trainer = BpeTrainer(vocab_size=count + len(alphabet), initial_alphabet=alphabet, max_token_length=24)
    tokenizer.train_from_iterator(texts, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]
    if len(pairs) != count or len({a + b for a, b in pairs}) != count:
        raise ValueError("%d merges with %d results, not %d" % (len(pairs), len({a + b for a, b in pairs}), count))
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="folder with CATEGORY-*.jsonl.zst files")
    parser.add_argument("--out", required=True, help="path of tokenizer.json")
    parser.add_argument("--vocab-size", type=int, default=6144, help="all entries, control tokens included")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    count = arguments.vocab_size - len(FIRST_TOKENS) - len(BYTE_ORDER) - len(LAST_TOKENS)
    merges = train_merges(training_texts(arguments.corpus, arguments.seed), count)
    os.makedirs(os.path.dirname(arguments.out) or ".", exist_ok=True)
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(tokenizer_json(merges), file, ensure_ascii=False, indent=1)
        file.write("\n")
    print("%s: %d entries, %d merges, last %r" % (arguments.out, arguments.vocab_size, count, merges[-1]))


if __name__ == "__main__":
    main()
