"""AsyncLLM: many requests at once in a program with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

from deepinfer import _engine
from deepinfer._client import Client, SettingValue
from deepinfer._requests import Prompt, make_request, parse_prompt
from deepinfer.outputs import OutputMaker, RequestOutput
from deepinfer.sampling_params import SamplingParams


class _Inbox:
    """Hands updates to those who wait for them in one event loop, which looks at it only while somebody does."""

    def __init__(self, engine: _engine.Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._mailbox = _engine.Mailbox()
        self._queues: dict[int, asyncio.Queue[_engine.RequestOutput]] = {}

    @property
    def is_idle(self) -> bool:
        return not self._queues

    def submit(self, request: _engine.Request) -> tuple[int, asyncio.Queue[_engine.RequestOutput]]:
        request_id = self._engine.submit(request, self._mailbox)
        if self.is_idle:
            self._loop.add_reader(self._mailbox.fileno(), self._on_mail)
        queue: asyncio.Queue[_engine.RequestOutput] = asyncio.Queue()
        self._queues[request_id] = queue
        return request_id, queue

    def leave(self, request_id: int) -> None:
        del self._queues[request_id]
        if self.is_idle:
            self._loop.remove_reader(self._mailbox.fileno())

    def _on_mail(self) -> None:
        for update in self._mailbox.take():
            if update.id in self._queues:  # else its reader has left
                self._queues[update.id].put_nowait(update)


class AsyncLLM(Client):
    """A loaded model for asyncio. An asynchronous context manager; refusals raise as LLM's do."""

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: SettingValue) -> None:
        super().__init__(model, **settings)
        self._inboxes: dict[asyncio.AbstractEventLoop, _Inbox] = {}  # only loops with requests under way

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Updates of one request as they come, each with what was added since the one before.

        Cancelling the task, or closing the generator, cancels the request.
        """
        parsed = parse_prompt(prompt)
        params = sampling_params or SamplingParams()
        request = make_request(parsed, params, priority, timeout_seconds or 0)
        maker = OutputMaker(self._engine, parsed.text or None, params)
        loop = asyncio.get_running_loop()
        inbox = self._inbox_of(loop)
        request_id, queue = inbox.submit(request)
        try:
            while True:
                update = maker.make(await queue.get())
                yield update
                if update.finished:
                    return
        finally:
            self._engine.cancel(request_id)
            inbox.leave(request_id)
            if inbox.is_idle:
                self._inboxes.pop(loop, None)

    def _inbox_of(self, loop: asyncio.AbstractEventLoop) -> _Inbox:
        if loop not in self._inboxes:
            self._inboxes[loop] = _Inbox(self._engine, loop)
        return self._inboxes[loop]
