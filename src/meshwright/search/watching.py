"""Who is told while a search goes on: how much of the space is decided, and the quickest plan so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """A search under way. A space may be searched in parts, each with counts of its own."""

    space: int
    """Plans of the space."""
    decided: int
    """Members that are priced, or excluded by a rule."""
    best: str | None
    """The quickest plan so far in one line; None before any fits."""
    best_s: float | None
    """Its step."""


Told = Callable[[SearchProgress], None]
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def watched(told: Told | None) -> Iterator[None]:
    """Searches of the body tell of their progress.

    Args:
        told: called some times a second, by the searching thread; None for searches of another question than the
            user's, whose best plan is no answer to it.
    """
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def seldom(told: Told, every_s: float) -> Told:
    """The same watcher, told at most once in so many seconds."""
    last_s = -math.inf

    def tell(progress: SearchProgress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            told(progress)

    return tell


def watcher() -> Told | None:
    """Who wants to be told, if anybody does."""
    return _told.get()
