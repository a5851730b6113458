"""Lines of questions: who waits in one that moves is answered, who waits in one that stands still is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.service.answering import Reply
from meshwright.service.lanes import BusyError, TooSlowError, WorkerLane
from meshwright.service.worker import WorkerRole

TAKES_S = 0.3
LIMIT_S = 0.2
"""Six of them by the clock are less than six answers take."""


class Steady:
    """In place of a process: answers every question in the same time."""

    alive = True
    used_s = 0.0

    def __init__(self, takes_s: float = TAKES_S) -> None:
        self.takes_s = takes_s

    def processor_s(self) -> float:
        return 0.0

    async def ask(self, verb: str, body: Mapping[str, Any], tell: object = None) -> Reply:
        await asyncio.sleep(self.takes_s)
        return Reply(status=200, content=verb.encode())


def test_who_waits_longer_than_the_limit_is_answered_while_the_line_moves() -> None:
    async def six() -> list[Reply]:
        lane = WorkerLane(WorkerRole(), 1)
        lane._back(Steady())
        return await asyncio.gather(*(lane.ask(f"{number}", {}, LIMIT_S) for number in range(6)))

    assert [reply.content for reply in asyncio.run(six())] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_nobody_overtakes_those_who_wait() -> None:
    """Who asks in the moment in which a worker comes free is the last in the line, not the first."""

    async def ask(lane: WorkerLane, name: str, order: list[str], *, again: bool = False) -> None:
        await lane.ask(name, {}, 10.0)
        order.append(name)
        if again:
            await ask(lane, f"{name} again", order)

    async def five() -> list[str]:
        lane, order = WorkerLane(WorkerRole(), 1), list[str]()
        lane._back(Steady(0.02))
        await asyncio.gather(*(ask(lane, name, order, again=True) for name in "abc"))
        return order

    assert asyncio.run(five()) == ["a", "b", "c", "a again", "b again", "c again"]


def test_who_gives_up_leaves_the_line_and_takes_no_worker_along() -> None:
    async def three() -> list[bytes]:
        lane = WorkerLane(WorkerRole(), 1)
        lane._back(Steady(0.02))
        asking = [asyncio.ensure_future(lane.ask(name, {}, 10.0)) for name in "abc"]
        await asyncio.sleep(0.0)
        asking[1].cancel()
        replies = await asyncio.gather(*asking, return_exceptions=True)
        return [reply.content if isinstance(reply, Reply) else b"gone" for reply in replies]

    assert asyncio.run(three()) == [b"a", b"gone", b"c"]


class Busy(Steady):
    """Uses as much processor time as there is, or a tenth of it."""

    def __init__(self, share: float, takes_s: float) -> None:
        self.share, self.takes_s, self.began_s, self.ended = share, takes_s, time.monotonic(), False

    def processor_s(self) -> float:
        return self.share * (time.monotonic() - self.began_s)

    def end(self) -> None:
        self.ended, self.alive = True, False

    async def ask(self, verb: str, body: Mapping[str, Any], tell: object = None) -> Reply:
        await asyncio.sleep(self.takes_s)
        return Reply(status=200, content=verb.encode())


@pytest.mark.parametrize(("share", "takes_s", "answered"), [(1.0, 0.6, False), (0.1, 0.6, True), (0.1, 3.0, False)])
def test_a_limit_is_one_of_processor_time(share: float, takes_s: float, answered: bool) -> None:
    worker = Busy(share, takes_s)

    async def ask() -> None:
        lane = WorkerLane(WorkerRole(), 0)
        lane._closed = True  # no process in its place
        lane._lay_down(worker)
        await lane.ask("plan", {}, LIMIT_S)

    if answered:
        asyncio.run(ask())
    else:
        with pytest.raises(TooSlowError):
            asyncio.run(ask())
    assert worker.ended == (not answered)


def test_a_line_that_stands_still_says_so() -> None:
    async def ask() -> None:
        await WorkerLane(WorkerRole(), 1).ask("estimate", {}, LIMIT_S)

    with pytest.raises(BusyError):
        asyncio.run(ask())
