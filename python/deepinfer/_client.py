"""What LLM and AsyncLLM share: an engine made from keyword arguments, and its small services."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from deepinfer import _engine
from deepinfer.outputs import EngineStats, stats_of

SettingValue = Union[str, int, float, bool, "os.PathLike[str]", None]
Message = Mapping[str, Any]


def spell_setting(name: str, value: SettingValue) -> str:
    """A value as it would stand in a settings file."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    raise TypeError(f"{name} {value!r}: give a string, number, bool or path")


class Client:
    """Settings go by name to the engine, which knows and checks them (docs/settings.md); None is not given."""

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: SettingValue) -> None:
        given = {"model": model, **settings}
        self._engine = _engine.Engine([(k, spell_setting(k, v)) for k, v in given.items() if v is not None])

    def close(self) -> None:
        """Cancels what has not finished and frees the model. Harmless when repeated."""
        self._engine.close()

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a text as it is: no begin token, and markers of the chat format are ordinary text."""
        return self._engine.tokenize(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._engine.detokenize(token_ids)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: bool | None = None,
        reasoning_effort: str | int | None = None,
        tool_choice: str | Message | None = None,
    ) -> list[int]:
        """The prompt of a conversation. Messages and tools have the form of chat completion APIs.

        thinking: whether the model may reason before it answers; None: as the model does by default.
        reasoning_effort: "low", "high", "max" or 1 to 100; "none" is thinking=False.
        """
        options: dict[str, object] = {}
        if thinking is not None:
            options["thinking"] = {"type": "enabled" if thinking else "disabled"}
        for name, value in (("tools", tools), ("reasoning_effort", reasoning_effort), ("tool_choice", tool_choice)):
            if value is not None:
                options[name] = value
        return self._engine.encode_chat(json.dumps(messages), json.dumps(options))

    def stats(self) -> EngineStats:
        return stats_of(self._engine.stats())

    def timer_table(self) -> str:
        """Where the engine's thread spends its time, for people."""
        return self._engine.timer_table()

    @property
    def fingerprint(self) -> str:
        """With the same fingerprint the same request gives the same bytes."""
        return self._engine.fingerprint

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size
