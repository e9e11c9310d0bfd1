"""Reads the corpus: CATEGORY-*.jsonl.zst files of records {"text"} or {"messages"}, each with its source.

Records of sources that a shipped model is not trained on are left out here, once for all readers.
"""

import io
import json
import os
import subprocess

CATEGORIES = ("stories", "prose", "dialogue", "code-json")
LEFT_OUT = (
    "GPTeacher codegen",
    "GPTeacher roleplay",
    "GPTeacher toolformer",
    "Simple English Wikipedia (D-Wikipedia)",
)


def _open_lines(path):
    if path.endswith(".zst"):
        try:
            import zstandard

            raw = open(path, "rb")
            stream = zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(raw)
            return io.TextIOWrapper(stream, encoding="utf-8")
        except ImportError:
            pipe = subprocess.Popen(["zstd", "-dcq", "--long=27", path], stdout=subprocess.PIPE)
            return io.TextIOWrapper(pipe.stdout, encoding="utf-8")
    return open(path, encoding="utf-8")


def files(directory, category, held_out):
    names = sorted(n for n in os.listdir(directory) if n.startswith(category + "-") and ".jsonl" in n)
    names = [n for n in names if ("heldout" in n) == held_out]
    if not names:
        raise FileNotFoundError("%s: no %s files of category %s" % (directory, "held-out" if held_out else "training", category))
    return [os.path.join(directory, n) for n in names]


def records(directory, category, held_out=False):
    """Records of one category in file order, without the sources left out."""
    for path in files(directory, category, held_out):
        with _open_lines(path) as lines:
            for line in lines:
                record = json.loads(line)
                if record["source"] not in LEFT_OUT:
                    yield record
