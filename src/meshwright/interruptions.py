"""Ctrl-C and requests to end: raised at once where work may be cut, and after it where it may not."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 1.0
"""How often a process looks whether the one it works for is there."""


@contextmanager
def ending_politely() -> Iterator[None]:
    """A request to end (SIGTERM, as batch systems send it) is raised as Ctrl-C is, `KeyboardInterrupt`, in the body."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(stop, signal.SIGTERM):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and requests to end wait until the body is done: for writes of several steps that belong together.

    Python handles signals in the main thread only, so the body of any other thread runs whole anyway.
    """
    asked: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    with _handled_by(lambda number, frame: asked.append((number, frame)), *_ENDING):
        yield
    for number, frame in asked[:1]:
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler is not signal.SIG_IGN:
            signal.raise_signal(number)


def end_with(parent: int) -> None:
    """End this process some seconds after its parent at most, even if that was killed and could tell nobody.

    To be called in the main thread; a process that it forks has to call it anew.

    Args:
        parent: the process number of the parent.
    """

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os._exit(1)

    # A clock rather than a thread: a process that searches forks only while it has one thread.
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
