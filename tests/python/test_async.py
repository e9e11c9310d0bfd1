import asyncio
import subprocess
import sys
import unittest

from deepinfer import AsyncLLM
from support import MODEL, PROMPTS, SMALL, STORY, answer, params, tiny
from test_stream import joined


async def wait_until_idle(llm):
    for _ in range(1000):
        stats = llm.stats()
        if stats.running + stats.waiting == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still at work: {llm.stats()}")


async def read(llm, prompt, sampling):
    return joined([update async for update in llm.generate(prompt, sampling)])[0]


class Async(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = AsyncLLM(MODEL, **SMALL)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_many_at_once_get_what_generate_gives(self):
        async def main():
            return await asyncio.gather(*(read(self.llm, prompt, params()) for prompt in PROMPTS * 3))

        whole = [answer(o)[:2] for o in tiny().generate(PROMPTS, params())]
        self.assertEqual(asyncio.run(main()), whole * 3)
        self.assertEqual(asyncio.run(main()), whole * 3)  # a second event loop

    def test_cancelling_the_task_cancels_the_request(self):
        async def main():
            endless = params(max_tokens=None, ignore_eos=True)
            task = asyncio.create_task(read(self.llm, STORY, endless))
            while self.llm.stats().running == 0:
                await asyncio.sleep(0.005)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await wait_until_idle(self.llm)
            return await read(self.llm, STORY, params())

        self.assertEqual(asyncio.run(main()), answer(tiny().generate(STORY, params())[0])[:2])

    def test_leaving_the_loop_cancels_the_request(self):
        async def main():
            updates = self.llm.generate(STORY, params(max_tokens=None, ignore_eos=True))
            async for _ in updates:
                break
            await updates.aclose()
            await wait_until_idle(self.llm)

        asyncio.run(main())

    def test_the_event_loop_turns_while_requests_run(self):
        async def main():
            task = asyncio.create_task(read(self.llm, STORY, params(max_tokens=150, ignore_eos=True)))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            return turns

        self.assertGreater(asyncio.run(main()), 20)

    def test_refusals_are_raised_where_it_is_awaited(self):
        async def main():
            async for _ in self.llm.generate([1, 2, 10**8]):
                pass

        with self.assertRaisesRegex(ValueError, "the model's ids are 0 to"):
            asyncio.run(main())

    def test_a_timeout_of_asyncio_cancels_too(self):
        async def main():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(read(self.llm, STORY, params(max_tokens=None, ignore_eos=True)), 0.2)
            await wait_until_idle(self.llm)

        asyncio.run(main())

    def test_closing_ends_every_request(self):
        async def main():
            async with AsyncLLM(MODEL, **SMALL) as llm:
                updates = llm.generate(STORY, params(max_tokens=None, ignore_eos=True))
                await anext(updates)
            return [update async for update in updates][-1]

        last = asyncio.run(main())
        self.assertEqual((last.finished, last.outputs[0].finish_reason), (True, "abort"))

    def test_an_llm_that_is_forgotten_while_it_works_goes_away(self):
        program = """
import asyncio, gc, sys
from deepinfer import AsyncLLM, SamplingParams
async def main():
    llm = AsyncLLM(sys.argv[1], threads=1, kv_cache_bytes="64MiB")
    for _ in range(3):
        updates = llm.generate("Once", SamplingParams(max_tokens=None, ignore_eos=True))
        await anext(updates)
        await updates.aclose()
asyncio.run(main())
gc.collect()
print("gone")
"""
        done = subprocess.run([sys.executable, "-c", program, MODEL], text=True, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "gone\n", ""))


if __name__ == "__main__":
    unittest.main()
