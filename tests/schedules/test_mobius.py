"""Mobius: paged stages, host traffic, mapping across root complexes."""

from __future__ import annotations

from itertools import permutations

import pytest

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES
from meshwright.schedules.mobius import Mobius, contention, cross_mapping


def test_order_is_breadth_first() -> None:
    assert Mobius().table(2, 4, 3).entries() == SCHEDULES["breadth-first"].table(2, 4, 3).entries()
    assert [found.fix for found in Mobius().problems(4, 4, 1)] == ["v = 2, or schedule gpipe"]


def test_host_traffic_and_when_uploads_hide() -> None:
    assert Mobius().host_bytes(10e9, 10e9) == 30e9
    assert Mobius().uploads_hide(8, 4, 0.1, 2e9, 10e9)
    assert not Mobius().uploads_hide(8, 4, 0.1, 2.1e9, 10e9)


@pytest.mark.parametrize("root_of", [(0, 0, 1, 1), (0, 0, 0, 1), (0, 0, 0, 1, 1, 1), (0, 1, 2, 0), (0,)])
def test_cross_mapping_is_near_the_best_order(root_of: tuple[int, ...]) -> None:
    order = cross_mapping(root_of)
    assert sorted(order) == list(range(len(root_of)))
    best = min(contention(root_of, other) for other in permutations(range(len(root_of))))
    assert contention(root_of, order) <= 1.2 * best
    assert contention(root_of, order) <= contention(root_of, range(len(root_of)))


def test_no_device() -> None:
    with pytest.raises(InputError):
        cross_mapping(())
