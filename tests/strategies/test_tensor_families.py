"""All tensor strategies by the same cases: what they cost, what ranks hold, and how plans name them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.estimate.rules.legality import row_problems
from meshwright.kernels.collectives import all_gather_s, all_reduce_s
from meshwright.kernels.lines import LevelRates, group_span
from meshwright.specs.operators import Linear
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.tensor_grids import GRIDS
from meshwright.strategies import TENSORS
from meshwright.strategies.base import LocalGemm
from tests.estimate.cases import DENSE, case, memory
from tests.strategies.columns import columns

BYTES = LevelRates(bandwidth_bytes_per_s=1.0, efficiency=1.0, latency_s=0.0, base_latency_s=0.0)
"""Links on which seconds are bytes out of one device."""
UP = Linear(name="up", module="mlp", split="column", inputs=((1, 64),), outputs=((256, 1),), gather=64)
DOWN = replace(UP, name="down", split="row", inputs=UP.outputs, outputs=UP.inputs, gather=0, reduce=64)
DEGREES = {"1d": 8, "2d": 4, "25d": 8, "3d": 8, "heads": 8}
NAMES = tuple(TENSORS)


def local(name: str, tp: int, op: Linear = UP, rows: int = 64) -> LocalGemm:
    return TENSORS[name].linear(op, columns(tp=tp, sp=True, seq_len=rows, tensor=name), 1.0)


def received(name: str, tp: int, phase: str, op: Linear = UP, rows: int = 64) -> float:
    """Elements that a rank receives for one product in a direction."""
    groups = TENSORS[name].groups(columns(tp=tp, sp=True, seq_len=rows, tensor=name))
    found = 0.0
    for call in local(name, tp, op, rows).calls:
        if call.phase == phase:
            ranks = int(groups[call.group][1][0])
            whole = np.asarray(call.payload_bytes).item() * (2.0 if call.kind == "all_reduce" else 1.0)
            found += whole * (ranks - 1) / ranks
    return found


@pytest.mark.parametrize(
    ("name", "tp", "forward", "backward"),
    [
        ("2d", 4, 5120, 10240),
        ("2d", 16, 3840, 7680),
        ("25d", 8, 4608, 13312),
        ("25d", 64, 3264, 8064),
        ("3d", 8, 4608, 4608),
        ("3d", 64, 1728, 1728),
    ],
)
def test_elements_received(name: str, tp: int, forward: float, backward: float) -> None:
    """M = K = 64, N = 256: counted on the blocks of the papers.

    2D (q-1)/q^2 (MK + KN) forward and twice that backward; 2.5D (q-1)(MK/dq^2 + KN/q^2) and twice that with
    2(d-1)/d KN/q^2; 3D (q-1)/q^3 (MK + KN + MN) each way.
    """
    assert received(name, tp, "forward") == forward
    assert received(name, tp, "backward") == backward


@pytest.mark.parametrize("tp", [8, 64])
def test_both_products_of_a_pair_cost_the_same_on_a_cube(tp: int) -> None:
    for phase in ("forward", "backward"):
        assert received("3d", tp, phase, DOWN) == received("3d", tp, phase)


def test_grids_pass_1d_where_tokens_far_exceed_the_width() -> None:
    """A pair of products on 64 ranks: what a grid receives of matrices does not grow with tokens."""

    def pair(name: str, rows: int) -> float:
        phases = ("forward", "backward")
        return sum(received(name, 64, phase, op, rows) for phase in phases for op in (UP, DOWN))

    many = {name: pair(name, 64 * 64) for name in ("1d", "2d", "3d")}
    few = {name: pair(name, 64) for name in ("1d", "2d", "3d")}
    assert many["3d"] < many["2d"] < many["1d"]
    assert all(many[name] / many["1d"] < few[name] / few["1d"] for name in ("2d", "3d"))


class TestEveryStrategy:
    @pytest.mark.parametrize("name", NAMES)
    def test_work_sums_to_the_whole(self, name: str) -> None:
        tp = DEGREES[name]
        found = local(name, tp)
        each = np.asarray(found.m) * found.n * found.k * found.groups
        assert float(np.ravel(each)[0]) * tp == 64 * 64 * 256

    @pytest.mark.parametrize("name", NAMES)
    def test_weights_sum_to_the_whole_times_their_copies(self, name: str) -> None:
        tp = DEGREES[name]
        copies = tp / TENSORS[name].weight_ranks(np.array([tp]))[0]
        assert float(np.ravel(local(name, tp).parameters)[0]) * tp == 64 * 256 * copies

    @pytest.mark.parametrize("name", NAMES)
    def test_one_rank_sends_nothing_and_holds_all(self, name: str) -> None:
        alone = local(name, 1)
        assert not any(np.any(call.payload_bytes) for call in alone.calls)
        assert float(np.ravel(alone.parameters)[0]) == 64 * 256

    @pytest.mark.parametrize("name", NAMES)
    def test_price_is_positive_and_grows_with_tokens(self, name: str) -> None:
        tp = DEGREES[name]
        steps = [
            case(DENSE, f"{tp}xH100" if tp > 4 else "4xH100", tp=tp, mbs=mbs, gbs=8, tensor=name).estimate()
            for mbs in (4, 8)
        ]
        traffic = [dict(step.breakdown_s)["tp"] for step in steps]
        # Half as many micro-batches, each of twice the tokens: strips of weights go once less.
        assert 0 < traffic[1] <= traffic[0] * 1.001
        assert memory(steps[1].stages[0], "activations") == pytest.approx(
            2 * memory(steps[0].stages[0], "activations"), rel=0.35 if name == "3d" else 0.02
        )

    @pytest.mark.parametrize("name", NAMES)
    def test_groups_are_inside_the_tensor_group(self, name: str) -> None:
        tp = DEGREES[name]
        for stride, ranks in TENSORS[name].groups(columns(tp=tp, sp=True, tensor=name)).values():
            assert tp % (int(stride[0]) * int(ranks[0])) == 0 or int(ranks[0]) == 1

    @pytest.mark.parametrize("name", NAMES)
    def test_plans_name_it(self, name: str) -> None:
        row = PlanRow(tp=DEGREES[name], tensor=name, mbs=4, gbs=4)
        assert parse_row(row.format(), devices=row.devices, global_batch=4, schedules=()) == row
        assert not row_problems(row, DENSE, 4096, row.devices)


@pytest.mark.parametrize(
    ("token", "tp"), [("tp2d2", 4), ("tp2d4", 16), ("tp25d2x2", 8), ("tp25d4x2", 32), ("tp3d2", 8), ("tp3d4", 64)]
)
def test_tokens_name_sides(token: str, tp: int) -> None:
    row = parse_row(f"{token}.dp1", devices=tp, global_batch=1, schedules=())
    assert (row.tp, row.format().split(".", maxsplit=1)[0]) == (tp, token)


@pytest.mark.parametrize(
    ("token", "fix"),
    [
        ("tp2d2x2", "tp2d2"),
        ("tp25d2", "tp25d2x2"),
        ("tp25d2x4", "tp25d3x2"),
        ("tp25d16x2", "tp25d8x8"),
        ("tp3d2x2", "tp3d2"),
    ],
)
def test_sides_that_make_no_grid_are_refused_with_the_nearest(token: str, fix: str) -> None:
    with pytest.raises(InputError, match=f"use {fix}"):
        parse_row(token, devices=8, global_batch=1, schedules=())


@pytest.mark.parametrize(
    ("row", "field", "fix"),
    [
        (PlanRow(tp=6, tensor="2d", mbs=2, gbs=2), "tp", "use tp2d2"),
        (PlanRow(tp=12, tensor="3d", mbs=4, gbs=4), "tp", "use tp3d2"),
        (PlanRow(tp=4, tensor="2d", mbs=3, gbs=3), "mbs", "use mbs 4"),
        (PlanRow(tp=8, tensor="3d", mbs=6, gbs=6), "mbs", "use mbs 8"),
        (PlanRow(tp=4, tensor="2d", mbs=2, gbs=2, cp=(("p2p", 2),)), "cp", "leave cp at 1"),
    ],
)
def test_degrees_that_do_not_go_are_refused_with_the_nearest(row: PlanRow, field: str, fix: str) -> None:
    found = [problem for problem in row_problems(row, DENSE, 4096, row.devices) if problem.field == field]
    assert any(fix in problem.fix for problem in found)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=lambda grid: grid.name)
def test_every_degree_of_a_shape_has_one_name(grid: object) -> None:
    shape = GRIDS[grid.name]
    for degree in shape.degrees(200):
        sides = shape.sides(degree)
        assert sides is not None
        assert shape.degree(*sides) == degree


def test_gathered_blocks_of_a_cube_are_kept() -> None:
    """A rank keeps q times its own part of the inputs of products, and of matrices; full recompute keeps neither."""
    one, three = (case(DENSE, "8xH100", tp=8, mbs=4, gbs=4, tensor=name).estimate() for name in ("1d", "3d"))
    assert memory(three.stages[0], "activations") > 1.2 * memory(one.stages[0], "activations")
    one, three = (
        case(DENSE, "8xH100", tp=8, mbs=4, gbs=4, tensor=name, recompute="full").estimate() for name in ("1d", "3d")
    )
    assert memory(three.stages[0], "activations") == pytest.approx(memory(one.stages[0], "activations"), rel=0.2)


def test_bytes_are_those_of_collectives() -> None:
    """The (g-1)/g above are what the kernels charge on links without latency."""
    span = group_span(1, np.array([4]), [8])
    assert float(np.ravel(all_gather_s(np.array([4.0]), inside=span, rates=[BYTES]))[0]) == pytest.approx(3.0)
    assert float(np.ravel(all_reduce_s(np.array([4.0]), inside=span, rates=[BYTES]))[0]) == pytest.approx(6.0)
