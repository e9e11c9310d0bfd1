"""RoPE frequencies of both tables, float32 angles, and rotation of adjacent pairs."""

import math
import unittest

import numpy as np
import torch

from reference import numerics, rope
from reference.config import Yarn

COMPRESSING = """1 0.687656044960022 0.472870796918869 0.32517242431640625 0.22360679507255554
0.15376456081867218 0.10573713481426239 0.07271077483892441 0.05000000074505806 0.03438280150294304
0.02364353835582733 0.01625862345099449 0.011180340312421322 0.007688228040933609 0.005286856088787317
0.0036355385091155767 0.0022656249348074198 0.0013968013226985931 0.0008496897062286735 0.0005080819828435779
0.0002969777851831168 0.00016817997675389051 9.08678412088193e-05 4.544422699837014e-05 1.953125320142135e-05
5.372312443796545e-06 3.6943033592251595e-06 2.540409695939161e-06 1.7469279782744707e-06 1.2012856132059824e-06
8.260713002528064e-07 5.680529397977807e-07"""


class Frequencies(unittest.TestCase):
    def test_compressing_layers_use_yarn_whatever_the_context(self):
        expected = np.array([float(v) for v in COMPRESSING.split()])
        computed = rope.frequencies(64, 160000, Yarn()).astype(np.float64)
        # The listed values come from another pow: its last bits may differ, more would be another formula.
        self.assertLess(np.abs(computed / expected - 1).max(), 4 * 2.0**-24)

    def test_plain_layers_use_powers_of_theta(self):
        expected = 10000.0 ** (-np.arange(32) / 32)
        self.assertLess(np.abs(rope.frequencies(64, 10000) / expected - 1).max(), 2.0**-23)

    def test_angles_are_float32_products(self):
        freq = np.array([0.687656044960022], dtype=np.float32)
        cos, _ = rope.cos_sin(torch.tensor([100000]), freq, torch.float64)
        self.assertAlmostEqual(cos.item(), math.cos(68765.6015625), places=12)


class Rotation(unittest.TestCase):
    def test_adjacent_pairs_of_the_last_channels_turn(self):
        x = torch.tensor([[[5.0, 6.0, 1.0, 0.0, 0.0, 1.0]]], dtype=torch.float64)
        table = (torch.tensor([[0.6, 0.8]], dtype=torch.float64), torch.tensor([[0.8, 0.6]], dtype=torch.float64))
        out = rope.rotate(x, table, numerics.EXACT)
        expected = torch.tensor([5.0, 6.0, 0.6, 0.8, -0.6, 0.8], dtype=torch.float64)
        self.assertLess((out[0, 0] - expected).abs().max(), 1e-15)

    def test_inverse_undoes_the_rotation_for_every_head(self):
        x = torch.randn(2, 7, 3, 24, dtype=torch.float64)
        table = rope.cos_sin(torch.arange(7), rope.frequencies(16, 10000), torch.float64)
        turned = rope.rotate(x, table, numerics.EXACT)
        self.assertGreater((turned - x)[:, 1:].abs().max(), 0.1)
        back = rope.rotate(turned, table, numerics.EXACT, inverse=True)
        self.assertLess((back - x).abs().max(), 1e-14)


if __name__ == "__main__":
    unittest.main()
