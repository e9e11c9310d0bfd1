"""SamplingParams: how the tokens of a request are chosen and when it ends.

Names are those of the completion APIs that users know. What can be checked without a model is checked when the object
is made, in the engine's own words; the engine checks all of it again when a request is submitted.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, SupportsIndex

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def _shown(value: float) -> str:
    """The shortest text, as the engine prints numbers: 3, 2.5, 1e-07."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e16 else repr(number)


def _integer(name: str, value: SupportsIndex) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} {value}: give a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} {value!r}: give a whole number") from None


def _number(name: str, value: SupportsFloat) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError(f"{name} {value!r}: give a number")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} {value!r}: give a number") from None


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} {_shown(value)}: give a number from {_shown(low)} to {_shown(high)}")


def _above_zero(name: str, value: float, high: float) -> None:
    if not 0 < value <= high:
        raise ValueError(f"{name} {_shown(value)}: give a number above 0, up to {_shown(high)}")


def _count(name: str, value: SupportsIndex | None, low: int, high: int) -> int | None:
    if value is None:
        return None
    number = _integer(name, value)
    _between(name, number, low, high)
    return number


def _token_ids(name: str, values: Iterable[SupportsIndex] | None) -> tuple[int, ...]:
    ids = tuple(_integer(name, value) for value in values or ())
    for token in ids:
        if not 0 <= token <= _INT32_MAX:
            raise ValueError(f"{name}: token id {token}: give ids of the model's vocabulary, which begin at 0")
    return ids


def _strings(name: str, values: str | Iterable[str] | None) -> tuple[str, ...]:
    strings = (values,) if isinstance(values, str) else tuple(values or ())
    for i, text in enumerate(strings):
        if not isinstance(text, str):
            raise TypeError(f"{name}: {text!r} is not a string")
        if not text:
            raise ValueError(f"{name}: string {i} is empty: leave it out")
    return strings


def _bias(
    values: Mapping[int, float] | Iterable[tuple[int, float]] | None,
) -> tuple[tuple[int, float], ...]:
    # Keys may be strings of digits, as they are in JSON.
    pairs = values.items() if isinstance(values, Mapping) else values or ()
    bias: list[tuple[int, float]] = []
    for key, value in pairs:
        token = int(key) if isinstance(key, str) and key.isdigit() else key
        bias.append((_token_ids("logit_bias", [token])[0], _number("logit_bias", value)))
    bias.sort()
    for i, (token, value) in enumerate(bias):
        _between(f"logit_bias of token {token}:", value, -100, 100)
        if i > 0 and bias[i - 1][0] == token:
            raise ValueError(f"logit_bias: token id {token} stands twice: give each token one bias")
    return tuple(bias)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class SamplingParams:
    """Immutable, hashable; ``dataclasses.replace(params, n=2)`` gives a changed copy."""

    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    allowed_token_ids: tuple[int, ...]
    bad_words: tuple[str, ...]
    seq_seed: int | None
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...]
    include_stop_str_in_output: bool
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    detokenize: bool

    def __init__(
        self,
        *,
        n: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        logit_bias: Mapping[int, float] | Iterable[tuple[int, float]] | None = None,
        allowed_token_ids: Iterable[int] | None = None,
        bad_words: Iterable[str] | None = None,
        seq_seed: int | None = None,
        seed: int | None = None,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_token_ids: Iterable[int] | None = None,
        stop: str | Iterable[str] | None = None,
        include_stop_str_in_output: bool = False,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        skip_special_tokens: bool = True,
        detokenize: bool = True,
        so_args: object = None,
    ) -> None:
        """Values and ranges:

        n: independent answers, 1 to 128. Answer 0 is the one that n=1 gives.
        temperature: 0 takes the best token.
        top_p, top_k, min_p: filters; 1, 0 (or -1) and 0 switch them off.
        presence_penalty, frequency_penalty: -2 to 2. repetition_penalty: above 0, up to 2.
        logit_bias: {token id: -100 to 100}. allowed_token_ids: no others. bad_words: never spelled.
        seq_seed (or seed): the same seed gives the same answer; None draws one, which the output reports.
        max_tokens: None goes on until the context is full. min_tokens: no end before.
        stop: texts that end an answer; include_stop_str_in_output keeps them.
        logprobs, prompt_logprobs: 0 to 20 best tokens besides the chosen one.
        detokenize=False: token ids without text.
        so_args: structured output, which is not built: only None.
        """
        if so_args is not None:
            raise ValueError("so_args: structured output is not built; leave it None")
        if seq_seed is not None and seed is not None and seq_seed != seed:
            raise ValueError(f"seq_seed {seq_seed} and seed {seed} are two names of one value; give one of them")
        values: dict[str, object] = {
            "n": _integer("n", n),
            "temperature": _number("temperature", temperature),
            "top_p": _number("top_p", top_p),
            "top_k": _integer("top_k", top_k),
            "min_p": _number("min_p", min_p),
            "presence_penalty": _number("presence_penalty", presence_penalty),
            "frequency_penalty": _number("frequency_penalty", frequency_penalty),
            "repetition_penalty": _number("repetition_penalty", repetition_penalty),
            "logit_bias": _bias(logit_bias),
            "allowed_token_ids": _token_ids("allowed_token_ids", allowed_token_ids),
            "bad_words": _strings("bad_words", bad_words),
            "seq_seed": _count("seq_seed", seed if seq_seed is None else seq_seed, 0, 2**64 - 1),
            "max_tokens": None if max_tokens is None else _integer("max_tokens", max_tokens),
            "min_tokens": _integer("min_tokens", min_tokens),
            "ignore_eos": bool(ignore_eos),
            "stop_token_ids": _token_ids("stop_token_ids", stop_token_ids),
            "stop": _strings("stop", stop),
            "include_stop_str_in_output": bool(include_stop_str_in_output),
            "logprobs": _count("logprobs", logprobs, 0, 20),
            "prompt_logprobs": _count("prompt_logprobs", prompt_logprobs, 0, 20),
            "skip_special_tokens": bool(skip_special_tokens),
            "detokenize": bool(detokenize),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_choosing()
        self._check_ending()

    @property
    def seed(self) -> int | None:
        """The same as seq_seed."""
        return self.seq_seed

    def _check_choosing(self) -> None:
        if not 1 <= self.n <= 128:
            raise ValueError(f"n {self.n}: give a count from 1 to 128")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"temperature {_shown(self.temperature)}: give a number of at least 0 (0 takes the best token)"
            )
        if not -1 <= self.top_k <= _INT64_MAX:
            raise ValueError(f"top_k {self.top_k}: give a count of at least 1, or 0 or -1 for no limit")
        _above_zero("top_p", self.top_p, 1)
        _between("min_p", self.min_p, 0, 1)
        _between("presence_penalty", self.presence_penalty, -2, 2)
        _between("frequency_penalty", self.frequency_penalty, -2, 2)
        _above_zero("repetition_penalty", self.repetition_penalty, 2)

    def _check_ending(self) -> None:
        longest = _INT64_MAX if self.max_tokens is None else self.max_tokens
        if not 1 <= longest <= _INT64_MAX:
            raise ValueError(f"max_tokens {longest}: give a count of at least 1")
        if not 0 <= self.min_tokens <= longest:
            raise ValueError(f"min_tokens {self.min_tokens}: give a count from 0 to max_tokens, which is {longest}")
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop with {len(self.stop)} strings: they need text, so detokenize false cannot go with them"
            )

    def __repr__(self) -> str:
        """What differs from the defaults; evaluates to an equal object."""
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = _DEFAULTS[field.name]
            if value != (() if default is None and isinstance(value, tuple) else default):
                shown.append(f"{field.name}={value!r}")
        return f"SamplingParams({', '.join(shown)})"


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(SamplingParams).parameters.items()}
