"""LLM: prompts in, answers out, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Union

from deepinfer import _engine
from deepinfer._client import Client, Message
from deepinfer._progress import Progress
from deepinfer._requests import ParsedPrompt, Prompt, make_request, one_each, parse_prompt, prompt_list
from deepinfer.outputs import OutputMaker, RequestOutput
from deepinfer.sampling_params import SamplingParams

Params = Union[SamplingParams, Sequence[SamplingParams], None]


class LLM(Client):
    """A loaded model. Usable from several threads; a context manager.

    Ctrl-C while it generates cancels what has not finished and raises KeyboardInterrupt; the LLM stays usable.
    Refused settings and requests raise ValueError, a closed LLM or a full queue RuntimeError.
    """

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> list[RequestOutput]:
        """All answers, in the order of the prompts; what one gets does not depend on the others.

        priority: lower goes first. timeout_seconds: of each request, from when the engine takes it.
        """
        parsed = [parse_prompt(prompt) for prompt in prompt_list(prompts)]
        return self._run(parsed, [p.text or None for p in parsed], sampling_params, use_tqdm, priority, timeout_seconds)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        tools: Sequence[Message] | None = None,
        thinking: bool | None = None,
        reasoning_effort: str | int | None = None,
        tool_choice: str | Message | None = None,
        priority: int | Sequence[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> list[RequestOutput]:
        """Answers to a conversation, or to each of several. encode_chat says what the options mean."""
        is_one = not messages or isinstance(messages[0], Mapping)
        parsed, shown = [], []
        for conversation in [messages] if is_one else messages:
            ids = self.encode_chat(
                conversation,  # type: ignore[arg-type]
                tools=tools,
                thinking=thinking,
                reasoning_effort=reasoning_effort,
                tool_choice=tool_choice,
            )
            parsed.append(ParsedPrompt(token_ids=ids))
            shown.append(self.detokenize(ids))
        return self._run(parsed, shown, sampling_params, use_tqdm, priority, timeout_seconds)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_seconds: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Updates of one request as they come, each with what was added. Leaving the loop cancels the request."""
        parsed = parse_prompt(prompt)
        params = sampling_params or SamplingParams()
        stream = self._engine.stream(make_request(parsed, params, priority, timeout_seconds or 0))
        return _updates(stream, OutputMaker(self._engine, parsed.text or None, params))

    def _run(
        self,
        parsed: list[ParsedPrompt],
        shown: Sequence[str | None],
        sampling_params: Params,
        use_tqdm: bool,
        priority: int | Sequence[int] | None,
        timeout_seconds: float | None,
    ) -> list[RequestOutput]:
        count = len(parsed)
        params = one_each("sampling_params", sampling_params or SamplingParams(), SamplingParams, count)
        priorities = one_each("priority", 0 if priority is None else priority, int, count)
        requests = [
            make_request(prompt, p, order, timeout_seconds or 0) for prompt, p, order in zip(parsed, params, priorities)
        ]
        progress = Progress(count, use_tqdm)
        try:
            outputs = self._engine.generate(requests, progress)
        finally:
            progress.close()
        return [OutputMaker(self._engine, text, p).make(raw) for raw, text, p in zip(outputs, shown, params)]


def _updates(stream: _engine.Stream, maker: OutputMaker) -> Iterator[RequestOutput]:
    try:
        while (update := stream.next()) is not None:
            yield maker.make(update)
    finally:
        stream.cancel()
