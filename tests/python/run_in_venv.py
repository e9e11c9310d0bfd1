"""Installs the package into a virtual environment of the build folder and runs the tests there.

Exits with 77, which is "skipped", if the pinned requirements cannot be fetched. The environment and the wheel's build
folder are kept, so that a second run only builds what changed.

    run_in_venv.py BUILD_FOLDER [arguments of unittest]
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77

# What pip says when it is the network that failed and not the requirement.
NETWORK_TROUBLE = (
    "connection broken by",
    "NewConnectionError",
    "Temporary failure in name resolution",
    "ProxyError",
    "Read timed out",
    "SSLError",
)


def run(*command, **options):
    return subprocess.run([str(part) for part in command], **options)


def make_venv(folder):
    """The environment's Python, with the requirements as they are now."""
    python = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    requirements = HERE / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder, check=True)
    done = run(
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--retries",
        2,
        "-r",
        requirements,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        print(done.stdout)
        if any(words in done.stdout for words in NETWORK_TROUBLE):
            print("skipped: PyPI cannot be reached, and the pinned requirements come from there")
            sys.exit(SKIPPED)
        sys.exit("the pinned requirements could not be installed")
    stamp.write_text(wanted)
    return python


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = make_venv(folder / "venv")
    # Objects do not depend on the folder they are built in, so the compiler cache may serve them from any other build.
    environment = {**os.environ, "CCACHE_NOHASHDIR": "1", "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    run(
        python,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        "--config-settings",
        f"build-dir={folder / 'wheel'}",
        ROOT,
        check=True,
        env=environment,
    )
    arguments = sys.argv[2:] or ["discover", "-s", HERE, "-t", HERE]
    sys.exit(run(python, "-m", "unittest", *arguments, env=environment, cwd=folder).returncode)


if __name__ == "__main__":
    main()
