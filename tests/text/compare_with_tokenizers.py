"""Compares our ids with those of the Python package `tokenizers` on random text; not part of the test run.

    pip install tokenizers
    python3 tests/text/compare_with_tokenizers.py --encode-lines build/tests/text/text_encode_lines

First every code point in a context that shows its class: where the Unicode versions of the two differ, the code points
are listed, and left out of what follows. Then random strings, among them added tokens and ill-formed UTF-8.
"""
import argparse
import random
import subprocess
import unicodedata
from pathlib import Path

import tokenizers

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "tokenizer" / "tokenizer.json"
INTERESTING = " \t\n\r\v\f\x00\x1c\x7f\x85\xa0\u1680\u180e\u2003\u2028\u202f\u3000\u200b1290\xb2\u0663\u2167\u3007aZe\xe9\u0301" \
              "\u0489\u0915\u093e\u4e00\u9fa5\u9fa6\u3041\u3040\u3099\u309b\u30a0\u30fb\u30fc\u3100._$^`-'\u2014\u20ac\uff5c\u2581"


class Pair:
    def __init__(self, encode_lines, tokenizer):
        self.package = tokenizers.Tokenizer.from_file(tokenizer)
        self.command = [encode_lines, tokenizer]

    def differences(self, inputs):
        """The inputs (bytes) whose ids differ."""
        lines = "\n".join(data.hex() for data in inputs) + "\n"
        output = subprocess.run(self.command, input=lines, check=True, capture_output=True, text=True).stdout
        ours = [[int(i) for i in line.split()] for line in output.split("\n")[: len(inputs)]]
        theirs = self.package.encode_batch([d.decode("utf-8", "replace") for d in inputs], add_special_tokens=False)
        return [data for data, a, b in zip(inputs, ours, theirs) if a != b.ids]


def scalar_values():
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(numbers):
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"U+{a:04X}" if a == b else f"U+{a:04X}-{b:04X}" for a, b in out)


def random_text(rng, code_points, added):
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    pieces = []
    for _ in range(rng.randrange(40)):
        which = rng.randrange(8)
        if which == 0:
            pieces.append(chr(rng.choice(code_points)))
        elif which == 1 and kind == 1:
            token = rng.choice(added)
            pieces.append(token[: rng.randrange(len(token) + 1)] if rng.randrange(2) else token)
        elif which == 2:
            pieces.append("".join(rng.choice("etaoinshrdlu ") for _ in range(rng.randrange(12))))
        else:
            pieces.append(rng.choice(INTERESTING))
    return "".join(pieces).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode-lines", required=True)
    parser.add_argument("--tokenizer", default=str(GOLDEN))
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pair = Pair(arguments.encode_lines, arguments.tokenizer)

    contexts = {f"{c}a{c}.{c}1{c}\u4e00{c}\n{c}\x01{c}".replace(" ", "").encode() + b" " + c.encode(): ord(c)
                for c in map(chr, scalar_values())}
    different = sorted(contexts[data] for data in pair.differences(list(contexts)))
    print(f"{len(contexts)} code points, {len(different)} differ: {ranges(different)}")
    newest = [c for c in different if unicodedata.category(chr(c)) != "Cn"]
    print(f"  of these known to Unicode {unicodedata.unidata_version}: {ranges(newest) or 'none'}")

    rng = random.Random(arguments.seed)
    left_out = set(different)
    code_points = [c for c in scalar_values() if c not in left_out]
    added = [token.content for token in pair.package.get_added_tokens_decoder().values()]
    num_different = 0
    for _ in range(0, arguments.strings, 10000):
        inputs = [random_text(rng, code_points, added) for _ in range(10000)]
        bad = pair.differences(inputs)
        num_different += len(bad)
        for data in bad[:5]:
            print("  differs:", data.hex())
    print(f"{arguments.strings} random strings, {num_different} differ")


main()
