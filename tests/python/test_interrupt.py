"""Ctrl-C, in a process of its own: it has to come through quickly and leave the LLM usable."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from support import MODEL

FOLDER = pathlib.Path(__file__).parent

# Prints "ready", is interrupted at work, says when it noticed, and then answers once more.
CHILD = """
import sys, threading, time
from deepinfer import LLM, SamplingParams
llm = LLM(sys.argv[1], threads=1, kv_cache_bytes="64MiB")
once = SamplingParams(max_tokens=12, seed=7)
endless = SamplingParams(max_tokens=None, ignore_eos=True, seed=7)
before = llm.generate("Once upon a time", once)[0].outputs[0].token_ids
def tell_when_busy():
    while llm.stats().running < 1:
        time.sleep(0.005)
    print("ready", flush=True)
threading.Thread(target=tell_when_busy).start()
try:
    WORK
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
end = time.monotonic() + 10
while llm.stats().running + llm.stats().waiting > 0 and time.monotonic() < end:
    time.sleep(0.01)
print(llm.stats().running + llm.stats().waiting)
print(llm.generate("Once upon a time", once)[0].outputs[0].token_ids == before)
"""

ASYNC_CHILD = """
import asyncio, sys, threading, time
from deepinfer import AsyncLLM, SamplingParams
llm = AsyncLLM(sys.argv[1], threads=1, kv_cache_bytes="64MiB")
async def main():
    async for _ in llm.generate("Once", SamplingParams(max_tokens=None, ignore_eos=True)):
        print("ready", flush=True) if _.outputs[0].token_ids else None
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("noticed", time.monotonic(), flush=True)
llm.close()
"""


class Interrupt(unittest.TestCase):
    def interrupted(self, program):
        """(seconds from signal to exception, what the child printed afterwards)."""
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(MODEL)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=FOLDER,
        )
        try:
            line = child.stdout.readline()
            self.assertEqual(line, "ready\n", None if line else child.stderr.read())
            time.sleep(0.3)
            begin = time.monotonic()
            os.kill(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
        self.assertEqual((child.returncode, err), (0, ""))
        noticed, *rest = [line for line in out.splitlines() if line != "ready"]
        return float(noticed.split()[-1]) - begin, rest

    def test_it_ends_generate_and_the_llm_stays_usable(self):
        seconds, rest = self.interrupted(CHILD.replace("WORK", 'llm.generate(["Once", "The"] * 200, endless)'))
        self.assertEqual(rest, ["0", "True"])
        self.assertLess(seconds, 1)

    def test_it_ends_a_stream_and_the_llm_stays_usable(self):
        seconds, rest = self.interrupted(CHILD.replace("WORK", 'list(llm.stream("Once", endless))'))
        self.assertEqual(rest, ["0", "True"])
        self.assertLess(seconds, 1)

    def test_it_ends_an_event_loop(self):
        seconds, _ = self.interrupted(ASYNC_CHILD)
        self.assertLess(seconds, 1)

    def test_a_handler_that_raises_nothing_does_not_disturb(self):
        program = CHILD.replace("import sys", "import signal, sys").replace(
            "    WORK",
            "    signal.signal(signal.SIGINT, lambda *_: print(time.monotonic(), flush=True))\n"
            '    assert len(llm.generate(["Once"] * 9, SamplingParams(max_tokens=400, ignore_eos=True))) == 9',
        )
        _, rest = self.interrupted(program)
        self.assertEqual(rest, ["0", "True"])


if __name__ == "__main__":
    unittest.main()
