"""Engram constants, hashes of worked examples in the released sizes, tables of the tiny models, and the gate."""

import hashlib
import unittest

import torch

from reference.engram import DEAD, EngramHash, gate
from reference.config import load_config
from tests.reference import golden


class ReleasedSizes:
    engram_layer_ids = (1, 14)
    engram_num_embeddings = (384006168, 384016682)
    engram_max_ngram_size = 4
    engram_n_heads = 8
    engram_vocab_size = 16000000
    engram_compressed_vocab_size = 99092


PAD = 2


def released_rows(compressed):
    """int64 [n, layers, columns]"""
    ids = torch.tensor([compressed])
    return torch.stack([HASH.rows(ids, PAD, i)[0] for i in range(2)], dim=1)


def digest(rows):
    return hashlib.sha256(rows.contiguous().numpy().astype("<i8").tobytes()).hexdigest()


def setUpModule():
    global HASH
    HASH = EngramHash(ReleasedSizes)


class Constants(unittest.TestCase):
    def test_multipliers_of_the_released_model(self):
        self.assertEqual(HASH.multipliers[0], [76632096046245, 4839876093313, 35959672319349, 73987337458391])
        self.assertEqual(HASH.multipliers[1], [67716810739261, 51510806800915, 30921347202721, 82619226485591])

    def test_primes_of_the_released_model(self):
        self.assertEqual(HASH.primes[0][0][:3], [16000057, 16000079, 16000081])
        self.assertEqual(HASH.primes[0][2][-1], 16000463)
        self.assertEqual(HASH.primes[1][0][0], 16000477)
        self.assertEqual(HASH.primes[1][2][-1], 16000889)
        self.assertEqual([sum(map(sum, p)) for p in HASH.primes], [384006168, 384016682])

    def test_tables_of_the_tiny_models(self):
        for name in ("tiny_full", "tiny_smooth"):
            recorded = golden.read_json(name, "engram_tables.json")
            computed = EngramHash(load_config(golden.directory(name)))
            self.assertEqual(computed.primes, recorded["primes"])
            self.assertEqual(computed.offsets, recorded["offsets"])
            self.assertEqual([[str(m) for m in row] for row in computed.multipliers], recorded["multipliers"])

    def test_table_size_that_disagrees_with_the_primes_is_refused(self):
        class Wrong(ReleasedSizes):
            engram_num_embeddings = (384006168, 384016683)

        with self.assertRaisesRegex(ValueError, "layer 14"):
            EngramHash(Wrong)


class Hashes(unittest.TestCase):
    def test_worked_columns_around_a_dead_position(self):
        rows = released_rows([5, 17, 99091, DEAD, 0, 1])
        expected = {
            0: "5412672 127351390 143494632 256353435 372009279 / 6939818 119840903 131576092 268363546 382274687",
            1: "4465417 115073099 129505115 269486139 371977877 / 14916957 119142664 137631961 261903157 369044835",
            2: "379248 114357284 141971515 256931896 373952454 / 4638160 113837035 128337784 267442687 381418250",
            4: "5702652 121476532 131476717 257520185 380066193 / 14361964 120604547 132225184 261362261 372375971",
            5: "15045429 115577409 128992384 261145562 382841219 / 7992263 125194906 128857751 270522411 373136088",
        }
        columns = [0, 7, 8, 16, 23]
        for position, text in expected.items():
            for layer, part in enumerate(text.split("/")):
                self.assertEqual(rows[position, layer, columns].tolist(), [int(v) for v in part.split()])
        self.assertEqual(rows[3, 0, 0].item(), 4299726)

    def test_two_tokens(self):
        self.assertEqual(HASH.windows(torch.tensor([[0, 3]]), PAD)[0].tolist(), [[0, 2, 2, 2], [3, 0, 2, 2]])
        rows = released_rows([0, 3])
        self.assertEqual(digest(rows), "f5a64799492bea90bc6d87f0cb8a67bb983441e1cd9c12ec2e7b8df6cbcfee1d")
        self.assertEqual(digest(rows[:, 0]), "8e0187ea859a7db65517a540eb5210457ec907fd0b2f44042d830366cbedbda5")
        self.assertEqual(digest(rows[:, 1]), "33e046238287e6e8b7c3466bdb4b7b47182ad19f9115afac8a1983ede219ba80")
        self.assertEqual(rows[0, 0, :3].tolist(), [5702652, 24393184, 39183301])
        self.assertEqual(rows[1, 1, -3:].tolist(), [350427914, 363307643, 379703671])

    def test_chat_turn(self):
        rows = released_rows([0, 98615, 15844, 98616, 98634])
        self.assertEqual(digest(rows), "65564fcba448603262d630d9506053726182d55050e5fd4bf4ec992e90203eb0")
        self.assertEqual(rows[-1, 0, :4].tolist(), [6145177, 29200083, 42970516, 50089365])
        self.assertEqual(rows[-1, 1, :2].tolist(), [13564020, 18908159])

    def test_chat_turn_with_an_image(self):
        rows = released_rows([0, 98615] + [DEAD] * 6 + [15844, 98616, 98634])
        self.assertEqual(digest(rows), "7ab604f7874c9012d3ca4a44a79b9227d16c0d54c42491f22cfd7a21d7e6a984")
        self.assertEqual(rows[8, 0, :4].tolist(), [4951095, 17647458, 42302169, 48904805])

    def test_plain_text(self):
        ids = [0, 237, 4015, 9933, 18307, 42368, 880, 237, 32356, 5327, 16, 237, 4015, 2676, 1231, 18307]
        self.assertEqual(digest(released_rows(ids)), "24c1985c272591bbbaf1811f65e3e1623197618602989b89a1af8275152fc199")


class Gate(unittest.TestCase):
    def test_vanishing_products_leave_the_gate_almost_half_open_on_the_side_of_their_sign(self):
        one = torch.ones(1, 2, dtype=torch.float64)
        x = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
        key = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        self.assertAlmostEqual(gate(x, key, one, one, 1e-20).item(), 0.50025, places=6)
        slightly_negative = torch.tensor([[1.0, -1.0 - 1e-9]], dtype=torch.float64)
        self.assertAlmostEqual(gate(x, slightly_negative, one, one, 1e-20).item(), 0.49975, places=6)

    def test_tiny_streams_count_as_much_as_large_ones(self):
        generator = torch.Generator().manual_seed(5)
        x, key = torch.randn(3, 4, 16, generator=generator).double(), torch.randn(3, 4, 16, generator=generator).double()
        w = torch.rand(4, 16, generator=generator).double()
        self.assertLess((gate(x, key, w, w, 1e-20) - gate(x * 1e-6, key, w, w, 1e-20)).abs().max(), 1e-6)


if __name__ == "__main__":
    unittest.main()
