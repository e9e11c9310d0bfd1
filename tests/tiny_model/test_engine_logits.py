"""The shipped model by the deepinfer program against the same files by the reference, within the bounds of the golden tests.

Needs the built program: DEEPINFER_PROGRAM, or build/release/apps/deepinfer. Run by itself, it prints what it measured.
"""

import json
import os
import statistics
import subprocess
import unittest

import torch

from reference.checkpoint import load_model
from reference.numerics import BY_NAME

from . import ROOT

MODEL = os.path.join(ROOT, "models", "tiny")
PROGRAM = os.environ.get("DEEPINFER_PROGRAM", os.path.join(ROOT, "build", "release", "apps", "deepinfer"))
# Texts that the model wrote, and how many tokens are processed at once: past 257 tokens every selection drops rows.
with open(os.path.join(os.path.dirname(__file__), "engine_logits_ids.json")) as _file:
    CASES = [(case["ids"], case["at_once"]) for case in json.load(_file)]


def program(*arguments):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


def engine_rows(ids, at_once, numerics):
    made = program(
        "logits", "-m", MODEL, "--numerics", numerics, "--tokens", ",".join(map(str, ids[:at_once])),
        "--decode", ",".join(map(str, ids[at_once:])),
    )  # fmt: skip
    return torch.tensor(made["logits"], dtype=torch.float64)


def reference_rows(model, ids, at_once, numerics):
    with torch.no_grad():
        return model(torch.tensor([ids]), BY_NAME[numerics])[0, at_once - 1 :].double()


def row_errors(found, wanted):
    """Largest difference over largest logit, a figure a row."""
    return ((found - wanted).abs().amax(dim=1) / wanted.abs().amax(dim=1)).tolist()


@unittest.skipUnless(os.path.exists(PROGRAM), "compares with the deepinfer program, which is not built (DEEPINFER_PROGRAM)")
class EngineLogitsTest(unittest.TestCase):
    def say(self, name, errors):
        print("%s: %d rows, largest %.2e, median %.2e" % (name, len(errors), max(errors), statistics.median(errors)))

    def test_exact_numerics_agree_with_double_precision(self):
        model, errors = load_model(MODEL, dtype=torch.float64), []
        for ids, at_once in CASES:
            found, wanted = engine_rows(ids, at_once, "exact"), reference_rows(model, ids, at_once, "exact")
            self.assertEqual(found.shape, wanted.shape)
            self.assertTrue(torch.equal(found.argmax(dim=1), wanted.argmax(dim=1)))
            errors += row_errors(found, wanted)
        self.say("exact", errors)
        self.assertLessEqual(max(errors), 1e-4)

    def test_official_numerics_agree_as_well_as_the_reference_agrees_with_itself(self):
        """The order of sums decides roundings to 8 bits, so the reference in two precisions shows what can be had."""
        models = load_model(MODEL), load_model(MODEL, dtype=torch.float64)
        errors, floor = [], []
        for ids, at_once in CASES:
            single, double = (reference_rows(m, ids, at_once, "official") for m in models)
            errors += row_errors(engine_rows(ids, at_once, "official"), single)
            floor += row_errors(double, single)
        self.say("official", errors)
        self.say("the reference in double precision", floor)
        self.assertLessEqual(max(errors), 0.06)
        self.assertLessEqual(statistics.median(errors), 1.2 * statistics.median(floor))


if __name__ == "__main__":
    unittest.main()
