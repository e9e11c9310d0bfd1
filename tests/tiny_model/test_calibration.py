"""Temperature fit and figures of merit on data with known answers."""

import unittest

import numpy as np

from tools.tiny_model.calibration import area_under_curve, expected_error, fit_temperatures, report, searched, sigmoid
from tools.tiny_model.export import with_temperatures

TRUE = np.array([2.0, 1.5, 1.0, 0.8, 0.5])


def blocks(count, seed=1):
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.2, 0.98, (count, 5))
    accepted = (rng.random((count, 5)) < c).cumprod(axis=1).sum(axis=1)
    return np.log(c / (1 - c)) * TRUE, accepted


class CalibrationTest(unittest.TestCase):
    def test_the_fit_finds_the_true_temperatures(self):
        temperatures = fit_temperatures(*blocks(20000))
        self.assertLess(np.abs(np.log(np.array(temperatures) / TRUE)).max(), 0.15)

    def test_calibrated_products_match_frequencies(self):
        z, accepted = blocks(20000, seed=2)
        for position in report(z, accepted, TRUE)["positions"]:
            self.assertLess(position["ece_after"], 0.015)

    def test_the_search_stays_near_the_fit_and_does_not_worsen_the_products_error(self):
        z, accepted = blocks(5000, seed=3)
        wrong = list(1.3 * TRUE)
        found = searched(z, accepted, wrong)
        self.assertTrue(all(1 / 1.51 < t / w < 1.51 for t, w in zip(found, wrong)))
        before, after = ([p["ece_after"] for p in report(z, accepted, t)["positions"]] for t in (wrong, found))
        self.assertLess(max(after), max(before))

    def test_the_exported_config_holds_a_temperature_for_each_position(self):
        config = {"model_type": "x", "text_config": {"dspark_block_size": 3}}
        text = with_temperatures(config, [1.23456, 1.0, 0.5])["text_config"]
        self.assertEqual(text["dspark_confidence_head_temperature"], [1.2346, 1.0, 0.5])
        with self.assertRaisesRegex(ValueError, "2 temperatures for blocks of 3"):
            with_temperatures(config, [1.0, 1.0])

    def test_error_of_a_constant_guess_is_its_distance_from_the_rate(self):
        labels = np.array([1.0, 0.0, 0.0, 0.0])
        self.assertAlmostEqual(expected_error(np.full(4, 0.5), labels), 0.25)

    def test_the_curve_area_counts_ties_half(self):
        self.assertEqual(area_under_curve(np.array([1.0, 1.0]), np.array([1, 0])), 0.5)
        self.assertEqual(area_under_curve(np.array([3.0, 1.0, 2.0]), np.array([1, 0, 0])), 1.0)
        self.assertAlmostEqual(float(sigmoid(np.array(0.0))), 0.5)


if __name__ == "__main__":
    unittest.main()
