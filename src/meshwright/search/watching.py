"""Who is told while a search goes on: how much of the whole is done, the quickest plan so far, how long it takes yet.

A question is answered by several searches of spaces, one after the other. Each tells of its own space; whoever watches
hears of all of them together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from meshwright.budget import left_s as left_of_budget_s

SURE_AFTER_S, SURE_SHARE = 1.0, 0.1
"""Seconds and share before which the pace of a search says nothing about how long it takes: most members are excluded
in a few strokes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """A search under way, all its spaces together."""

    space: int
    """Plans of the spaces that were begun."""
    decided: int
    """Members that are priced, or excluded by a rule."""
    best: str | None
    """The quickest plan so far in one line; None before any fits."""
    best_s: float | None
    """Step of the best plan; it never rises."""
    share: float
    """Share of the whole that is done, spaces still to come included; it never falls."""
    left_s: float | None
    """About as much longer it takes, no more than was said before; None while nobody knows."""


Item = TypeVar("Item")
OnProgress = Callable[[SearchProgress], None]


class Watch:
    """One question that is watched: its searches tell their parts, and somebody is told of the whole.

    Args:
        on_progress: called with the progress.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._begun_s = time.monotonic()
        self._counts: list[tuple[int, int]] = []
        self._best: tuple[str | None, float] = (None, math.inf)
        self._share, self._left_s = 0.0, math.inf
        self._from, self._to, self._whole = 0.0, 1.0, 1.0
        """What is left of the part under way, as shares of the question, and how much that part was when it began."""

    def space(self) -> SpaceWatch:
        """A space that is searched now, as all that is left of the part under way."""
        self._counts.append((0, 0))
        return SpaceWatch(self, len(self._counts) - 1, self._from, self._to)

    def count(self, place: int, space: int, decided: int, share: float) -> None:
        """A space is so far, and with it the whole."""
        self._counts[place] = space, decided
        self._tell(share)

    def found(self, name: str, step_time_s: float) -> None:
        """A plan of the whole question was found."""
        if step_time_s < self._best[1]:
            self._best = name, step_time_s

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """The body is so large a share of the part around it, behind what is done of that."""
        around, whole, here = self._to, self._whole, self._from
        self._to = min(here + share * whole, around)
        self._whole = self._to - here
        try:
            yield
        finally:
            self._from, self._to, self._whole = self._to, around, whole
        self._tell(self._from)

    def _tell(self, share: float) -> None:
        self._share = max(self._share, min(share, 1.0))
        passed_s = time.monotonic() - self._begun_s
        if passed_s >= SURE_AFTER_S and self._share >= SURE_SHARE:
            limit_s = left_of_budget_s()
            at_pace_s = passed_s / self._share * (1.0 - self._share)
            self._left_s = min(self._left_s, at_pace_s, math.inf if limit_s is None else limit_s)
        name, best_s = self._best
        self._on_progress(
            SearchProgress(
                space=sum(space for space, _ in self._counts),
                decided=sum(decided for _, decided in self._counts),
                best=name,
                best_s=None if name is None else best_s,
                share=self._share,
                left_s=None if math.isinf(self._left_s) else self._left_s,
            )
        )


@dataclass(frozen=True, slots=True)
class SpaceWatch:
    """One space of a question that is watched."""

    watch: Watch
    place: int
    begin: float
    end: float

    def tell(self, space: int, decided: int) -> None:
        """Count so many members of so large a space as decided."""
        decided = min(decided, space)
        share = self.begin + (self.end - self.begin) * (decided / space if space else 0.0)
        self.watch.count(self.place, space, decided, share)


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(on_progress: OnProgress | None) -> Iterator[None]:
    """Searches of the body tell of their progress.

    Args:
        on_progress: called some times a second, by the searching thread; None for searches of another question than the
            user's, whose best plan is no answer to it.
    """
    token = _watch.set(None if on_progress is None else Watch(on_progress))
    try:
        yield
    finally:
        _watch.reset(token)


def part(share: float) -> AbstractContextManager[None]:
    """The searches of the body are about so large a share of the question at hand, or of the part around it.

    Args:
        share: the share from 0 to 1; parts stand behind each other, and what they leave is done by the end of the part
            around.
    """
    watch = _watch.get()
    return nullcontext() if watch is None else watch.part(share)


def each_a_part(items: Sequence[Item]) -> Iterable[Item]:
    """The items, what is searched for each an equal part of the part around.

    Args:
        items: the items that the caller searches one after the other.
    """
    for item in items:
        with part(1.0 / len(items)):
            yield item


def found(name: str, step_time_s: float) -> None:
    """Tell of a plan that answers the question at hand.

    Args:
        name: the name in one line.
        step_time_s: the seconds of a step of it.
    """
    watch = _watch.get()
    if watch is not None:
        watch.found(name, step_time_s)


def seldom(on_progress: OnProgress, every_s: float) -> OnProgress:
    """The same watcher, told at most once in so many seconds."""
    last_s = -math.inf

    def tell(progress: SearchProgress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            on_progress(progress)

    return tell


def watcher() -> Watch | None:
    """The question that is watched, if anybody watches."""
    return _watch.get()
