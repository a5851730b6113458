"""Waiting for files: awake for a moment where the last wait was short, asleep otherwise."""

from __future__ import annotations

import os
import select
import time

AWAKE_S = 5e-4
"""Longer waits are slept through. Falling asleep and being woken takes 30 to 100 microseconds."""

TAKEN_S = 2e-4
"""Seconds between two looks that count as taken: where nobody else wants the core, a few microseconds pass."""
ASLEEP = 256
"""Waits to sleep through after the core was taken: enough to outweigh what that cost."""


class Waiter:
    """Which of some files have something to read.

    Polling gives the core away between two looks, and is given up where the wait before was longer than `AWAKE_S`: a
    run of long waits costs one such moment, and a run of short ones is never slept through. Where somebody else took
    the core meanwhile, the next waits are slept through: who sleeps gets it back sooner than who gave it away.
    """

    def __init__(self, *, awake: bool) -> None:
        """No files yet.

        Args:
            awake: whether there is a core that nobody else is known to need meanwhile.
        """
        self._poll = select.poll()
        self._awake, self._short, self._asleep = awake, False, 0
        self.register, self.unregister, self.modify = self._poll.register, self._poll.unregister, self._poll.modify

    def events(self) -> list[tuple[int, int]]:
        """Files and what has happened to them, waited for."""
        began = time.monotonic()
        found = self._looked(began) if self._awake and self._short else []
        found = found or self._poll.poll()
        self._short = time.monotonic() - began < AWAKE_S
        return found

    def _looked(self, began: float) -> list[tuple[int, int]]:
        """What happens within `AWAKE_S`, unless this is to be slept through."""
        if self._asleep:
            self._asleep -= 1
            return []
        now = began
        while not (found := self._poll.poll(0)) and now - began < AWAKE_S:
            os.sched_yield()
            before, now = now, time.monotonic()
            if now - before > TAKEN_S:
                self._asleep = ASLEEP
                break
        return found


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
