import contextlib
import importlib.util
import io
import sys
import unittest
from unittest import mock

from deepinfer import _progress
from support import PROMPTS, params, tiny


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stderr, **options):
    with contextlib.redirect_stderr(stderr):
        tiny().generate(PROMPTS * 2, params(max_tokens=60, ignore_eos=True), **options)
    return stderr.getvalue()


class Progress(unittest.TestCase):
    def test_nothing_is_written_where_there_is_no_terminal_or_it_is_not_wanted(self):
        self.assertEqual(shown(io.StringIO()), "")
        self.assertEqual(shown(Terminal(), use_tqdm=False), "")

    @mock.patch.object(_progress, "_LINE_INTERVAL_SECONDS", 0)
    def test_without_tqdm_a_line_counts_the_answers_and_goes_away(self):
        with mock.patch.dict(sys.modules, {"tqdm": None}):
            text = shown(Terminal())
        self.assertIn("of 10 answers", text)
        self.assertTrue(text.endswith("\r\033[K"), text)
        self.assertNotIn("\n", text)

    @unittest.skipUnless(importlib.util.find_spec("tqdm"), "tqdm is not installed, so its bar cannot be looked at")
    def test_with_tqdm_there_is_its_bar(self):
        self.assertIn("answers: 100%", shown(Terminal()))


if __name__ == "__main__":
    unittest.main()
