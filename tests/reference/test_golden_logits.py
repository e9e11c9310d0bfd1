"""Logits of the tiny models against recorded ones: 9 prompts, 9 rows each, in double precision and official numerics."""

import unittest

import numpy as np
import torch

from reference import numerics
from tests.reference import golden


class ExactLogits(unittest.TestCase):
    def check(self, name):
        computed, recorded = golden.rows(name, numerics.EXACT, torch.float64, "logits_f64")
        # The recording prints 9 significant digits; what may remain on top of half a unit of the last one is the
        # summation order in double precision.
        half_unit = 0.5 * 10.0 ** (np.floor(np.log10(np.abs(recorded))) - 8)
        largest = np.abs(recorded).max(axis=1, keepdims=True)
        excess = (np.abs(computed - recorded) - half_unit) / largest
        self.assertLessEqual(excess.max(), 1e-12)
        self.assertTrue((computed.argmax(axis=1) == recorded.argmax(axis=1)).all())

    def test_tiny_full_agrees_to_every_printed_digit(self):
        self.check("tiny_full")

    def test_tiny_noengram_agrees_to_every_printed_digit(self):
        self.check("tiny_noengram")

    def test_tiny_smooth_agrees_to_every_printed_digit(self):
        self.check("tiny_smooth")


class OfficialLogits(unittest.TestCase):
    """Most rows agree to float32; in the rest a sum ends on the other side of a rounding step, which then spreads."""

    def check(self, name, worst, median):
        computed, recorded = golden.rows(name, numerics.OFFICIAL, torch.float32, "logits_official")
        errors = golden.row_errors(computed, recorded)
        self.assertLessEqual(errors.max(), worst)
        self.assertLessEqual(np.median(errors), median)
        ordered = np.sort(recorded, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > 0.06 * np.abs(recorded).max(axis=1)
        self.assertGreater(clear.sum(), 20)
        self.assertTrue((computed.argmax(axis=1) == recorded.argmax(axis=1))[clear].all())

    def test_tiny_smooth_stays_within_rounding(self):
        self.check("tiny_smooth", worst=0.015, median=1e-6)

    def test_tiny_full_stays_within_discrete_choices(self):
        self.check("tiny_full", worst=0.06, median=1e-6)

    def test_tiny_noengram_stays_within_discrete_choices(self):
        self.check("tiny_noengram", worst=0.06, median=1e-6)


class OtherSettings(unittest.TestCase):
    def test_weight_formats_change_nothing_on_a_loaded_checkpoint(self):
        plain, _ = golden.rows("tiny_smooth", numerics.EXACT, torch.float64, "logits_f64")
        quantised, _ = golden.rows("tiny_smooth", numerics.EXACT.with_weight_formats(), torch.float64, "logits_f64")
        self.assertTrue((plain == quantised).all())

    def test_bf16_activations_lie_near_but_not_on_the_official_logits(self):
        computed, recorded = golden.rows("tiny_smooth", numerics.BF16_ACTIVATIONS, torch.float32, "logits_official")
        errors = golden.row_errors(computed, recorded)
        self.assertLessEqual(errors.max(), 0.03)
        self.assertGreater(errors.min(), 1e-4)


if __name__ == "__main__":
    unittest.main()
