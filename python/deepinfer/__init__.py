"""Inference for DeepSeek-V4.1-Flash: the same request gives the same bytes, always.

from deepinfer import LLM, SamplingParams

with LLM("models/tiny") as llm:
    for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=50, seed=1)):
        print(output.outputs[0].text)
"""

from deepinfer import _engine
from deepinfer._requests import Prompt, TextPrompt, TokensPrompt
from deepinfer.entrypoints.async_llm import AsyncLLM
from deepinfer.entrypoints.llm import LLM
from deepinfer.outputs import (
    CompletionOutput,
    EngineStats,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from deepinfer.sampling_params import SamplingParams

__version__ = _engine.version()

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineStats",
    "FinishReason",
    "Logprob",
    "Prompt",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]
