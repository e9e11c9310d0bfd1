import dataclasses
import inspect
import pickle
import unittest

from deepinfer import SamplingParams, _engine
from support import STORY, tiny

# A wrong value of every field with a range, as SamplingParams and as the engine see it.
WRONG = [
    ("n", 0),
    ("n", 129),
    ("temperature", -0.5),
    ("temperature", float("inf")),
    ("temperature", float("nan")),
    ("top_p", 0.0),
    ("top_p", 1.25),
    ("top_k", -2),
    ("min_p", 1.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3.0),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 2.0000001),
    ("logit_bias", [(5, 101.0)]),
    ("logit_bias", [(5, 1.0), (5, 2.0)]),
    ("bad_words", ["a", ""]),
    ("max_tokens", 0),
    ("min_tokens", 17),
    ("min_tokens", -1),
    ("stop", [""]),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
]


class Checks(unittest.TestCase):
    def test_a_wrong_value_is_refused_at_once_in_the_engines_words(self):
        for name, value in WRONG:
            with self.subTest(name=name, value=value):
                request = _engine.Request()
                request.prompt = STORY
                sampling = _engine.SamplingParams()
                setattr(sampling, name, value)
                request.sampling = sampling
                with self.assertRaises(ValueError) as engine:
                    tiny()._engine.stream(request)
                with self.assertRaises(ValueError) as ours:
                    SamplingParams(**{name: value})
                self.assertEqual(str(ours.exception), str(engine.exception))

    def test_stop_strings_need_text(self):
        with self.assertRaisesRegex(ValueError, "stop with 1 strings: they need text"):
            SamplingParams(stop="x", detokenize=False)

    def test_what_only_the_model_knows_is_refused_by_the_engine(self):
        params = SamplingParams(stop_token_ids=[tiny().vocab_size])
        with self.assertRaisesRegex(ValueError, f"stop_token_ids: token id {tiny().vocab_size}"):
            tiny().generate(STORY, params)

    def test_wrong_types_are_named(self):
        for arguments, message in [
            ({"n": 1.5}, "n 1.5: give a whole number"),
            ({"n": True}, "n True: give a whole number"),
            ({"temperature": "hot"}, "temperature 'hot': give a number"),
            ({"stop": [1]}, "stop: 1 is not a string"),
            ({"stop_token_ids": ["a"]}, "stop_token_ids 'a': give a whole number"),
        ]:
            with self.assertRaises(TypeError) as raised:
                SamplingParams(**arguments)
            self.assertEqual(str(raised.exception), message)
        with self.assertRaises(TypeError):
            SamplingParams(best_of=2)

    def test_numbers_too_large_for_the_engine_are_refused(self):
        for name, value in [("seq_seed", 2**64), ("seq_seed", -1), ("top_k", 2**63), ("max_tokens", 2**63)]:
            with self.assertRaisesRegex(ValueError, name):
                SamplingParams(**{name: value})
        with self.assertRaisesRegex(ValueError, "stop_token_ids: token id"):
            SamplingParams(stop_token_ids=[2**31])

    def test_structured_output_is_refused_with_a_sentence(self):
        with self.assertRaisesRegex(ValueError, "so_args: structured output is not built"):
            SamplingParams(so_args={"json": {}})


class Values(unittest.TestCase):
    def test_the_defaults_are_the_engines(self):
        engine, ours = _engine.SamplingParams(), SamplingParams()
        for field in dataclasses.fields(ours):
            value = getattr(ours, field.name)
            expected = getattr(engine, field.name)
            self.assertEqual(list(value) if isinstance(value, tuple) else value, expected, field.name)

    def test_every_field_of_the_engine_is_there(self):
        theirs = {name for name, _ in inspect.getmembers(_engine.SamplingParams, inspect.isdatadescriptor)}
        ours = {field.name for field in dataclasses.fields(SamplingParams)}
        self.assertEqual({name for name in theirs if not name.startswith("_")}, ours)

    def test_seed_is_another_name_of_seq_seed(self):
        self.assertEqual(SamplingParams(seed=3), SamplingParams(seq_seed=3))
        self.assertEqual(SamplingParams(seed=3).seed, 3)
        with self.assertRaisesRegex(ValueError, "two names of one value"):
            SamplingParams(seed=3, seq_seed=4)

    def test_they_print_what_differs_and_read_back_equal(self):
        self.assertEqual(repr(SamplingParams()), "SamplingParams()")
        full = SamplingParams(n=2, temperature=0.5, stop="a", logit_bias={7: 1.5}, max_tokens=None, seed=1, logprobs=0)
        self.assertEqual(eval(repr(full)), full)
        self.assertEqual(pickle.loads(pickle.dumps(full)), full)

    def test_they_compare_hash_and_copy_but_do_not_change(self):
        a, b = SamplingParams(stop=["x"], seed=1), SamplingParams(stop="x", seed=1)
        self.assertEqual((a, hash(a)), (b, hash(b)))
        self.assertNotEqual(a, SamplingParams(stop=["x"], seed=2))
        self.assertEqual(dataclasses.replace(a, n=2), SamplingParams(stop=["x"], seed=1, n=2))
        with self.assertRaises(ValueError):
            dataclasses.replace(a, n=0)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            a.n = 2


if __name__ == "__main__":
    unittest.main()
