"""Times tokenizer_bench beside the Python package `tokenizers` on one thread and the same text, and compares the ids.

    pip install tokenizers
    python3 bench/text/compare_with_tokenizers.py --bench build/bench/text/tokenizer_bench \
        --tokenizer tests/golden/tokenizer/tokenizer.json --megabytes 10 FILE.jsonl.zst...

The text is made of equal parts of the files: JSON lines with "text" or "messages", compressed by zstd (long window).
Both sides report processor time; rounds alternate, so that both meet the same neighbours. For the package the best of
three ways counts: the whole text at once, documents of about 4 KB in one batch, and the same without offsets.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (reads the variable above)

DOCUMENT_BYTES = 4096


def read_part(path, num_bytes):
    process = subprocess.Popen(["zstd", "-dc", "--long=27", path], stdout=subprocess.PIPE)
    parts, size = [], 0
    for line in process.stdout:
        record = json.loads(line)
        text = record["text"] if "text" in record else "\n".join(m["content"] for m in record["messages"])
        parts.append(text + "\n\n")
        size += len(parts[-1].encode())
        if size >= num_bytes:
            break
    process.kill()
    return "".join(parts)


def documents_of(text):
    """Cuts before a space inside a line, where no piece of pre-tokenisation is cut: the ids stay those of the whole."""
    documents, begin = [], 0
    while begin < len(text):
        end = begin + DOCUMENT_BYTES
        while end < len(text) and not (text[end] == " " and text[end - 1].isalpha() and text[end + 1 : end + 2].isalpha()):
            end += 1
        documents.append(text[begin:end])
        begin = end
    return documents


def timed(function):
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


def hash_of(ids):
    value = 0xCBF29CE484222325
    for token in ids:
        value = ((value ^ token) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("corpus", nargs="+")
    arguments = parser.parse_args()

    num_bytes = int(1e6 * arguments.megabytes)
    text = "".join(read_part(path, num_bytes // len(arguments.corpus)) for path in arguments.corpus)
    documents = documents_of(text)
    megabytes = 1e-6 * len(text.encode())
    package = tokenizers.Tokenizer.from_file(arguments.tokenizer)
    ways = {
        "whole": lambda: package.encode(text, add_special_tokens=False).ids,
        "batch": lambda: [i for e in package.encode_batch(documents, add_special_tokens=False) for i in e.ids],
        "batch_fast": lambda: [i for e in package.encode_batch_fast(documents, add_special_tokens=False) for i in e.ids],
    }
    best_ours, best_theirs = {}, {}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        command = [arguments.bench, "--tokenizer", arguments.tokenizer, "--text", file.name, "--rounds", "3"]
        for _ in range(arguments.rounds):
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
            ours = dict(line.split(" ", 1) for line in lines)
            if not best_ours or float(ours["encode_mb_per_s"]) > float(best_ours["encode_mb_per_s"]):
                best_ours = ours
            for name, way in ways.items():
                seconds, ids = timed(way)
                if hash_of(ids) != ours["hash"]:
                    raise SystemExit(f"{name}: {len(ids)} ids differ from our {ours['num_tokens']}")
                best_theirs[name] = max(best_theirs.get(name, 0), megabytes / seconds)
    print(f"{megabytes:.2f} MB, {best_ours['num_tokens']} tokens, equal ids; tokenizers {tokenizers.__version__}")
    for name, value in best_ours.items():
        print(f"  {name:24} {value}")
    for name, speed in best_theirs.items():
        print(f"  tokenizers {name:13} {speed:.2f} MB/s")
    print(f"  ratio to the best way    {float(best_ours['encode_mb_per_s']) / max(best_theirs.values()):.1f}")


main()
