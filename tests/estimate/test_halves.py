"""Layers on halves of a micro-batch: what their collectives cost beside the other half, and where they have none."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload

LLAMA, MIXTRAL = models.spec("llama-2-13b"), models.spec("mixtral-8x7b")
WHERE = resolve_gpus("8xH100")


def priced(plan: str, seq_len: int = 4096) -> StepEstimate:
    row = parse_row(plan, devices=8, global_batch=16, schedules=())
    workload = Workload(seq_len=seq_len, global_batch=16)
    return estimate_plan(expand(row, LLAMA, seq_len), LLAMA, WHERE, workload)


def exposed_s(one: StepEstimate) -> float:
    return dict(one.breakdown_s)["tp"]


@pytest.mark.parametrize("plan", ["tp8.nosp.dp1.mbs2", "tp8.dp1.mbs2"])
def test_the_other_half_hides_collectives_that_its_own_product_cannot(plan: str) -> None:
    """Sums stay exposed where nothing but the product before them is there; the products of halves are smaller."""
    bulk, halves = priced(plan), priced(f"{plan}.tpov-halves")
    assert exposed_s(halves) < 0.5 * exposed_s(bulk)
    assert halves.step_time_s < 0.95 * bulk.step_time_s
    assert dict(halves.breakdown_s)["compute"] > dict(bulk.breakdown_s)["compute"]
    assert halves.peak_memory_bytes == bulk.peak_memory_bytes


def test_short_micro_batches_pay_more_for_launches_than_they_hide() -> None:
    short = [priced(f"tp8.dp1.mbs2{how}", 128).step_time_s for how in ("", ".tpov-halves")]
    assert short[0] < short[1]


@pytest.mark.parametrize(
    ("plan", "model", "rule"),
    [
        ("tp8.dp1.mbs1.tpov-halves", LLAMA, "halves of whole sequences"),
        ("dp8.mbs2.tpov-halves", LLAMA, "no tensor rank waits"),
        ("tp2.dp4.mbs2.tpov-halves", MIXTRAL, "tokens of whole micro-batches"),
    ],
)
def test_what_has_no_halves_is_refused(plan: str, model: object, rule: str) -> None:
    row = parse_row(plan, devices=8, global_batch=16, schedules=())
    assert any(rule in problem.why for problem in row_problems(row, model, 4096, 8))  # type: ignore[arg-type]


def test_the_word_is_read_and_written_and_one_overlap_is_stated() -> None:
    row = parse_row("tp8.dp1.mbs2.gbs16.tpov-halves", devices=8, global_batch=16, schedules=())
    found, _ = homogeneous(expand(row, LLAMA, 4096))
    assert found is not None
    assert row_from(found, gbs=16) == row
    assert "tpov-halves" in row.format()
    with pytest.raises(InputError, match="tpov"):
        parse_row("tp8.tpov.tpov-halves", devices=8, global_batch=16, schedules=())
