import threading
import time
import unittest

from deepinfer import LLM
from support import MODEL, PROMPTS, SMALL, STORY, answer, params, tiny


def joined(updates):
    """What the updates of one request add up to: (token ids, text) by index."""
    total = {}
    for update in updates:
        for completion in update.outputs:
            tokens, text = total.get(completion.index, ([], ""))
            total[completion.index] = (tokens + completion.token_ids, text + completion.text)
    return total


def wait_until_idle(llm):
    end = time.monotonic() + 10
    while (stats := llm.stats()).running + stats.waiting > 0:
        if time.monotonic() > end:
            raise AssertionError(f"still at work: {stats}")
        time.sleep(0.01)


class Stream(unittest.TestCase):
    def test_the_updates_add_up_to_what_generate_gives(self):
        whole = tiny().generate(STORY, params(n=2, logprobs=1))[0]
        updates = list(tiny().stream(STORY, params(n=2, logprobs=1)))
        self.assertEqual(joined(updates), {c.index: (c.token_ids, c.text) for c in whole.outputs})
        self.assertEqual([u.finished for u in updates], [False] * (len(updates) - 1) + [True])
        self.assertEqual(updates[-1].prompt_token_ids, whole.prompt_token_ids)
        logprobs = [p for u in updates for c in u.outputs if c.index == 0 for p in c.logprobs]
        self.assertEqual(logprobs, whole.outputs[0].logprobs)

    def test_it_comes_in_pieces(self):
        updates = list(tiny().stream(STORY, params(max_tokens=100, ignore_eos=True)))
        self.assertGreater(len(updates), 3)

    def test_prompt_logprobs_come_once(self):
        whole = tiny().generate(STORY, params(prompt_logprobs=1))[0]
        parts = [u.prompt_logprobs for u in tiny().stream(STORY, params(prompt_logprobs=1))]
        self.assertEqual([p for part in parts for p in part], whole.prompt_logprobs)

    def test_leaving_the_loop_cancels_the_request(self):
        endless = params(max_tokens=None, ignore_eos=True)
        for update in tiny().stream(STORY, endless):
            break
        del update
        wait_until_idle(tiny())
        stream = tiny().stream(STORY, endless)
        next(stream)
        stream.close()
        wait_until_idle(tiny())
        tiny().stream(STORY, endless)  # never begun
        wait_until_idle(tiny())

    def test_threads_stream_at_the_same_time(self):
        whole = [answer(o)[:2] for o in tiny().generate(PROMPTS, params())]
        got = {}

        def read(i):
            got[i] = joined(tiny().stream(PROMPTS[i], params()))[0]

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([got[i] for i in range(len(PROMPTS))], whole)

    def test_other_threads_run_while_it_generates(self):
        ticks = []
        done = threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.005)

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.monotonic()
        tiny().generate(PROMPTS, params(max_tokens=100, ignore_eos=True))
        seconds = time.monotonic() - begin
        done.set()
        thread.join()
        longest = max(b - a for a, b in zip(ticks, ticks[1:]))
        self.assertLess(longest, max(0.1, seconds / 2))


class Closing(unittest.TestCase):
    def test_a_closed_llm_refuses_and_closing_twice_is_harmless(self):
        llm = LLM(MODEL, **SMALL)
        llm.close()
        llm.close()
        for call in (
            lambda: llm.generate(STORY),
            lambda: llm.stream(STORY),
            lambda: llm.stats(),
            lambda: llm.fingerprint,
        ):
            with self.assertRaisesRegex(RuntimeError, "this LLM is closed"):
                call()

    def test_closing_ends_a_stream_with_abort(self):
        llm = LLM(MODEL, **SMALL)
        stream = llm.stream(STORY, params(max_tokens=None, ignore_eos=True, logprobs=1))
        next(stream)
        llm.close()
        last = list(stream)[-1]
        self.assertEqual((last.finished, last.outputs[0].finish_reason), (True, "abort"))

    def test_closing_in_another_thread_ends_generate(self):
        llm = LLM(MODEL, **SMALL)
        timer = threading.Timer(0.2, llm.close)
        timer.start()
        with self.assertRaisesRegex(RuntimeError, "closed while it generated"):
            llm.generate(PROMPTS * 100, params(max_tokens=None, ignore_eos=True))
        timer.join()


if __name__ == "__main__":
    unittest.main()
