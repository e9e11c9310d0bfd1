"""Packed token files: GROUP.xz holds the documents of one group, xz-compressed.

Layout before compression, little-endian: a JSON line {"documents", "tokens", "spans"}, then uint32 token counts per
document, uint16 span counts per document, uint16 span lengths, uint16 token ids. Spans longer than 65535 are refused.

    python3 -m tools.tiny_model.data_files --corpus DIR --tokenizer models/tiny/tokenizer.json --out .train --parts 4
"""

import argparse
import json
import lzma
import os

import numpy as np

from .corpus import CATEGORIES
from .documents import GROUPS, Document, documents, load_encoder


def _filters():
    options = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}
    return [{**options, "dict_size": 1 << 27}]


def write(path, docs):
    lengths = np.array([len(d.ids) for d in docs], dtype="<u4")
    counts = np.array([len(d.spans) for d in docs], dtype="<u2")
    spans = np.array([s for d in docs for s in d.spans])
    if spans.size and spans.max() > 65535:
        raise ValueError("%s: a span of %d tokens does not fit 16 bits" % (path, spans.max()))
    ids = np.concatenate([d.ids for d in docs]).astype("<u2")
    header = json.dumps({"documents": len(docs), "tokens": len(ids), "spans": len(spans)}).encode() + b"\n"
    raw = header + lengths.tobytes() + counts.tobytes() + spans.astype("<u2").tobytes() + ids.tobytes()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(lzma.compress(raw, format=lzma.FORMAT_XZ, filters=_filters()))
    return len(ids)


def read(path):
    """List of Documents."""
    with open(path, "rb") as file:
        raw = lzma.decompress(file.read())
    end = raw.index(b"\n") + 1
    header = json.loads(raw[:end])
    arrays = []
    for dtype, count in (("<u4", "documents"), ("<u2", "documents"), ("<u2", "spans"), ("<u2", "tokens")):
        arrays.append(np.frombuffer(raw, dtype=dtype, count=header[count], offset=end))
        end += arrays[-1].nbytes
    lengths, counts, spans, ids = arrays
    token_ends, span_ends = np.cumsum(lengths), np.cumsum(counts, dtype=np.int64)
    return [
        Document(ids[t - n : t], spans[s - k : s].tolist())
        for t, n, s, k in zip(token_ends, lengths, span_ends, counts)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True, help="folder for part0, part1, ... and heldout")
    parser.add_argument("--parts", type=int, default=4, help="equal random shares of the training documents")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    encode = load_encoder(arguments.tokenizer)
    for category in CATEGORIES:
        wanted = [g for g, c in GROUPS.items() if c == category]
        names = ["part%d" % i for i in range(arguments.parts)] + ["heldout"]
        paths = {(n, g): os.path.join(arguments.out, n, g + ".xz") for n in names for g in wanted}
        if all(map(os.path.exists, paths.values())):
            print("%s: there already" % category, flush=True)
            continue
        held_out = list(documents(arguments.corpus, category, encode, held_out=True, seed=arguments.seed))
        docs = list(documents(arguments.corpus, category, encode, seed=arguments.seed))
        order = np.random.default_rng(arguments.seed).permutation(len(docs))
        for (name, group), path in paths.items():
            share = held_out if name == "heldout" else [docs[j] for j in order[int(name[4:]) :: arguments.parts]]
            share = [d for g, d in share if g == group]
            tokens = write(path, share)
            size = os.path.getsize(path) / 1e6
            print("%s: %d documents, %.2f M tokens, %.2f MB" % (path, len(share), tokens / 1e6, size), flush=True)


if __name__ == "__main__":
    main()
