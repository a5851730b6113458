"""Mobius: its order."""

from __future__ import annotations

from meshwright.schedules import SCHEDULES
from meshwright.schedules.named.mobius import Mobius


def test_order_is_breadth_first() -> None:
    assert Mobius().table(2, 4, 3).entries() == SCHEDULES["breadth-first"].table(2, 4, 3).entries()
    assert [found.fix for found in Mobius().problems(4, 4, 1)] == ["v = 2, or schedule gpipe"]
