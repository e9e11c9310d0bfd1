"""What the tests share: the small model, loaded once."""

import functools
import os
import pathlib

from deepinfer import LLM, SamplingParams

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny"

STORY = "Once upon a time, there was a little fox who lived in the woods."
PROMPTS = [STORY, "The robot said", "One day, a girl found a key. She", "It was raining.", "Tom and his dog"]


# Settings of the engines that tests make for themselves.
SMALL = {"threads": 1, "kv_cache_bytes": "64MiB"}


@functools.cache
def tiny():
    return LLM(MODEL, threads=min(2, os.cpu_count() or 1), kv_cache_bytes="64MiB")


def params(**changes):
    return SamplingParams(**{"max_tokens": 24, "seq_seed": 7, **changes})


def answer(output, index=0):
    """What has to be the same whenever the request is the same."""
    completion = output.outputs[index]
    return completion.token_ids, completion.text, completion.finish_reason, completion.stop_reason
