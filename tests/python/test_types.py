"""The package's types: the stub of the extension is what its build says, and everything passes the strict checks."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import deepinfer
from support import ROOT

STUB = ROOT / "python" / "deepinfer" / "_engine.pyi"


class Types(unittest.TestCase):
    def test_the_committed_stub_is_the_one_of_the_built_module(self):
        if not importlib.util.find_spec("nanobind"):
            self.skipTest("nanobind is not installed, so no stub can be made to compare with")
        with tempfile.TemporaryDirectory() as folder:
            made = pathlib.Path(folder) / "_engine.pyi"
            subprocess.run(
                [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "deepinfer._engine", "-o", made],
                check=True,
                cwd=folder,
            )
            text = made.read_text()
        if os.environ.get("DEEPINFER_WRITE_STUB"):
            STUB.write_text(text)
        self.assertEqual(text, STUB.read_text(), "run this test with DEEPINFER_WRITE_STUB=1 and commit the stub")

    def test_the_installed_package_says_that_it_is_typed(self):
        installed = pathlib.Path(deepinfer.__file__).parent
        self.assertTrue((installed / "py.typed").is_file())
        self.assertEqual((installed / "_engine.pyi").read_text(), STUB.read_text())

    def check_strictly(self, *arguments, **variables):
        """mypy's finished process; skips the test if there is no mypy."""
        if not importlib.util.find_spec("mypy"):
            self.skipTest("mypy is not installed, so types cannot be checked")
        with tempfile.TemporaryDirectory() as cache:
            return subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "mypy",
                    "--strict",
                    "--cache-dir",
                    cache,
                    "--config-file",
                    os.devnull,
                    *arguments,
                ],
                env={**os.environ, **variables},
                text=True,
                capture_output=True,
                cwd=cache,
            )

    def test_the_package_and_its_use_pass_the_strict_checks(self):
        done = self.check_strictly(
            ROOT / "python" / "deepinfer",
            ROOT / "tests" / "python" / "usage.py",
            ROOT / "examples" / "offline_inference.py",
            MYPYPATH=str(ROOT / "python"),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_wrong_use_does_not_pass(self):
        program = "from deepinfer import LLM, SamplingParams\nSamplingParams(n='two')\nLLM('m').generate(3.5)\n"
        done = self.check_strictly("-c", program)
        self.assertIn("Found 2 errors", done.stdout)


if __name__ == "__main__":
    unittest.main()
