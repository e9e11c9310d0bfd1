"""Quantisers and codecs against worked values and against brute force over all codes."""

import unittest

import numpy as np
import torch

from reference import quantize
from reference.quantize import e4m3_decode, e4m3_encode


def bf16_line(begin, end, count, dtype=torch.float32):
    return quantize.round_bf16(torch.from_numpy(np.linspace(begin, end, count))).to(dtype)


class E4m3(unittest.TestCase):
    def test_worked_codes(self):
        values = [448, 1000, 1.0625, 1.1875, 17, 19, 2.0**-9, 2.0**-10, -0.0]
        codes = [0x7E, 0x7E, 0x38, 0x3A, 0x58, 0x5A, 0x01, 0x00, 0x80]
        self.assertEqual(e4m3_encode(torch.tensor(values)).tolist(), codes)

    def test_every_code_survives_decode_and_encode(self):
        codes = torch.tensor([c for c in range(256) if c & 127 != 127], dtype=torch.uint8)
        self.assertEqual(e4m3_encode(e4m3_decode(codes)).tolist(), codes.tolist())
        self.assertTrue(torch.isnan(e4m3_decode(torch.tensor([127, 255], dtype=torch.uint8))).all())

    def test_rounding_takes_the_nearest_value_and_on_ties_the_even_code(self):
        table = e4m3_decode(torch.arange(127, dtype=torch.uint8)).to(torch.float64)
        middles = (table[1:] + table[:-1]) / 2
        even = table[torch.arange(126) + torch.arange(126) % 2]
        for dtype in (torch.float32, torch.float64):
            self.assertTrue((quantize.e4m3_values(middles.to(dtype)) == even.to(dtype)).all())
            above = middles.to(dtype) * (1 + 1e-6)
            self.assertTrue((quantize.e4m3_values(above) == table[1:].to(dtype)).all())
            below = -middles.to(dtype) * (1 - 1e-6)
            self.assertTrue((quantize.e4m3_values(below) == -table[:-1].to(dtype)).all())


class E2m1AndE8m0(unittest.TestCase):
    def test_ties_go_to_the_even_code(self):
        x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 7.0])
        self.assertEqual(quantize.e2m1_values(x).tolist(), [0, 1, 1, 2, 2, 4, 4, -4, 6])

    def test_every_nibble_survives_decode_and_encode(self):
        codes = torch.arange(16, dtype=torch.uint8)
        self.assertEqual(quantize.e2m1_encode(quantize.e2m1_decode(codes)).tolist(), codes.tolist())

    def test_scale_bytes(self):
        values = quantize.e8m0_decode(torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8))
        expected = torch.tensor([2.0**-127, 2.0**-126, 1.0, 2.0**127])
        self.assertTrue((values[:4] == expected).all())
        self.assertTrue(torch.isnan(values[4]))
        self.assertEqual(quantize.e8m0_encode(expected[1:]).tolist(), [1, 127, 254])


class FakeQuantisers(unittest.TestCase):
    def test_fq4k_worked_example(self):
        x = quantize.round_bf16(0.1 * (torch.arange(16, dtype=torch.float32) - 7.5))
        _, scale = quantize.fq4k_parts(x)
        self.assertEqual(scale.item(), 0.125)
        half = [-0.75, -0.75, -0.5, -0.5, -0.375, -0.25, -0.125, -0.0625]
        self.assertEqual(quantize.fq4k(x).tolist(), half + [-v for v in reversed(half)])

    def test_fq8_worked_example(self):
        x = bf16_line(-3, 3, 32)
        self.assertEqual(quantize.act8_parts(x)[1].item(), 2.0**-7)
        self.assertEqual(quantize.fq8(x)[:8].tolist(), [-3, -2.75, -2.5, -2.5, -2.25, -2, -1.875, -1.625])

    def test_fq4i_worked_example(self):
        x = bf16_line(-3, 3, 32)
        self.assertEqual(quantize.fq4i_parts(x)[1].item(), 0.5)
        self.assertEqual(quantize.fq4i(x)[:8].tolist(), [-3, -3, -3, -2, -2, -2, -2, -1.5])

    def test_power_scales_do_not_jump_at_exact_powers_of_two(self):
        for largest, quantiser in ((448.0, quantize.act8_parts), (6.0, quantize.fq4i_parts)):
            for exponent in range(-20, 20):
                x = torch.zeros(32)
                x[3] = largest * 2.0**exponent
                if x[3] >= 1e-4:
                    self.assertEqual(quantiser(x)[1].item(), 2.0**exponent)
                    x[3] *= 1.01
                    self.assertEqual(quantiser(x)[1].item(), 2.0 ** (exponent + 1))

    def test_floors_bound_the_scales_of_zero_groups(self):
        zero = torch.zeros(32)
        self.assertEqual(quantize.act8_parts(zero)[1].item(), 2.0**-22)
        self.assertEqual(quantize.fq4i_parts(zero)[1].item(), 2.0**-126)
        self.assertEqual(quantize.fq4k_parts(zero)[1].flatten().tolist(), [2.0**-9] * 2)
        for fake in (quantize.act8, quantize.fq4k, quantize.fq4i):
            self.assertTrue((fake(zero) == 0).all())

    def test_fq4k_with_a_subnormal_scale_is_not_idempotent_so_rows_are_quantised_once(self):
        x = torch.full((16,), 9 * 2.0**-9)  # 9/6 of the smallest scale: scale 2 * 2^-9, code 4
        once = quantize.fq4k(x)
        self.assertTrue((once == 8 * 2.0**-9).all())
        self.assertTrue((quantize.fq4k(once) == 6 * 2.0**-9).all())

    def test_fake_quantisers_are_idempotent_exact_in_bf16_and_equal_in_both_dtypes(self):
        x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 3, 64)[:, None]
        x = quantize.round_bf16(x)
        for fake in (quantize.fq8, quantize.fq4k, quantize.fq4i):
            y = fake(x)
            normal = torch.ones_like(y, dtype=torch.bool)
            if fake is quantize.fq4k:  # see above
                scale = quantize.fq4k_parts(x)[1]
                normal = ((scale >= 2.0**-6) & (scale < 448)).expand(64, 6, 16).reshape(64, 96)
                self.assertGreater(normal.sum(), 2000)
            self.assertTrue((fake(y) == y)[normal].all())
            self.assertTrue((quantize.round_bf16(y) == y).all())
            self.assertTrue((fake(x.double()) == y.double()).all())

    def test_gradients_pass_straight_through(self):
        quantisers = [quantize.round_bf16, quantize.act8, quantize.fq4k, quantize.fq4i]
        quantisers += [quantize.fp8_tile_weight, quantize.fp8_row_weight, quantize.fp4_weight]
        for fake in quantisers:
            x = torch.randn(4, 64, requires_grad=True)
            weight = torch.randn(4, 64)
            (fake(x) * weight).sum().backward()
            self.assertTrue((x.grad == weight).all())


class Bf16(unittest.TestCase):
    def test_double_rounds_once_to_nearest_even(self):
        tie = 1 + 2.0**-8
        x = torch.tensor([tie, tie + 2.0**-40, tie - 2.0**-40, 1 + 3 * 2.0**-8, -tie], dtype=torch.float64)
        expected = torch.tensor([1, 1 + 2.0**-7, 1, 1 + 2.0**-6, -1], dtype=torch.float64)
        self.assertTrue((quantize.round_bf16(x) == expected).all())

    def test_double_and_float_agree(self):
        x = torch.randn(1000, generator=torch.Generator().manual_seed(2))
        self.assertTrue((quantize.round_bf16(x.double()) == quantize.round_bf16(x).double()).all())


class WeightFormats(unittest.TestCase):
    def test_encoding_and_decoding_gives_the_fake_quantised_weight(self):
        w = torch.randn(70, 96, generator=torch.Generator().manual_seed(3)) * torch.logspace(-4, 1, 96)
        for name in ("fp8_tile", "fp8_row", "fp4"):
            codes, scale = quantize.encode_weight(w, name)
            values = quantize.decode_weight(codes, scale, name)
            self.assertTrue((values == quantize.WEIGHT_QUANTIZERS[name](w)).all(), name)
            self.assertTrue((quantize.WEIGHT_QUANTIZERS[name](values) == values).all(), name)

    def test_scale_shapes_and_nibble_order(self):
        w = torch.zeros(70, 96)
        w[0, 0], w[0, 1] = 1.0, -6.0
        codes, scale = quantize.encode_weight(w, "fp4")
        self.assertEqual((tuple(codes.shape), tuple(scale.shape)), ((70, 48), (70, 3)))
        self.assertEqual((codes[0, 0].item(), scale[0, 0].item()), (0xF2, 127))
        self.assertEqual(tuple(quantize.encode_weight(w, "fp8_tile")[1].shape), (3, 3))
        self.assertEqual(tuple(quantize.encode_weight(w, "fp8_row")[1].shape), (70, 3))

    def test_a_coarser_stored_scale_is_reproduced_in_value(self):
        codes = torch.arange(32, dtype=torch.uint8).reshape(1, 32)
        values = quantize.decode_weight(codes, torch.tensor([[140]], dtype=torch.uint8), "fp8_row")
        self.assertTrue((quantize.fp8_row_weight(values) == values).all())


if __name__ == "__main__":
    unittest.main()
