"""Short waits are stayed awake through, long ones and those of a busy machine are slept through."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from meshwright.runtime.workers import waiting
from meshwright.runtime.workers.waiting import ASLEEP, AWAKE_S, TAKEN_S, Waiter

NEVER = 1 << 30
"""Looks after which a message comes that only a sleeper gets."""
SLEEP_S = 0.02


class Machine:
    """A pipe, and the clock and the cores of a machine whose load the test decides."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.now_s = self.look_s = 0.0
        self.looks, self.comes_after = 0, 0

    def monotonic(self) -> float:
        return self.now_s

    def sched_yield(self) -> None:
        """One look: time goes on, and the message comes when it is due."""
        self.looks += 1
        self.now_s += self.look_s
        if self.looks >= self.comes_after:
            os.write(self.writing, b"x")

    def looks_of(self, waiter: Waiter, *, comes_after: int, look_s: float = 1e-6) -> int:
        """Looks of one wait.

        Args:
            waiter: that waits.
            comes_after: looks, or moments of sleep where there are none, until the message is there; 0 for at once.
            look_s: that one look takes.
        """
        self.looks, self.comes_after, self.look_s = 0, comes_after, look_s
        if not comes_after:
            os.write(self.writing, b"x")
        asleep = threading.Timer(SLEEP_S, os.write, (self.writing, b"x"))
        if comes_after == NEVER:
            asleep.start()
        assert waiter.events() == [(self.reading, select.POLLIN)]
        asleep.cancel()
        os.read(self.reading, 8)
        return self.looks


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    one = Machine()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=one.monotonic))
    monkeypatch.setattr(waiting, "os", SimpleNamespace(sched_yield=one.sched_yield))
    yield one
    os.close(one.reading)
    os.close(one.writing)


def waiter_of(machine: Machine, *, awake: bool) -> Waiter:
    waiter = Waiter(awake=awake)
    waiter.register(machine.reading, select.POLLIN)
    return waiter


def test_after_a_short_wait_it_looks_until_the_message_is_there(machine: Machine) -> None:
    waiter = waiter_of(machine, awake=True)
    assert machine.looks_of(waiter, comes_after=0) == 0
    assert machine.looks_of(waiter, comes_after=7) == 7


def test_it_looks_no_longer_than_a_moment_and_sleeps_through_the_wait_after_a_long_one(machine: Machine) -> None:
    waiter = waiter_of(machine, awake=True)
    machine.looks_of(waiter, comes_after=0)
    assert machine.looks_of(waiter, comes_after=NEVER, look_s=AWAKE_S / 8) == 8
    assert machine.looks_of(waiter, comes_after=NEVER) == 0
    assert machine.looks_of(waiter, comes_after=3) == 3


def test_without_a_core_of_its_own_it_sleeps(machine: Machine) -> None:
    waiter = waiter_of(machine, awake=False)
    machine.looks_of(waiter, comes_after=0)
    assert machine.looks_of(waiter, comes_after=NEVER) == 0


def test_where_somebody_takes_the_core_it_sleeps_for_a_while(machine: Machine) -> None:
    waiter = waiter_of(machine, awake=True)
    machine.looks_of(waiter, comes_after=0)
    assert machine.looks_of(waiter, comes_after=NEVER, look_s=1.5 * TAKEN_S) == 1
    assert {machine.looks_of(waiter, comes_after=NEVER) for _ in range(ASLEEP)} == {0}
    assert machine.looks_of(waiter, comes_after=2) == 2
