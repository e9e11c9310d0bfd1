import subprocess
import sys
import tempfile
import unittest

from support import ROOT

EXAMPLE = ROOT / "examples" / "offline_inference.py"


class Example(unittest.TestCase):
    def run_example(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:  # it has to find the model from anywhere
            return subprocess.run(
                [sys.executable, EXAMPLE, *arguments], text=True, capture_output=True, cwd=folder, timeout=300
            )

    def test_it_answers_every_prompt_and_repeats_itself(self):
        first, second = (self.run_example("--max-tokens", "12") for _ in range(2))
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertEqual(first.stdout, second.stdout)
        self.assertEqual(first.stdout.count("Prompt:"), 3)

    def test_refused_settings_are_told_without_a_traceback(self):
        done = self.run_example("--ep", "8")
        self.assertEqual(done.returncode, 2)
        self.assertIn("expert_parallel_size 8", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
