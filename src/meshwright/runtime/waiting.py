"""Waiting for files: awake for a moment where the last wait was short, asleep otherwise."""

from __future__ import annotations

import os
import select
import time

AWAKE_S = 5e-4
"""Longer waits are slept through. Falling asleep and being woken takes 30 to 100 microseconds."""


class Waiter:
    """Which of some files have something to read.

    Polling gives the core away between two looks, and is given up where the wait before was longer than `AWAKE_S`: a
    run of long waits costs one such moment, and a run of short ones is never slept through.
    """

    def __init__(self, *, awake: bool) -> None:
        """No files yet.

        Args:
            awake: whether there is a processor that nobody else needs meanwhile.
        """
        self._poll = select.poll()
        self._awake, self._short = awake, False
        self.register, self.unregister, self.modify = self._poll.register, self._poll.unregister, self._poll.modify

    def events(self) -> list[tuple[int, int]]:
        """Files and what has happened to them, waited for."""
        began = time.monotonic()
        found: list[tuple[int, int]] = []
        if self._awake and self._short:
            while not (found := self._poll.poll(0)) and time.monotonic() - began < AWAKE_S:
                os.sched_yield()
        found = found or self._poll.poll()
        self._short = time.monotonic() - began < AWAKE_S
        return found


def processors() -> int:
    """Of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
