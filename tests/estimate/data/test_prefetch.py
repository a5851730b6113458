"""Weights gathered some layers ahead: what they hold and hide, and where there is nothing to gather."""

from __future__ import annotations

import pytest

from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.sums import sum_problems
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload

LLAMA, WHERE = models.spec("llama-3.1-8b"), resolve_gpus("8xH100")
LARGEST = LLAMA.last_layer().parameters(LLAMA.hidden)


def priced(words: str) -> StepEstimate:
    row = parse_row(f"dp8.{words}.mbs1.gbs8.rc-full", devices=8, global_batch=8, schedules=())
    return estimate_plan(expand(row, LLAMA, 4096), LLAMA, WHERE, Workload(seq_len=4096, global_batch=8))


def transient(words: str) -> float:
    return dict(priced(words).stages[0].memory_bytes)["transient"]


def test_every_layer_ahead_is_held_whole() -> None:
    """In 16 bits; the two of a plan that says nothing are the one at work and the next."""
    held = {depth: transient(f"fsdp.prefetch{depth}") for depth in (0, 1, 2, 4)}
    assert held[1] == transient("fsdp")
    per_layer = held[2] - held[1]
    assert per_layer >= 2 * LARGEST
    assert held[4] - held[1] == pytest.approx(3 * per_layer)
    assert held[1] - held[0] == pytest.approx(per_layer)


def test_nothing_ahead_is_waited_for() -> None:
    none, one, two = (priced(f"fsdp.prefetch{depth}") for depth in (0, 1, 2))
    assert dict(none.breakdown_s)["dp"] > 2 * dict(one.breakdown_s)["dp"]
    assert none.step_time_s > one.step_time_s == two.step_time_s


@pytest.mark.parametrize(
    "words", ["z1.prefetch2", "fsdp.prefetch33", "fsdp-keep.prefetch2", "z3.off-wo.prefetch2", "weipipe.prefetch2"]
)
def test_no_layers_are_gathered_ahead_where_none_are_gathered_or_there_are_fewer(words: str) -> None:
    row = parse_row(f"dp8.{words}", devices=8, global_batch=8, schedules=())
    assert [problem.field for problem in sum_problems(row.strategy(), 32)] == ["data.prefetch"]


def test_the_word_is_read_and_written() -> None:
    row = parse_row("dp8.fsdp.prefetch2.mbs1.gbs8", devices=8, global_batch=8, schedules=())
    found, _ = homogeneous(expand(row, LLAMA, 4096))
    assert found is not None
    assert row_from(found, gbs=8) == row
    assert "prefetch2" in row.format()
    assert "prefetch" not in parse_row("dp8.fsdp.prefetch1", devices=8, global_batch=8, schedules=()).format()
