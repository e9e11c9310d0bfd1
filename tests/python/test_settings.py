import os
import subprocess
import sys
import unittest

import deepinfer
from deepinfer import LLM
from deepinfer._client import spell_setting
from support import MODEL, PROMPTS, SMALL, STORY, params, tiny


class Settings(unittest.TestCase):
    def test_keywords_are_the_engines_settings(self):
        with LLM(
            model=str(MODEL),
            expert_parallel_size=1,
            gpu_memory_utilization=0.9,
            max_model_len=96,
            max_num_seqs=2,
            enable_prefix_caching=False,
            batch_invariant=True,
            numerics="official",
            device=None,
            **SMALL,
        ) as llm:
            self.assertEqual(llm.max_model_len, 96)
            first, second = (llm.generate(STORY * 4, params())[0] for _ in range(2))
        self.assertEqual(second.num_cached_tokens, 0)
        self.assertEqual(first.outputs, second.outputs)

    def test_values_are_spelled_as_in_a_file(self):
        for value, text in [(True, "1"), (False, "0"), (12, "12"), (0.5, "0.5"), ("8GiB", "8GiB"), (MODEL, str(MODEL))]:
            self.assertEqual(spell_setting("x", value), text)
        with self.assertRaisesRegex(TypeError, r"max_num_seqs \[1\]: give a string, number, bool or path"):
            LLM(MODEL, max_num_seqs=[1])

    def test_unknown_and_wrong_settings_are_refused_in_the_engines_words(self):
        for settings, message in [
            ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
            ({"max_num_seqs": 0}, "max_num_seqs"),
            ({"expert_parallel_size": 8}, "expert_parallel_size 8"),
            ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
            ({"device": "abacus"}, "cpu or cuda"),
            ({"use_nextn_decode": 3}, "Speculative decoding is not built"),
            ({"max_model_len": 10**9}, "the model's context is"),
        ]:
            with self.assertRaisesRegex(ValueError, message):
                LLM(MODEL, **settings)

    def test_a_missing_model_is_refused(self):
        with self.assertRaisesRegex(ValueError, "model"):
            LLM()
        with self.assertRaisesRegex(ValueError, "/no/such/folder"):
            LLM("/no/such/folder")

    def test_the_environment_is_weaker_than_keywords(self):
        program = (
            "import sys; from deepinfer import LLM\n"
            "print(LLM(threads=1, kv_cache_bytes='64MiB').max_model_len)\n"
            "print(LLM(threads=1, kv_cache_bytes='64MiB', max_model_len=80).max_model_len)\n"
        )
        environment = {**os.environ, "DEEPINFER_MODEL": str(MODEL), "DEEPINFER_MAX_MODEL_LEN": "72"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True)
        self.assertEqual((done.stdout, done.stderr), ("72\n80\n", ""))


class Requests(unittest.TestCase):
    def test_wrong_prompts_are_refused(self):
        for prompt, error, message in [
            ("", ValueError, "prompt: it is empty"),
            ([[]], ValueError, "prompt: it is empty"),
            ([[10**8]], ValueError, r"prompt_tokens\[0\] 100000000"),
            ({"prompt": "a", "prompt_token_ids": [1]}, ValueError, "give one of the two"),
            ({"prompt": "a", "multi_modal_data": {}}, ValueError, "key 'multi_modal_data' is not known"),
            ([["a"]], TypeError, "prompt_token_ids: give whole numbers"),
            ([[2**40]], TypeError, "prompt_token_ids: give whole numbers"),
            (7, TypeError, "give a prompt or a list of them"),
            ([3.5], TypeError, "give a string, token ids or a dictionary"),
            ("\ud800", ValueError, "surrogates not allowed"),
        ]:
            with self.subTest(prompt=prompt), self.assertRaisesRegex(error, message):
                tiny().generate(prompt, params())

    def test_a_refusal_names_the_request_and_spares_later_calls(self):
        with self.assertRaisesRegex(ValueError, "request 2: the prompt has"):
            tiny().generate([STORY, STORY, [5] * (tiny().max_model_len + 1)], params())
        self.assertEqual(len(tiny().generate(STORY, params())), 1)

    def test_lists_have_to_be_as_long_as_the_prompts(self):
        with self.assertRaisesRegex(ValueError, "sampling_params: 2 for 5 prompts"):
            tiny().generate(PROMPTS, [params()] * 2)
        with self.assertRaisesRegex(ValueError, "priority: 1 for 5 prompts"):
            tiny().generate(PROMPTS, params(), priority=[1])
        with self.assertRaisesRegex(TypeError, "sampling_params: {'n': 2}"):
            tiny().generate(STORY, {"n": 2})

    def test_a_full_queue_is_a_runtime_error(self):
        with LLM(MODEL, max_queued_requests=2, **SMALL) as llm:
            with self.assertRaisesRegex(RuntimeError, "the queue is full"):
                llm.stream(STORY, params(n=3))


class Names(unittest.TestCase):
    def test_the_paths_of_the_design_lead_to_the_same_classes(self):
        from deepinfer.entrypoints.llm import LLM as design_llm
        from deepinfer.sampling_params import SamplingParams as design_params

        self.assertIs(design_llm, deepinfer.LLM)
        self.assertIs(design_params, deepinfer.SamplingParams)

    def test_every_exported_name_is_there(self):
        for name in deepinfer.__all__:
            self.assertTrue(hasattr(deepinfer, name), name)
        self.assertRegex(deepinfer.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
