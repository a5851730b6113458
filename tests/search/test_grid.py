"""Rows of degrees: those that devices, batch and rules leave, each as the strategy that its plan states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.estimate.rows import fetched_share, strategy_columns
from meshwright.search.grid import Grid, build_grid, context_levels
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs import MoeMlp, PlanRow, Workload
from meshwright.specs.row import offload_of
from meshwright.strategies.columns import OVERLAPS
from tests.search.spaces import MOE, LayerRun, model

EXPERTS = MoeMlp(experts=4, top_k=1, ffn_hidden=1024, gated=True, shared_ffn_hidden=512)
MODEL = model(LayerRun(layers=(replace(MOE, mlp=EXPERTS),), repeats=4))
WORKLOAD = Workload(global_batch=8, seq_len=2048)
DEVICES = 16


def grid(*pins: tuple[str, tuple[object, ...]]) -> Grid:
    return build_grid(MODEL, WORKLOAD, DEVICES, Space(pins=pins))


def row(found: Grid, at: int) -> PlanRow:
    """A row as a plan states it, weights sharded over data ranks."""
    single: dict[str, Any] = {name: int(getattr(found, name)[at]) for name in ("tp", "ep", "etp", "pp", "dp", "mbs")}
    overlap = OVERLAPS[int(found.overlap[at])]
    return PlanRow(
        **single,
        cp=found.levels(at),
        tp_overlap=overlap,
        sharding="z3",
        gbs=WORKLOAD.global_batch,
        offload=found.offload,
    )


@pytest.mark.parametrize("offload", ["", "w", "a", "wao"])
def test_rows_are_the_strategies_that_their_plans_state(offload: str) -> None:
    found = replace(grid(), offload=offload)
    found = found.take(found.way == 0)
    assert found.rows > 100
    columns = found.strategies(WORKLOAD)
    strategies = [row(found, at).strategy() for at in range(found.rows)]
    known = strategy_columns(strategies, found.mbs.astype(float), WORKLOAD)
    for name in ("tp", "sp", "tp_overlap", "context", "ep", "etp", "mbs", "offload_activations", "ep_chunks"):
        assert np.array_equal(getattr(columns, name), getattr(known, name)), name
    shares = [offload_of(offload).weights * fetched_share(strategy) for strategy in strategies]
    assert columns.offload_weights == pytest.approx(shares, rel=1e-12)


def test_a_section_holds_its_part_of_a_micro_batch() -> None:
    found = grid()
    assert np.array_equal(found.strategies(WORKLOAD).mbs, found.mbs)
    assert found.strategies(WORKLOAD, 4).mbs * 4 == pytest.approx(found.mbs)


def test_rows_use_all_devices_and_share_the_batch_out() -> None:
    found = grid()
    assert np.all(found.tp * found.cp * found.pp * found.dp == DEVICES)
    assert np.all(found.dp * found.mbs * found.m == WORKLOAD.global_batch)
    assert found.pp.max() == 4
    assert np.all(EXPERTS.experts % found.ep == 0)
    assert np.all(found.tp * found.cp * found.dp % (found.ep * found.etp) == 0)


def test_pinned_axes_hold_their_values_alone() -> None:
    found = grid(("tp", (2,)), ("pp", (1, 2)), ("mbs", (1,)))
    assert set(found.tp.tolist()) == {2}
    assert set(found.pp.tolist()) == {1, 2}
    assert set(found.mbs.tolist()) == {1}
    every = grid()
    kept = (every.tp == 2) & np.isin(every.pp, (1, 2)) & (every.mbs == 1)
    assert found.rows == int(kept.sum())


@pytest.mark.parametrize(
    ("number", "known"), [(1, [1]), (16, [1, 2, 4, 8, 16]), (36, [1, 2, 3, 4, 6, 9, 12, 18, 36]), (7, [1, 7])]
)
def test_divisors_ascend_and_are_each_there_once(number: int, known: list[int]) -> None:
    assert divisors(number) == known


def test_kinds_of_context_behind_one_that_is_not_allowed_are_tried() -> None:
    assert context_levels(4, Space(pins=(("cp_kind", ("ag",)),))) == [(1, 1, 4)]
    assert context_levels(4, Space(pins=(("cp_kind", ("ag", "a2a+p2p")),))) == [(1, 1, 4), (2, 2, 1)]
