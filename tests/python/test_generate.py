import time
import unittest

from deepinfer import LLM, FinishReason, RequestOutput
from support import MODEL, PROMPTS, SMALL, STORY, answer, params, tiny


class Generate(unittest.TestCase):
    def test_a_prompt_gets_the_same_answer_alone_and_in_a_batch(self):
        batch = tiny().generate(PROMPTS, params())
        self.assertEqual([output.prompt for output in batch], PROMPTS)
        for prompt, output in zip(PROMPTS, batch):
            self.assertEqual(answer(tiny().generate(prompt, params())[0]), answer(output))

    def test_different_prompts_get_different_answers(self):
        answers = {tuple(o.outputs[0].token_ids) for o in tiny().generate(PROMPTS, params(ignore_eos=True))}
        self.assertEqual(len(answers), len(PROMPTS))

    def test_all_forms_of_a_prompt_are_the_same_request(self):
        by_text = tiny().generate(STORY, params())[0]
        ids = by_text.prompt_token_ids
        forms = [[ids], ids, {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}], {"prompt": STORY}, [STORY]]
        for form in forms:
            outputs = tiny().generate(form, params())
            self.assertEqual(len(outputs), 1)
            self.assertEqual(answer(outputs[0]), answer(by_text))
            self.assertEqual(outputs[0].prompt_token_ids, ids)
        self.assertIsNone(tiny().generate([ids], params())[0].prompt)

    def test_forms_can_be_mixed_and_keep_their_order(self):
        alone = [tiny().generate(prompt, params())[0] for prompt in PROMPTS[:3]]
        mixed = [PROMPTS[0], alone[1].prompt_token_ids, {"prompt": PROMPTS[2]}]
        self.assertEqual([answer(o) for o in tiny().generate(mixed, params())], [answer(o) for o in alone])

    def test_no_prompts_give_no_outputs(self):
        self.assertEqual(tiny().generate([]), [])

    def test_every_prompt_can_have_params_and_a_priority_of_its_own(self):
        each = [params(max_tokens=n, ignore_eos=True) for n in (3, 5, 8)]
        outputs = tiny().generate(PROMPTS[:3], each, priority=[2, 0, 1])
        self.assertEqual([len(o.outputs[0].token_ids) for o in outputs], [3, 5, 8])
        self.assertEqual([o.outputs[0].finish_reason for o in outputs], [FinishReason.LENGTH] * 3)

    def test_more_prompts_than_the_queue_holds_are_all_answered(self):
        with LLM(MODEL, max_queued_requests=4, max_num_seqs=2, **SMALL) as llm:
            outputs = llm.generate(PROMPTS * 4, params(max_tokens=4))
        self.assertEqual([answer(o) for o in outputs[:5]] * 4, [answer(o) for o in outputs])

    def test_the_first_of_n_answers_is_the_one_of_n_1(self):
        one = tiny().generate(STORY, params())[0]
        many = tiny().generate(STORY, params(n=4))[0]
        self.assertEqual([c.index for c in many.outputs], [0, 1, 2, 3])
        self.assertEqual(answer(many), answer(one))
        self.assertGreater(len({tuple(c.token_ids) for c in many.outputs}), 1)

    def test_the_reported_seed_repeats_an_answer(self):
        drawn = tiny().generate(STORY, params(seq_seed=None))[0]
        again = tiny().generate(STORY, params(seq_seed=drawn.seq_seed))[0]
        self.assertEqual(answer(again), answer(drawn))
        self.assertEqual(again.seq_seed, drawn.seq_seed)
        self.assertNotEqual(tiny().generate(STORY, params(seq_seed=None))[0].seq_seed, drawn.seq_seed)
        self.assertEqual(tiny().generate(STORY, params(seq_seed=2**64 - 1))[0].seq_seed, 2**64 - 1)

    def test_the_outputs_say_what_they_are_worth(self):
        output = tiny().generate(STORY, params())[0]
        self.assertIsInstance(output, RequestOutput)
        self.assertTrue(output.finished)
        self.assertIsNone(output.error)
        self.assertEqual(output.fingerprint, tiny().fingerprint)
        self.assertGreater(output.metrics.total_seconds, 0)
        self.assertLessEqual(output.metrics.first_token_seconds, output.metrics.total_seconds)
        self.assertGreater(tiny().stats().tokens_delivered, 0)
        self.assertIn("schedule", tiny().timer_table())

    def test_a_repeated_prompt_is_read_from_the_cache(self):
        prompt = STORY * 20
        first = tiny().generate(prompt, params())[0]
        second = tiny().generate(prompt, params())[0]
        self.assertGreater(second.num_cached_tokens, first.num_cached_tokens)
        self.assertEqual(answer(second), answer(first))
        other_tenant = tiny().generate({"prompt": prompt, "cache_salt": "somebody else"}, params())[0]
        self.assertEqual(other_tenant.num_cached_tokens, 0)
        self.assertEqual(answer(other_tenant), answer(first))

    def test_an_overdue_request_is_aborted(self):
        begin = time.monotonic()
        output = tiny().generate(STORY, params(max_tokens=None, ignore_eos=True), timeout_seconds=0.05)[0]
        self.assertEqual(output.outputs[0].finish_reason, "abort")
        self.assertLess(time.monotonic() - begin, 5)

    def test_text_is_turned_into_tokens_and_back(self):
        self.assertEqual(tiny().detokenize(tiny().tokenize(STORY)), STORY)


class Logprobs(unittest.TestCase):
    def test_they_are_there_if_asked_for(self):
        output = tiny().generate(STORY, params(logprobs=3, prompt_logprobs=2, max_tokens=6, ignore_eos=True))[0]
        completion = output.outputs[0]
        self.assertEqual(len(completion.logprobs), len(completion.token_ids))
        for token, entry in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(next(iter(entry)), token)
            self.assertIn(len(entry), (3, 4))
            self.assertEqual(
                sorted(p.logprob for p in list(entry.values())[1:])[::-1], [p.logprob for p in list(entry.values())[1:]]
            )
            self.assertEqual(entry[token].decoded_token, tiny().detokenize([token]))
        total = sum(entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs))
        self.assertAlmostEqual(completion.cumulative_logprob, total, places=9)
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        self.assertIsNone(output.prompt_logprobs[0])
        for token, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
            self.assertIn(token, entry)

    def test_the_greedy_token_has_rank_1_and_the_best_value(self):
        completion = tiny().generate(STORY, params(temperature=0, logprobs=2, max_tokens=6))[0].outputs[0]
        for token, entry in zip(completion.token_ids, completion.logprobs):
            self.assertEqual(entry[token].rank, 1)
            self.assertEqual(entry[token].logprob, max(p.logprob for p in entry.values()))

    def test_they_are_absent_otherwise_and_change_nothing(self):
        plain = tiny().generate(STORY, params())[0]
        self.assertIsNone(plain.outputs[0].logprobs)
        self.assertIsNone(plain.outputs[0].cumulative_logprob)
        self.assertIsNone(plain.prompt_logprobs)
        self.assertEqual(answer(tiny().generate(STORY, params(logprobs=5))[0]), answer(plain))


class Ending(unittest.TestCase):
    def test_a_stop_string_ends_the_answer_and_is_named(self):
        full = tiny().generate(STORY, params(max_tokens=40, ignore_eos=True))[0].outputs[0].text
        stop = full[len(full) // 2 :][:4]
        output = tiny().generate(STORY, params(max_tokens=40, ignore_eos=True, stop=stop))[0].outputs[0]
        self.assertEqual(output.text, full[: full.index(stop)])
        self.assertEqual((output.finish_reason, output.stop_reason), (FinishReason.STOP, stop))
        kept = (
            tiny()
            .generate(STORY, params(max_tokens=40, ignore_eos=True, stop=[stop], include_stop_str_in_output=True))[0]
            .outputs[0]
        )
        self.assertEqual(kept.text, full[: full.index(stop)] + stop)

    def test_a_stop_token_ends_the_answer_and_is_named_by_its_id(self):
        full = tiny().generate(STORY, params(ignore_eos=True))[0].outputs[0].token_ids
        token = full[len(full) // 2]
        output = tiny().generate(STORY, params(ignore_eos=True, stop_token_ids=[token]))[0].outputs[0]
        self.assertEqual(output.token_ids, full[: full.index(token) + 1])
        self.assertEqual((output.finish_reason, output.stop_reason), ("stop", token))

    def test_no_limit_goes_on_to_the_end_of_the_context(self):
        with LLM(MODEL, max_model_len=64, **SMALL) as llm:
            output = llm.generate(STORY, params(max_tokens=None, ignore_eos=True))[0]
        self.assertEqual(len(output.prompt_token_ids) + len(output.outputs[0].token_ids), 64)
        self.assertEqual(output.outputs[0].finish_reason, "length")

    def test_without_text_the_tokens_are_the_same(self):
        with_text = tiny().generate(STORY, params())[0].outputs[0]
        without = tiny().generate(STORY, params(detokenize=False))[0].outputs[0]
        self.assertEqual((without.text, without.token_ids), ("", with_text.token_ids))


if __name__ == "__main__":
    unittest.main()
