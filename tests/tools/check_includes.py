"""Checks every #include "..." of src/ against src/dependencies.txt. Exit status 1 and one line a violation."""
import re
import sys
from pathlib import Path


def read_dependencies(path):
    allowed = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            folder, _, rest = line.partition(":")
            allowed[folder.strip()] = set(rest.split())
    return allowed


def folder_of(relative, folders):
    """The longest listed folder that holds the file."""
    matches = [f for f in folders if relative.startswith(f + "/")]
    return max(matches, key=len) if matches else None


def violations(root):
    source = root / "src"
    allowed = read_dependencies(source / "dependencies.txt")
    for folder, names in allowed.items():
        for name in sorted(names - allowed.keys()):
            yield f"src/dependencies.txt: {folder} names the unknown folder {name}"
    for path in sorted((root / "include").rglob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if match and not (root / "include" / match[1]).is_file():
                yield f"{path.relative_to(root)}:{number}: a public header includes \"{match[1]}\""
    for path in sorted(p for p in source.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh", ".inc"}):
        relative = path.relative_to(source).as_posix()
        folder = folder_of(relative, allowed)
        if folder is None:
            yield f"src/{relative}: its folder is not in src/dependencies.txt"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or (match[1].startswith("deepinfer/") and (root / "include" / match[1]).is_file()):
                continue
            target = folder_of(match[1], allowed)
            where = f"src/{relative}:{number}: includes \"{match[1]}\""
            if target is None or not (source / match[1]).is_file():
                yield f"{where}, which is not a file of a listed folder (write paths from src/)"
            elif target != folder and target not in allowed[folder]:
                yield f"{where}, but src/dependencies.txt does not let {folder} include {target}"


def main():
    found = list(violations(Path(sys.argv[1])))
    print("\n".join(found) if found else "every include is allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
