"""Greedy continuations of many prompts at once."""

import unittest

from tools.tiny_model.fast_model import FastModel
from tools.tiny_model.generate import generate, generate_packed, slots

from .common import toy_models


class GenerateTest(unittest.TestCase):
    def test_prompts_packed_into_rows_continue_as_each_would_alone(self):
        target, _ = toy_models()
        model = FastModel(target)
        values = {k: v.detach() for k, v in model.values().items()}
        prompts = [[0, 10 * i + 5, 7 * i + 9, *range(40, 40 + i)] for i in (0, 3, 6, 11)]
        packed = generate_packed(model, values, prompts, 5, rows=2, length=64)
        for prompt, text in zip(prompts, packed):
            self.assertEqual(text, generate(model, values, [prompt], 5)[0])

    def test_slots_do_not_overlap_and_start_at_multiples_of_eight(self):
        prompts = [[0] * n for n in (3, 20, 11, 40, 8, 30)]
        taken = set()
        for prompt, (row, begin) in zip(prompts, slots(prompts, 10, 64)):
            self.assertEqual(begin % 8, 0)
            places = {(row, begin + i) for i in range(len(prompt) + 10)}
            self.assertTrue(max(p for _, p in places) < 64)
            self.assertFalse(places & taken)
            taken |= places

    def test_a_prompt_longer_than_a_row_is_refused(self):
        with self.assertRaisesRegex(ValueError, "prompt of 60 tokens"):
            slots([[0] * 60], 10, 64)


if __name__ == "__main__":
    unittest.main()
