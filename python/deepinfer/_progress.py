"""How far a batch is, on a terminal: by tqdm if it is installed, else on a line of our own."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

_LINE_INTERVAL_SECONDS = 0.25


class Progress:
    """Silent unless wanted and stderr is a terminal."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._is_shown = wanted and total > 0 and sys.stderr.isatty()
        self._begin = self._last_line = time.monotonic()
        self._bar = self._make_bar(total) if self._is_shown else None
        self._has_line = False

    @staticmethod
    def _make_bar(total: int) -> Any:
        try:
            tqdm = importlib.import_module("tqdm").tqdm
        except ImportError:
            return None
        return tqdm(total=total, desc="answers", dynamic_ncols=True)

    def __call__(self, finished: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(finished - self._bar.n)
        elif self._is_shown:
            self._write_line(finished, total)

    def _write_line(self, finished: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last_line < _LINE_INTERVAL_SECONDS:
            return
        self._last_line = now
        self._has_line = True
        sys.stderr.write(f"\rdeepinfer: {finished} of {total} answers, {now - self._begin:.0f} s")
        sys.stderr.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._has_line:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
