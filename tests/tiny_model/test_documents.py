"""Corpus records as token documents, and the files and rows that carry them."""

import os
import random
import tempfile
import unittest

import numpy as np

from tools.tiny_model import data_files
from tools.tiny_model.batches import Mixture, Packer, held_out_batches, pieces, replay_bounds, token_kinds
from tools.tiny_model.documents import Document, add_reasoning, group_of, split_tools, to_chat

TOOL = '{"name": "f", "parameters": {}}'


def text_document(n, seed=0):
    ids = np.random.default_rng(seed).integers(3, 6000, n).astype(np.uint16)
    ids[0] = 0
    return Document(ids, [1, n - 1])


class DocumentsTest(unittest.TestCase):
    def test_listed_tools_leave_the_system_text(self):
        text, functions = split_tools("Use these.\n" + TOOL + "\nTo use a tool, reply with <tool_call>.")
        self.assertEqual((text, [f["name"] for f in functions]), ("Use these.", ["f"]))

    def test_marked_calls_become_tool_calls_and_results_name_them(self):
        record = [
            {"role": "system", "content": "Tools:\n" + TOOL},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'},
            {"role": "tool", "content": "{}"},
        ]
        messages = to_chat(record, random.Random(1))
        self.assertEqual(messages[2]["tool_calls"], [{"id": "1", "name": "f", "arguments": {"a": 1}}])
        self.assertEqual(messages[3]["tool_call_id"], "1")
        self.assertEqual(group_of({"messages": record, "source": "x"}, "dialogue"), "tools")

    def test_steps_before_the_final_answer_become_reasoning(self):
        messages = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "1 + 1 = 2. The answer is 2."}]
        self.assertTrue(add_reasoning(messages, random.Random(1)))
        self.assertEqual(messages[1]["reasoning_content"], "1 + 1 = 2.")
        self.assertEqual(messages[1]["content"], "The answer is 2.")

    def test_files_give_back_what_was_written(self):
        docs = [text_document(50), Document(np.arange(9, dtype=np.uint16), [3, 2, 4])]
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x", "stories.xz")
            self.assertEqual(data_files.write(path, docs), 59)
            back = data_files.read(path)
        for a, b in zip(docs, back):
            np.testing.assert_array_equal(a.ids, b.ids)
            self.assertEqual(list(a.spans), list(b.spans))

    def test_kinds_alternate_between_prompt_and_answer(self):
        kinds = token_kinds(Document(np.arange(9, dtype=np.uint16), [3, 2, 4]))
        self.assertEqual(kinds.tolist(), [1, 1, 1, 2, 2, 1, 1, 1, 1])

    def test_long_text_is_cut_without_losing_tokens(self):
        document = text_document(250)
        parts = [ids for ids, _ in pieces(document, 100)]
        self.assertTrue(all(len(p) <= 100 and p[0] == 0 for p in parts))
        self.assertEqual(np.concatenate([parts[0]] + [p[1:] for p in parts[1:]]).tolist(), document.ids.tolist())

    def test_packed_rows_start_documents_on_multiples_of_eight_and_never_label_across_them(self):
        groups = {"stories": [text_document(n, n) for n in (30, 77, 128, 5)], "prose": [text_document(90, 3)]}
        mixture = Mixture({"stories": 0.5, "prose": 0.5}, replay=0.5)
        batches = Packer(groups, 1, 16).batches(mixture, 128, 4)
        for _ in range(5):
            tokens, start, replay, kind = next(batches)
            self.assertTrue((start % 8 == 0).all())
            self.assertTrue((start <= np.arange(128)).all() and (replay >= start).all())
            self.assertTrue((replay <= np.arange(128)).all())
            crossing = start[:, 1:] != start[:, :-1]
            self.assertTrue((kind[:, :-1][crossing] == 0).all())
            self.assertTrue((tokens[:, 1:][crossing & (tokens[:, 1:] != 2)] == 0).all())

    def test_held_out_rows_hold_every_token_once(self):
        docs = [text_document(n, n) for n in (30, 77, 90, 300)]
        labelled = sum(int((kind > 0).sum()) for *_, kind in held_out_batches(docs, 128, 2, 16))
        expected = sum(len(ids) - 1 for d in docs for ids, _ in pieces(d, 128))
        self.assertEqual(labelled, expected)

    def test_replay_bounds_grow_and_stay_behind_their_tokens(self):
        bounds = replay_bounds(np.zeros(1000, dtype=np.uint16), np.random.default_rng(1), 16)
        self.assertTrue((np.diff(bounds.astype(int)) >= 0).all() and (bounds <= np.arange(1000)).all())
        self.assertGreater(bounds[-1], 0)


if __name__ == "__main__":
    unittest.main()
