"""Checks that object files for AVX-512 define no symbol which the linker may use for the whole program.

The linker keeps one copy of every weak symbol (inline functions, instantiations of templates). If one compiled for AVX-512
had the same name as one of an ordinary file, the program could crash on a processor without AVX-512. So every weak symbol
of those files has to name avx512, in its namespace or in a lambda or type that it is instantiated for; and no two of those
files with different instructions may share one. Exit status 0: so it is; 1 and a line a symbol: not; 77: not applicable.
"""
import argparse
import subprocess
import sys
from pathlib import Path

PATTERNS = ("vector_ops_avx512*.cc.o", "linear_avx512*.cc.o")
WEAK = set("WVuwv")  # of nm: weak functions and objects, unique globals
SKIP = 77


def weak_symbols(path):
    """Demangled names of the weak symbols that the file defines."""
    listing = subprocess.run(["nm", "--demangle", "--defined-only", str(path)], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        address, kind, name = line.split(maxsplit=2)
        if kind in WEAK and not name.startswith("DW.ref."):
            yield name


def violations(paths):
    owners = {}
    for path in paths:
        for name in set(weak_symbols(path)):
            if "avx512" not in name:
                yield f"{path.name}: weak symbol without avx512 in its name: {name}"
            owners.setdefault(name, []).append(path.name)
    for name, files in sorted(owners.items()):
        if any("bf16" in file for file in files) and len(files) > 1:
            yield f"{', '.join(files)}: share a weak symbol, but not their instructions: {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build_folder", type=Path)
    parser.add_argument("--build-type", default="Release")
    parser.add_argument("--sanitize", default="")
    arguments = parser.parse_args()
    if arguments.build_type != "Release" or arguments.sanitize:
        print("skipped: only optimised builds without sanitizers inline what the AVX-512 files use; nothing else is released")
        return SKIP
    paths = sorted(p for pattern in PATTERNS for p in arguments.build_folder.rglob(pattern))
    if len(paths) < 3:
        print(f"{arguments.build_folder}: expected at least three object files like {', '.join(PATTERNS)}, found {len(paths)}")
        return 1
    found = sorted(violations(paths))
    print("\n".join(found) or f"{len(paths)} object files, every weak symbol names avx512")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
