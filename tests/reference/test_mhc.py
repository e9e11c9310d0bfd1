"""Hyper-connection coefficients against a worked example and against their invariants."""

import unittest

import torch

from reference import mhc


class SplitMix(unittest.TestCase):
    def test_worked_example(self):
        m = (torch.arange(24, dtype=torch.float64) - 11.5) / 10
        base = torch.zeros(24, dtype=torch.float64)
        a, c, _ = mhc.split_mix(m, torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64), base, 4, 20, 1e-6)
        b = mhc.sinkhorn(torch.sin(7 * m[8:]).reshape(4, 4), 20, 1e-6)
        expected_a = [0.3600849, 0.3716848, 0.3834345, 0.3953219]
        expected_c = [0.9065237, 0.9189283, 0.9313581, 0.9438093]
        expected_b = [
            [0.276265, 0.208511, 0.204039, 0.311184],
            [0.175640, 0.316654, 0.309864, 0.197841],
            [0.440726, 0.247412, 0.153946, 0.157915],
            [0.107368, 0.227422, 0.332150, 0.333059],
        ]
        self.assertLess((a - torch.tensor(expected_a, dtype=torch.float64)).abs().max(), 6e-8)
        self.assertLess((c - torch.tensor(expected_c, dtype=torch.float64)).abs().max(), 6e-8)
        self.assertLess((b - torch.tensor(expected_b, dtype=torch.float64)).abs().max(), 6e-7)
        self.assertLess((b.sum(0) - 0.999999).abs().max(), 1e-6)
        self.assertLess((b.sum(1) - 0.999999).abs().max(), 1e-6)


class Streams(unittest.TestCase):
    def test_spread_contracts_the_first_index_of_b(self):
        x = torch.randn(3, 4, 8, dtype=torch.float64)
        y, c = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
        b = torch.randn(3, 4, 4, dtype=torch.float64)
        out = mhc.spread(c, b, y, x)
        for j in range(4):
            expected = c[:, j, None] * y + sum(b[:, i, j, None] * x[:, i] for i in range(4))
            self.assertLess((out[:, j] - expected).abs().max(), 1e-12)

    def test_mix_ignores_the_size_of_its_input_even_when_tiny(self):
        x = torch.randn(2, 5, 4, 8, dtype=torch.float64)
        fn, base = torch.randn(24, 32, dtype=torch.float64), torch.randn(24, dtype=torch.float64)
        scale = torch.tensor([0.7, 0.6, 0.5], dtype=torch.float64)
        large = mhc.mix(x, fn, scale, base, 20, 1e-6, 1e-20)
        small = mhc.mix(x * 1e-7, fn, scale, base, 20, 1e-6, 1e-20)
        for one, other in zip(large, small):
            self.assertLess((one - other).abs().max(), 1e-5)


if __name__ == "__main__":
    unittest.main()
