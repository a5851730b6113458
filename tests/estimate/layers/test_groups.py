"""Collectives in their groups: rows cost what each costs alone, and each way of an exchange only where it is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.groups import Groups
from meshwright.kernels import collectives
from meshwright.kernels.exchange import Routing, token_exchange_s
from meshwright.kernels.lines import group_span
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.workload import Workload
from meshwright.strategies.base import Call
from tests.strategies.columns import columns

EP = [1, 2, 4, 8, 16, 32]
HARDWARE = hardware_of(resolve_gpus("4x8xH100").groups[0], Workload(seq_len=4096, global_batch=32))
PAYLOAD = np.array([0.0, 3e6, 5e6, 7e6, 11e6, 13e6])
ROUTING = Routing(copies=8.0)


def call(kind: Any = "all_to_all", **more: Any) -> Call:
    return Call(
        **({"kind": kind, "category": "ep", "phase": "forward", "group": "ep", "payload_bytes": PAYLOAD} | more)
    )


def seconds(one: Call, ep: list[int] | None = None) -> np.ndarray:
    found = Groups(columns(ep=EP if ep is None else ep), HARDWARE).seconds(one)
    assert found is not None
    return np.asarray(found)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send"])
def test_rows_cost_what_each_costs_alone_and_as_often_as_it_is_repeated(kind: str) -> None:
    together = seconds(call(kind, repeats=3.0))
    for row, (ep, payload, own_s) in enumerate(zip(EP, PAYLOAD, together, strict=True)):
        alone = call(kind, payload_bytes=np.array([payload]))
        if not payload:
            assert Groups(columns(ep=[ep]), HARDWARE).seconds(alone) is None, row
            continue
        assert own_s == pytest.approx(3.0 * float(seconds(alone, [ep])[0]), rel=1e-12)
    assert Groups(columns(ep=EP), HARDWARE).seconds(call(kind, payload_bytes=np.zeros(len(EP)))) is None


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_collectives_priced_ahead_cost_the_same(kind: str) -> None:
    calls = [call(kind), call(kind, payload_bytes=2 * PAYLOAD, repeats=2.0), call(kind, payload_bytes=0 * PAYLOAD)]
    groups = Groups(columns(ep=EP), HARDWARE)
    groups.look_ahead(calls)
    for one in calls:
        ahead, now = groups.seconds(one), Groups(columns(ep=EP), HARDWARE).seconds(one)
        assert (ahead is None) == (now is None)
        if ahead is not None and now is not None:
            np.testing.assert_allclose(ahead, now, rtol=1e-12)


def test_rows_that_send_a_token_once_and_only_they_cost_what_it_takes() -> None:
    stride, ep = np.ones(len(EP), dtype=np.int64), np.array(EP)
    inside = group_span(stride, ep, HARDWARE.domain_sizes)
    once = token_exchange_s(PAYLOAD, inside=inside, rates=HARDWARE.exchange_rates, routing=ROUTING)
    plain = seconds(call())
    assert not np.allclose(once[2:], plain[2:], rtol=1e-3)
    for which in (np.arange(len(EP)) % 2 == 0, np.ones(len(EP), bool), np.zeros(len(EP), bool)):
        found = seconds(call(once=which, routing=ROUTING))
        np.testing.assert_allclose(found, np.where(which, once, plain), rtol=1e-12)
    np.testing.assert_array_equal(seconds(call(routing=ROUTING)), plain)
    np.testing.assert_array_equal(seconds(call(once=np.ones(len(EP), bool))), plain)


def test_rows_that_go_level_by_level_and_only_they_cost_what_that_takes() -> None:
    plain, both = seconds(call()), np.ones(len(EP), bool)
    by_level = seconds(call(by_level=both))
    assert (by_level >= plain * (1 - 1e-12)).all(), "the plain exchange takes the quicker way"
    assert not np.allclose(by_level, plain, rtol=1e-3)
    for which in (np.arange(len(EP)) % 2 == 0, ~both):
        np.testing.assert_allclose(seconds(call(by_level=which)), np.where(which, by_level, plain), rtol=1e-12)


def test_an_exchange_that_may_leave_in_part_costs_the_local_kind_and_a_whole_one_the_plain() -> None:
    inside = group_span(np.ones(len(EP), dtype=np.int64), np.array(EP), HARDWARE.domain_sizes)
    shares = np.array([1.0, 0.5, 1.0, 0.0, 0.25, 1.0])
    local = collectives.local_all_to_all_s(PAYLOAD, shares, inside=inside, rates=HARDWARE.rates)
    found = seconds(call(leaving=shares))
    np.testing.assert_allclose(found, np.where(shares < 1.0, local, seconds(call())), rtol=1e-12)


@pytest.mark.parametrize(("size", "level"), [(1, 0), (8, 0), (16, 1), (32, 1)])
def test_members_are_those_of_the_first_row_and_the_innermost_links_that_hold_them(size: int, level: int) -> None:
    groups = Groups(columns(ep=[size, 2]), HARDWARE)
    held = [float(np.ravel(one)[0]) for one in group_span(np.array([1]), np.array([size]), HARDWARE.domain_sizes)]
    found = groups.members(replace(call(), payload_bytes=np.array([1.0, 1.0])))
    assert found == (size, next(place for place, most in enumerate(held) if most >= size))
    assert found[1] >= level
