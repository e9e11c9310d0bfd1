"""The whole pipeline at toy size on a CPU: data, a training round, a drafter round, export, reload."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch

from reference.checkpoint import load_model
from reference.numerics import OFFICIAL
from tools.tiny_model.chat import segments
from tools.tiny_model.data_files import write
from tools.tiny_model.documents import _from_segments, _from_text, load_encoder
from tools.tiny_model.state import load_state, save_state, settle

from . import ROOT, TOKENIZER
from .common import relative, toy_models

STORY = "Once upon a time there was a small red fox. It liked to run in the green wood. One day it met a bird."


def have_tokenizers():
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        return False
    return True


def run(module, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.tiny_model." + module, *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise AssertionError(module + " failed:\n" + result.stdout[-2000:] + result.stderr[-3000:])
    return result.stdout


class StateTest(unittest.TestCase):
    def test_a_saved_state_is_the_function_that_was_trained(self):
        target, drafter = toy_models()
        settle(target, drafter)
        tokens = torch.randint(3, 6000, (1, 40))
        with tempfile.TemporaryDirectory() as directory, torch.no_grad():
            wanted = target(tokens, OFFICIAL.with_weight_formats())
            save_state(directory, {"tokens": 5}, target, drafter)
            other, other_drafter = toy_models(seed=2)
            self.assertEqual(load_state(directory, other, other_drafter)["tokens"], 5)
            for numerics in (OFFICIAL, OFFICIAL.with_weight_formats()):
                self.assertTrue(torch.equal(other(tokens, numerics), wanted))


@unittest.skipUnless(have_tokenizers(), "packing text needs the package tokenizers, which is not installed")
class PipelineTest(unittest.TestCase):
    def test_rounds_from_text_to_a_checkpoint(self):
        encode = load_encoder(TOKENIZER)
        with tempfile.TemporaryDirectory() as directory:
            data, state, drafted, model = (os.path.join(directory, n) for n in ("data", "state", "drafted", "model"))
            stories = [_from_text(STORY + " It was number %d." % i, encode) for i in range(20)]
            talk = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am a small program."}]
            write(os.path.join(data, "stories.xz"), stories)
            write(os.path.join(data, "dialogue.xz"), [_from_segments(segments(talk), encode)] * 10)
            common = ["--size", "toy", "--data", data, "--held-out", data, "--tokens-per-batch", 256, "--length", 64]
            text = run("train", "--plan", "start", "--out", state, "--minutes", 0.3, "--reserve", 8, "--log-seconds", 1, *common)
            self.assertIn("held out, as stored", text)
            text = run(
                "train_drafter", "--state", state, "--out", drafted, "--minutes", 0.25, "--reserve", 8,
                "--prompts", 4, "--new-tokens", 12, "--log-seconds", 1, *common,
            )
            self.assertIn("temperatures", text)
            run("export", "--size", "toy", "--tokenizer", TOKENIZER, "--state", drafted, "--out", model)
            with open(os.path.join(model, "model.safetensors.index.json")) as file:
                names = json.load(file)["weight_map"]
            self.assertIn("mtp.1.markov_head.embed.weight", names)
            self.assertIn("layers.1.engram.embed.scale", names)
            loaded = load_model(model)
            trained, _ = toy_models()
            load_state(drafted, trained)
            tokens = torch.tensor([encode(["<｜begin▁of▁sentence｜>" + STORY])[0]])
            with torch.no_grad():
                self.assertLess(relative(loaded(tokens, OFFICIAL), trained(tokens, OFFICIAL.with_weight_formats())), 1e-6)


if __name__ == "__main__":
    unittest.main()
