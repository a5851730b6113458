"""Batches made ahead of the step that takes them, in the same order every time, from any step on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Full, Queue
from typing import Any

POLL_S = 0.1


class Loader:
    """Iterates over `source(start)`, `source(start + 1)`, ...; a thread keeps the next few ready."""

    def __init__(self, source: Callable[[int], Any], start: int = 0, ahead: int = 2) -> None:
        """Begin to make batches.

        Args:
            source: of the batch of a step; it depends on nothing but the step, so that a run can go on from any.
            start: first step.
            ahead: batches kept ready.
        """
        self.step = start
        """Of the next batch: what a checkpoint remembers."""
        self._ready: Queue[tuple[Any, BaseException | None]] = Queue(max(1, ahead))
        self._ended = threading.Event()
        threading.Thread(target=self._make, args=(source, start), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next batch, waited for.

        Raises:
            StopIteration: the loader was closed.
        """
        if self._ended.is_set():
            raise StopIteration
        batch, error = self._ready.get()
        if error is not None:
            self.close()
            raise error
        self.step += 1
        return batch

    def close(self) -> None:
        """Stop making batches."""
        self._ended.set()

    def _make(self, source: Callable[[int], Any], step: int) -> None:
        while not self._ended.is_set():
            made: tuple[Any, BaseException | None]
            try:
                made = source(step), None
            except BaseException as error:
                made = None, error
            while not self._ended.is_set():
                try:
                    self._ready.put(made, timeout=POLL_S)
                    break
                except Full:
                    continue
            if made[1] is not None:
                return
            step += 1
