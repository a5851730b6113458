"""Changes that make an illegal row legal: nearest values first, the data degree taking the rest."""

from __future__ import annotations

from meshwright.planning.repair.changes import repairs
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from tests.estimate.cases import DENSE


def changed(row: PlanRow, field: str, devices: int) -> list[object]:
    """Values of a field in repairs that change it."""
    return [getattr(one.row, field) for one in repairs(row, DENSE, devices, PRECISIONS["bf16"]) if one.lever == field]


def test_micro_batches_divide_the_sequences_of_a_data_rank() -> None:
    """Sixteen sequences on two ranks: eight each, which 3 does not divide and 1, 2 and 4 do."""
    assert {1, 2, 4} <= set(changed(PlanRow(dp=2, mbs=3, gbs=16), "mbs", 2))
