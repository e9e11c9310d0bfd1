"""The shipped tokenizer's structure, and the compressed ids that follow from it."""

import json
import os
import unittest

from tools.tiny_model.config import SIZES, build_config, byte_table
from tools.tiny_model.train_tokenizer import LAST_TOKENS, tokenizer_json
from tools.tiny_model.vocabulary import (
    BYTE_ORDER,
    BYTE_TO_CHAR,
    compressed_ids,
    normalise,
    read_tokenizer,
    spellings,
    token_bytes,
)

from . import ROOT, TOKENIZER


class VocabularyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = read_tokenizer(TOKENIZER)

    def test_the_file_is_what_its_merges_say(self):
        merges = [tuple(m.split(" ")) for m in self.tokenizer["model"]["merges"]]
        self.assertEqual(self.tokenizer, tokenizer_json(merges))

    def test_bytes_follow_the_first_three_tokens(self):
        self.assertEqual(spellings(self.tokenizer)[3:259], [BYTE_TO_CHAR[b] for b in BYTE_ORDER])
        self.assertEqual(token_bytes(self.tokenizer)[223], b" ")
        self.assertEqual(token_bytes(self.tokenizer)[201], b"\n")

    def test_merge_k_makes_token_259_plus_k(self):
        spelled = spellings(self.tokenizer)
        for k, merge in enumerate(self.tokenizer["model"]["merges"]):
            self.assertEqual(spelled[259 + k], merge.replace(" ", ""))

    def test_control_tokens_come_last(self):
        spelled = spellings(self.tokenizer)
        self.assertEqual(spelled[-len(LAST_TOKENS) :], list(LAST_TOKENS))
        self.assertEqual(spelled[:3], ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"])

    def test_spellings_of_one_word_share_a_compressed_id(self):
        ids = compressed_ids(self.tokenizer)
        spelled = {s: i for i, s in enumerate(spellings(self.tokenizer))}
        self.assertEqual(ids[spelled["the"]], ids[spelled["ĠThe"]])
        self.assertEqual(ids[:4], [0, 1, 2, 3])
        self.assertEqual(len({ids[spelled[t]] for t in LAST_TOKENS}), len(LAST_TOKENS))

    def test_normalising_keeps_a_single_space_and_drops_accents(self):
        self.assertEqual(normalise(" \n\n"), " ")
        self.assertEqual(normalise(" É"), "e")
        self.assertEqual(normalise("ﬁ"), "fi")

    def test_the_shipped_configuration_is_the_one_the_sizes_give(self):
        directory = os.path.join(ROOT, "models", "tiny")
        with open(os.path.join(directory, "config.json")) as file:
            self.assertEqual(json.load(file), build_config(SIZES["tiny"], self.tokenizer))
        with open(os.path.join(directory, "token_map.json")) as file:
            self.assertEqual(json.load(file), compressed_ids(self.tokenizer))

    def test_the_checkpoint_fits_its_budget(self):
        total = sum(byte_table(build_config(SIZES["tiny"], self.tokenizer)).values())
        self.assertLess(total, 36e6)


if __name__ == "__main__":
    unittest.main()
