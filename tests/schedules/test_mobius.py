"""Mobius: paged stages, host traffic, mapping across root complexes."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InfeasibleError, InputError
from meshwright.schedules import SCHEDULES, Times, simulate
from meshwright.schedules.mobius import Mobius, contention, cross_mapping
from meshwright.schedules.stage_paging import paged_stages


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


@given(
    layers=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=4, max_size=8),
    p=st.integers(1, 2),
    m=st.integers(1, 6),
    room_bytes=st.sampled_from([18.0, 30.0, 100.0]),
)
def test_cuts_are_the_best_of_all(layers: list[tuple[int, int]], p: int, m: int, room_bytes: float) -> None:
    forward_s, weight_bytes = np.array(layers, float).T
    best = np.inf
    for v in range(2, len(layers) // p + 1):
        for inner in combinations(range(1, len(layers)), p * v - 1):
            stages = list(pairwise((0, *inner, len(layers))))
            if any(2 * weight_bytes[i:n].sum() > room_bytes for i, n in stages):
                continue
            wave_s = max(max(m * forward_s[i:n].sum(), weight_bytes[i:n].sum() / 2.0) for i, n in stages)
            best = min(best, ((v - 1) * max(m, p) + m + p - 1) * wave_s / m)
    if np.isinf(best):
        with pytest.raises(InfeasibleError, match="no cut of"):
            paged_stages(forward_s, weight_bytes, p, m, room_bytes=room_bytes, link_bytes_per_s=2.0)
        return
    cut = paged_stages(forward_s, weight_bytes, p, m, room_bytes=room_bytes, link_bytes_per_s=2.0)
    assert cut.forward_s == pytest.approx(best)
    assert (len(cut.bounds) - 1, cut.bounds[0], cut.bounds[-1]) == (p * cut.v, 0, len(layers))
    assert all(2 * weight_bytes[i:n].sum() <= room_bytes for i, n in pairwise(cut.bounds))


def test_equal_layers_take_the_simulated_forward_pass() -> None:
    cut = paged_stages(np.ones(12), np.ones(12), 3, 5, room_bytes=4.0, link_bytes_per_s=10.0)
    assert (cut.v, cut.bounds) == (4, tuple(range(13)))
    alone = Times.equal(3, 4, forward_s=4.0, backward_s=0.0)
    assert cut.forward_s == pytest.approx(simulate(Mobius().table(3, 5, 4), alone).makespan_s)


def test_slow_uploads_and_wrong_layers_are_told() -> None:
    slow = paged_stages(np.ones(4), np.full(4, 10.0), 2, 4, room_bytes=20.0, link_bytes_per_s=1.0)
    assert slow.wave_s == 10.0
    with pytest.raises(InputError) as refused:
        paged_stages(np.ones(3), -np.ones(3), 2, 0, room_bytes=1.0, link_bytes_per_s=1.0)
    assert {problem.field for problem in refused.value.problems} == {"weight_bytes", "m", "p"}
