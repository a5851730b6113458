"""Blocks of rows and shapes: what fits, on devices and on the host, and what is counted of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.search.one_space import SpaceSearch
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs import Workload
from meshwright.specs.cluster import ClusterSpec

AWAY = Space(pins=(("offload", ("o",)), ("recompute", ("none",))))
WORK = Workload(seq_len=1024, global_batch=8)


def cluster(memory_bytes: float | None) -> ClusterSpec:
    found = resolve_gpus("4xH100")
    (group,) = found.groups
    host = replace(group.host, memory_bytes=memory_bytes)
    return replace(found, groups=(replace(group, host=host),))


def names(memory_bytes: float | None) -> list[str]:
    found = search(spec("gpt2-xl"), cluster(memory_bytes), WORK, AWAY, top=3, refine=False)
    return [one.row.format() if one.row else "" for one in found.plans]


def test_a_host_with_room_changes_nothing_and_one_without_fits_nothing() -> None:
    free = names(None)
    assert free
    assert names(1e12) == free
    assert names(1e6) == []


def test_the_room_that_a_plan_needs_is_just_enough() -> None:
    found = search(spec("gpt2-xl"), cluster(None), WORK, AWAY, top=1, refine=False).plans[0]
    held = max(stage.host_bytes for stage in found.estimate.stages) * 4 / HOST_SHARE
    name = found.row.format() if found.row else ""
    assert names(held * (1 + 1e-9))[0] == name
    assert name not in names(held * (1 - 1e-6))


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_plans_are_found_as_are_asked_for(count: int) -> None:
    assert len(search(spec("gpt2-xl"), cluster(1e12), WORK, AWAY, top=count, refine=False).plans) == count


@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl"])
def test_no_more_plans_fit_than_are_priced(model: str) -> None:
    found = search(spec(model), resolve_gpus("4xH100"), Workload(seq_len=1024, global_batch=16)).certificate
    assert 0 < found.feasible <= found.priced <= found.space


def test_rows_of_several_numbers_of_micro_batches_have_the_bounds_that_each_has_alone() -> None:
    pins = ("pp", (2,)), ("recompute", ("none", "full"))
    parts = spec("gpt2-xl"), resolve_gpus("4xH100"), Workload(seq_len=1024, global_batch=16), Space(pins=pins)
    run = SpaceSearch(*parts, 1, pareto=False)
    grid = run._built()
    blocks = [run.whole_block(rows) for rows in run.rows(grid)]
    assert any(block is not None and len(set(block.grid.m.tolist())) > 1 for block in blocks)
    for block in blocks:
        assert block is not None
        for row, m in enumerate(block.grid.m.tolist()):
            alone = run.whole_block(block.rows.take(np.array([row])))
            assert alone is not None
            assert alone.allowed.any()
            here = block.shapes.m == m
            assert not block.allowed[row, ~here].any()
            np.testing.assert_allclose(block.bounds_s()[row, here], alone.bounds_s()[0], rtol=1e-12)


@pytest.mark.parametrize(("stages", "every", "near"), [(1, 5, 1e-12), (2, 43, 0.01)])
def test_the_bound_of_a_plan_is_below_its_step_and_meets_it_where_nothing_is_hidden(
    stages: int, every: int, near: float
) -> None:
    parts = spec("gpt2-xl"), resolve_gpus("4xH100"), Workload(seq_len=1024, global_batch=16)
    run = SpaceSearch(*parts, Space(pins=(("pp", (stages,)), ("recompute", ("none",)))), 1, pareto=False)
    compared = 0
    for rows in run.rows(run._built()):
        block = run.whole_block(rows)
        assert block is not None
        found, priced, feasible = block.price(block.open, np.inf)
        assert len(found.row) == feasible <= priced
        for at in range(0, len(found.row), every):
            row, shape, sharding = (int(column[at]) for column in (found.row, found.shape, found.sharding))
            plan = block.plan_row(row, block.shapes.shape(shape), block.shardings[sharding])
            step_s = estimate_plan(expand(plan, parts[0], 1024), *parts).step_time_s
            assert (1 - near) * step_s * (1 - 1e-12) <= found.bound_s[at] <= step_s * (1 + 1e-12), plan.format()
            compared += 1
    assert compared > 20
