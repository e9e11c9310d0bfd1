"""What comes back: plain values, shaped as vLLM's. Made from the engine's updates here."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from deepinfer import _engine
from deepinfer.sampling_params import SamplingParams


class FinishReason(str, enum.Enum):
    """Equal to its text: ``reason == "stop"``."""

    STOP = "stop"  # end of sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # cancelled, overdue, or the LLM was closed
    ERROR = "error"  # RequestOutput.error says why

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True)
class Logprob:
    """Natural logarithm of the model's own probability, before penalties, temperature and filters."""

    logprob: float
    rank: int  # 1: the likeliest
    decoded_token: str | None  # None with detokenize=False


# The token itself first, then the likeliest ones.
TokenLogprobs = dict[int, Logprob]


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One answer of n. In a stream: what was added since the update before."""

    index: int
    text: str  # without the stop string (unless asked for) and end tokens
    token_ids: list[int]  # end token included
    cumulative_logprob: float | None  # of these tokens, if log-probabilities were asked for
    logprobs: list[TokenLogprobs] | None  # one a token, but not of the end token
    finish_reason: FinishReason | None
    stop_reason: int | str | None  # the stop string or stop token; None for end of sequence

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass(frozen=True)
class RequestMetrics:
    queue_seconds: float  # until its first tokens ran
    first_token_seconds: float  # from submission
    total_seconds: float
    num_preemptions: int


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """All answers to one prompt. In a stream: those with news, and the last update is the one that is ``finished``."""

    request_id: str
    prompt: str | None  # the text that was given; of chat: the prompt that was made; None for token ids
    prompt_token_ids: list[int]  # in a stream: with the last update
    prompt_logprobs: list[TokenLogprobs | None] | None  # one a prompt token if asked for; None for the first
    outputs: list[CompletionOutput]
    finished: bool
    error: str | None  # why answers have the finish reason "error"
    num_cached_tokens: int  # of the prompt, not computed again
    seq_seed: int  # the seed that was used
    fingerprint: str  # with the same fingerprint the same request gives the same bytes
    metrics: RequestMetrics


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """Counts since the start, and what is so now."""

    waiting: int
    running: int
    prefill_steps: int
    decode_steps: int
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    tokens_delivered: int
    preemptions: int
    wasted_rows: int
    device_seconds: float
    device_idle_seconds: float
    cache_units: int
    cache_used: float


class OutputMaker:
    """Turns the updates of one request into RequestOutputs."""

    def __init__(self, engine: _engine.Engine, prompt: str | None, params: SamplingParams) -> None:
        self._engine = engine
        self._prompt = prompt
        self._params = params
        self._told_prompt_logprobs = False

    def make(self, raw: _engine.RequestOutput) -> RequestOutput:
        return RequestOutput(
            request_id=str(raw.id),
            prompt=self._prompt,
            prompt_token_ids=raw.prompt_tokens,
            prompt_logprobs=self._prompt_logprobs(raw),
            outputs=sorted((self._completion(c) for c in raw.completions), key=lambda c: c.index),
            finished=raw.finished,
            error=raw.error or None,
            num_cached_tokens=raw.num_cached_tokens,
            seq_seed=raw.seq_seed,
            fingerprint=raw.fingerprint,
            metrics=metrics_of(raw.metrics),
        )

    def _completion(self, raw: _engine.Completion) -> CompletionOutput:
        asked = self._params.logprobs is not None
        tokens = raw.tokens
        return CompletionOutput(
            index=raw.index,
            text=raw.text,
            token_ids=tokens,
            cumulative_logprob=raw.cumulative_logprob if asked else None,
            logprobs=self._logprobs(raw.logprobs) if asked else None,
            finish_reason=None if raw.finish_reason is None else FinishReason(raw.finish_reason),
            stop_reason=self._stop_reason(raw.stop_reason, tokens),
        )

    def _stop_reason(self, reason: str, tokens: list[int]) -> int | str | None:
        # A stop token ends an answer before stop strings are looked for: it is last only if it was the reason.
        is_token = bool(tokens) and tokens[-1] in self._params.stop_token_ids and reason == str(tokens[-1])
        return tokens[-1] if is_token else reason or None

    def _prompt_logprobs(self, raw: _engine.RequestOutput) -> list[TokenLogprobs | None] | None:
        if self._params.prompt_logprobs is None:
            return None
        told = self._logprobs(raw.prompt_logprobs)
        if self._told_prompt_logprobs or not (told or raw.finished):
            return list(told)
        self._told_prompt_logprobs = True
        return [None, *told]

    def _logprobs(self, raw: Sequence[_engine.TokenLogprobs]) -> list[TokenLogprobs]:
        positions = [(p.token, p.logprob, p.rank, [(b.token, b.logprob) for b in p.best]) for p in raw]
        names: dict[int, str] = {}
        if self._params.detokenize and not self._engine.is_closed:
            ids = sorted({token for p in positions for token in (p[0], *(b[0] for b in p[3]))})
            names = dict(zip(ids, self._engine.detokenize_each(ids)))
        told = []
        for token, logprob, rank, best in positions:
            entry = {token: Logprob(logprob, rank, names.get(token))}
            for place, (other, value) in enumerate(best, start=1):
                entry.setdefault(other, Logprob(value, place, names.get(other)))
            told.append(entry)
        return told


def metrics_of(raw: _engine.RequestMetrics) -> RequestMetrics:
    return RequestMetrics(**{f.name: getattr(raw, f.name) for f in dataclasses.fields(RequestMetrics)})


def stats_of(raw: _engine.EngineStats) -> EngineStats:
    return EngineStats(**{f.name: getattr(raw, f.name) for f in dataclasses.fields(EngineStats)})
