"""Changes that make an illegal row legal: nearest values first, the data degree taking the rest."""

from __future__ import annotations

from dataclasses import replace

from meshwright.planning.repair.changes import neighbours, repairs, with_degree, with_micro_batch
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from tests.estimate.cases import DENSE


def changed(row: PlanRow, field: str, devices: int) -> list[object]:
    """Values of a field in repairs that change it."""
    return [getattr(one.row, field) for one in repairs(row, DENSE, devices, PRECISIONS["bf16"]) if one.lever == field]


def test_micro_batches_divide_the_sequences_of_a_data_rank() -> None:
    """Sixteen sequences on two ranks: eight each, which 3 does not divide and 1, 2 and 4 do."""
    assert {1, 2, 4} <= set(changed(PlanRow(dp=2, mbs=3, gbs=16), "mbs", 2))


def test_interleaved_groups_follow_the_number_of_micro_batches() -> None:
    row = PlanRow(pp=3, vpp=2, dp=8, mbs=2, gbs=96, schedule="interleaved")  # 6 micro-batches
    found = {change.text: change.row for change in neighbours(row, DENSE, 24)}

    assert found["mbs 2 -> 1"].schedule == "interleaved"  # 12
    halved = replace(row, gbs=128, schedule="interleaved-group4")  # 8
    assert with_micro_batch(halved, 1).schedule == "interleaved-group4"  # 16
    assert with_micro_batch(halved, 4).schedule == "interleaved-group4"  # 4, all of them
    assert with_degree(halved, "pp", 6, 24).schedule == "interleaved-group8"  # 16 on 6 workers
    stated = replace(row, schedule="interleaved-group6")
    assert with_micro_batch(stated, 1).schedule == "interleaved-group6"
