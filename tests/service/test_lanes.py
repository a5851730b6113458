"""Lines of questions: who waits in one that moves is answered, who waits in one that stands still is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.service.answering import Reply
from meshwright.service.lanes import BusyError, Lane
from meshwright.service.worker import Role

TAKES_S = 0.25
LIMIT_S = 0.9
"""Less than six answers take."""


class Steady:
    """In place of a process: answers every question in the same time."""

    alive = True

    async def ask(self, verb: str, body: Mapping[str, Any], tell: object = None) -> Reply:
        await asyncio.sleep(TAKES_S)
        return Reply(status=200, content=verb.encode())


def test_who_waits_longer_than_the_limit_is_answered_while_the_line_moves() -> None:
    async def six() -> list[Reply]:
        lane = Lane(Role(), 1)
        lane._back(Steady())  # type: ignore[arg-type]
        return await asyncio.gather(*(lane.ask(f"{number}", {}, LIMIT_S) for number in range(6)))

    assert [reply.content for reply in asyncio.run(six())] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_line_that_stands_still_says_so() -> None:
    async def ask() -> None:
        await Lane(Role(), 1).ask("estimate", {}, LIMIT_S)

    with pytest.raises(BusyError):
        asyncio.run(ask())
