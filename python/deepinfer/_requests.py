"""From what callers write to the engine's requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Union, cast

from deepinfer import _engine
from deepinfer.sampling_params import SamplingParams


class TextPrompt(TypedDict, total=False):
    prompt: str
    cache_salt: str  # prefixes are shared only among requests of the same salt


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: Sequence[int]
    cache_salt: str


# Text becomes tokens as it is: chat markers in it are ordinary text.
Prompt = Union[str, Sequence[int], TextPrompt, TokensPrompt]

_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
# More than any context: the engine then ends at the context's end.
_UNLIMITED_TOKENS = 2**30

T = TypeVar("T")


@dataclasses.dataclass
class ParsedPrompt:
    text: str = ""
    token_ids: Sequence[int] = ()
    cache_salt: str = ""


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many. Plain integers are one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"prompts: {type(prompts).__name__}: give a prompt or a list of them")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def parse_prompt(prompt: Prompt) -> ParsedPrompt:
    if isinstance(prompt, str):
        return ParsedPrompt(text=_checked(prompt))
    if isinstance(prompt, Mapping):
        given: dict[str, Any] = dict(prompt)
        if unknown := sorted(given.keys() - _KEYS):
            raise ValueError(f"prompt: key {unknown[0]!r} is not known; use {', '.join(sorted(_KEYS))}")
        return ParsedPrompt(
            text=_checked(given.get("prompt") or ""),
            token_ids=list(given.get("prompt_token_ids") or ()),
            cache_salt=_checked(given.get("cache_salt") or ""),
        )
    if isinstance(prompt, Sequence):
        return ParsedPrompt(token_ids=cast("Sequence[int]", prompt))
    raise TypeError(f"prompt: {type(prompt).__name__}: give a string, token ids or a dictionary")


def _checked(text: str) -> str:
    """Refuses halves of surrogate pairs, which no UTF-8 text has."""
    if not isinstance(text, str):
        raise TypeError(f"prompt: {text!r} is not a string")
    text.encode()
    return text


def one_each(name: str, value: T | Sequence[T], kind: type[T], count: int) -> list[T]:
    """A value for all requests, or a list with one for each."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence):
        raise TypeError(f"{name}: {value!r}: give a {kind.__name__} or a list of them")
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} for {count} prompts; give one, or one a prompt")
    for item in value:
        if not isinstance(item, kind):
            raise TypeError(f"{name}: {item!r}: give a {kind.__name__} or a list of them")
    return list(value)


def make_request(
    prompt: ParsedPrompt, params: SamplingParams, priority: int, timeout_seconds: float
) -> _engine.Request:
    request = _engine.Request()
    request.prompt = prompt.text
    try:
        request.prompt_tokens = prompt.token_ids
    except TypeError:
        raise TypeError("prompt_token_ids: give whole numbers, ids of the model's vocabulary") from None
    request.cache_salt = prompt.cache_salt
    request.sampling = _engine_sampling(params)
    request.priority = priority
    request.timeout_seconds = timeout_seconds
    return request


def _engine_sampling(params: SamplingParams) -> _engine.SamplingParams:
    sampling = _engine.SamplingParams()
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if value is not None:
            setattr(sampling, field.name, value)
    if params.max_tokens is None:
        sampling.max_tokens = _UNLIMITED_TOKENS
    return sampling
