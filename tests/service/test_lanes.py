"""Lines of questions: who waits in one that moves is answered, who waits in one that stands still is told."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from meshwright.service.answering import Reply
from meshwright.service.lanes import BusyError, TooSlowError, WorkerLane
from meshwright.service.worker import WorkerRole
from meshwright.service.worker_process import LostWorkerError, OpenQuestion

TAKES_S = 0.3
LIMIT_S = 0.2
"""Six of them by the clock are less than six answers take."""


class Steady:
    """In place of a process: answers every question in the same time."""

    alive = ready = True

    def __init__(self, lane: WorkerLane, takes_s: float = TAKES_S) -> None:
        self.lane, self.takes_s = lane, takes_s
        self.question: OpenQuestion | None = None
        lane._workers.add(self)
        lane._came_free(self)

    def processor_s(self) -> float:
        return 0.0

    def answer(self, question: OpenQuestion) -> None:
        self.question, question.worker, question.before_s = question, self, self.processor_s()
        asyncio.get_running_loop().call_later(self.takes_s, self.reply, question)

    def reply(self, question: OpenQuestion) -> None:
        if not self.alive:
            return
        self.question = None
        self.lane._came_free(self)
        if not question.reply.done():
            question.reply.set_result(Reply(status=200, content=json.loads(question.content)[0].encode()))

    def end(self) -> None:
        self.alive, lost, self.question = False, self.question, None
        if lost is not None and not lost.reply.done():
            lost.reply.set_exception(LostWorkerError())
        self.lane._died(self)


def test_who_waits_longer_than_the_limit_is_answered_while_the_line_moves() -> None:
    async def six() -> list[Reply]:
        lane = WorkerLane(WorkerRole(), 1)
        Steady(lane)
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
        Steady(lane, 0.02)
        await asyncio.gather(*(ask(lane, name, order, again=True) for name in "abc"))
        return order

    assert asyncio.run(five()) == ["a", "b", "c", "a again", "b again", "c again"]


def test_who_gives_up_leaves_the_line_and_takes_no_worker_along() -> None:
    async def three() -> list[bytes]:
        lane = WorkerLane(WorkerRole(), 1)
        Steady(lane, 0.02)
        asking = [asyncio.ensure_future(lane.ask(name, {}, 10.0)) for name in "abc"]
        await asyncio.sleep(0.0)
        asking[1].cancel()
        replies = await asyncio.gather(*asking, return_exceptions=True)
        return [reply.content if isinstance(reply, Reply) else b"gone" for reply in replies]

    assert asyncio.run(three()) == [b"a", b"gone", b"c"]


class Busy(Steady):
    """Uses as much processor time as there is, or a tenth of it."""

    def __init__(self, lane: WorkerLane, share: float, takes_s: float) -> None:
        self.share, self.began_s = share, time.monotonic()
        super().__init__(lane, takes_s)

    def processor_s(self) -> float:
        return self.share * (time.monotonic() - self.began_s)


@pytest.mark.parametrize(("share", "takes_s", "answered"), [(1.0, 0.6, False), (0.1, 0.6, True), (0.1, 3.0, False)])
def test_a_limit_is_one_of_processor_time(share: float, takes_s: float, answered: bool) -> None:
    async def ask() -> Busy:
        lane = WorkerLane(WorkerRole(), 0)
        lane._closed = True  # no process in its place
        worker = Busy(lane, share, takes_s)
        if answered:
            await lane.ask("plan", {}, LIMIT_S)
        else:
            with pytest.raises(TooSlowError):
                await lane.ask("plan", {}, LIMIT_S)
        return worker

    assert asyncio.run(ask()).alive == answered


def test_a_worker_has_its_next_question_before_its_reply_is_read() -> None:
    """Else it idles while the service writes an answer, and processors with it."""

    async def two() -> list[str]:
        lane, seen = WorkerLane(WorkerRole(), 1), list[str]()
        worker = Steady(lane, 0.02)

        async def ask(name: str) -> None:
            await lane.ask(name, {}, 10.0)
            seen.append(f"{name} answered, {'busy' if worker.question else 'idle'}")

        await asyncio.gather(ask("a"), ask("b"))
        return seen

    assert asyncio.run(two()) == ["a answered, busy", "b answered, idle"]


def test_questions_of_a_worker_that_dies_are_lost_and_another_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die() -> None:
        lane = WorkerLane(WorkerRole(), 1)
        monkeypatch.setattr(lane, "_start", lambda: Steady(lane, 0.02))
        worker = Steady(lane, TAKES_S)
        asking = asyncio.ensure_future(lane.ask("a", {}, 10.0))
        behind = asyncio.ensure_future(lane.ask("b", {}, 10.0))
        await asyncio.sleep(0.01)
        worker.end()
        with pytest.raises(LostWorkerError):
            await asking
        assert (await behind).content == b"b"
        assert lane.alive == 1

    asyncio.run(die())


def test_a_line_that_stands_still_says_so() -> None:
    async def ask() -> None:
        await WorkerLane(WorkerRole(), 1).ask("estimate", {}, LIMIT_S)

    with pytest.raises(BusyError):
        asyncio.run(ask())
