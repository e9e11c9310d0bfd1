"""Writes the seeds of segment_fuzz: unit records, and content with damage (see segment_fuzz.cc for the shape)."""
import pathlib
import random
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "segment"


def unit(tokens, blocks, salt=3):
    head = struct.pack("<QQQ", salt, len(tokens), len(blocks))
    return head + struct.pack(f"<{len(tokens)}i", *tokens) + b"".join(struct.pack("<IIQQ", g, 0, h, l) for g, h, l in blocks)


def damaged(payload_sizes, damage, seed):
    source = random.Random(seed)
    content = b"".join(bytes([size]) + source.randbytes(size * 40) for size in payload_sizes)
    return content + damage.ljust(len(content), b"\0")[: len(content)]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    seeds = {
        "unit": unit([1, 2, 3, 4], [(0, 5, 6), (1, 7, 8)]),
        "unit_without_blocks": unit([9], []),
        "unit_with_huge_counts": struct.pack("<QQQ", 0, 2**62, 2**61) + b"\0" * 40,
        "sound_segment": damaged([1, 3, 110, 0, 2], b"", 1),
        "header_damaged": damaged([1, 3, 110], bytes([0x10, 0x14, 0xFF]), 2),
        "payload_damaged": damaged([1, 3, 110], bytes([0x00, 0x45, 0x01]), 3),
        "zeros": b"\0" * 5000,
        "empty": b"",
    }
    for name, content in seeds.items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
