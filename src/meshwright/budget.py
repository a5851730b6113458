"""How long a question may take and how much memory it may use: what searches look at before they go on.

A search that finds its budget spent stops in order: it answers with the best it has, and says that it was stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

FRESH_BYTES = 200e6
"""Bytes of an interpreter that has loaded what a question needs (80 to 150 MB measured, Linux, CPython 3.11, 2026-11):
it counts. What else a process held before, such as a notebook with a model in it, does not."""
TIME_LIMIT, MEMORY_LIMIT = "time limit", "memory limit"


@dataclass(slots=True)
class Budget:
    """What one question may use."""

    end_s: float
    """Reading of `time.monotonic` when the time is over."""
    memory_bytes: float
    """Memory of the process, what it held before included."""
    used_bytes: float = 0.0
    """Memory at the last look."""
    step_bytes: float = 0.0
    """The most that was taken between two looks: as much may be wanted until the next one."""
    reached: str = ""
    """Which limit; once it is reached it stays so."""

    def look(self) -> str:
        """The limit that is reached, or that the next step might pass; empty while there is room for another."""
        if not self.reached and time.monotonic() >= self.end_s:
            self.reached = TIME_LIMIT
        if not self.reached and self.memory_bytes < float("inf"):
            used = resident_bytes()
            if self.used_bytes:
                self.step_bytes = max(self.step_bytes, used - self.used_bytes)
            self.used_bytes = used
            if used + self.step_bytes > self.memory_bytes:
                self.reached = MEMORY_LIMIT
        return self.reached


_CURRENT: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def within(time_s: float | None = None, memory_bytes: float | None = None) -> Iterator[None]:
    """Answer a question within limits.

    Args:
        time_s: the seconds from now on; None for no limit.
        memory_bytes: the bytes of memory of the process without what it held before beyond `FRESH_BYTES`; None for no
            limit.
    """
    if time_s is None and memory_bytes is None:
        yield
        return
    end_s = float("inf") if time_s is None else time.monotonic() + time_s
    most_bytes = float("inf") if memory_bytes is None else memory_bytes + max(0.0, resident_bytes() - FRESH_BYTES)
    token = _CURRENT.set(Budget(end_s, most_bytes))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def within_share(share: float) -> Iterator[None]:
    """Do a first part of the question at hand within a share of the time that it has left, and within its memory.

    Args:
        share: the share of the time, above 0 and at most 1.
    """
    whole = _CURRENT.get()
    if whole is None:
        yield
        return
    now_s = time.monotonic()
    part = replace(whole, end_s=now_s + share * max(0.0, whole.end_s - now_s))
    token = _CURRENT.set(part)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        whole.used_bytes, whole.step_bytes = part.used_bytes, part.step_bytes
        # Memory that is full stays so; time is left.
        whole.reached = part.reached if part.reached == MEMORY_LIMIT else whole.reached


def spent() -> str:
    """`time limit` or `memory limit` where the question at hand has used up its budget, empty otherwise."""
    current = _CURRENT.get()
    return "" if current is None else current.look()


def left_bytes() -> float:
    """Memory that the question at hand may still take; infinite without a limit."""
    current = _CURRENT.get()
    if current is None or current.memory_bytes == float("inf"):
        return float("inf")
    return max(0.0, current.memory_bytes - resident_bytes())


def left_s() -> float | None:
    """Seconds that the question at hand has left; None without a limit."""
    current = _CURRENT.get()
    return None if current is None or current.end_s == float("inf") else max(0.0, current.end_s - time.monotonic())


def resident_bytes() -> float:
    """Memory of this process: what it has now where the system says it, else the most it ever had."""
    try:
        with open("/proc/self/statm", "rb") as status:
            return int(status.read().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
