"""Steps of micro-batches grouped by time: as long as rows for equal sequences, shorter than rows without a mask."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.timeline import step_timeline
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE

ROW = PlanRow(tp=2, pp=4, dp=1, gbs=32)
LENGTHS = ((128, 0.5), (300, 0.25), (700, 0.15), (2048, 0.08), (8192, 0.02))


def step(packing: str, row: PlanRow = ROW, lengths: object = LENGTHS, **work: object) -> StepEstimate:
    workload = Workload(seq_len=8192, global_batch=row.gbs, sequence_lengths=lengths, packing=packing, **work)
    return estimate_plan(expand(row, DENSE, 8192), DENSE, resolve_gpus(f"{row.devices}xA100-80"), workload)


def test_sequences_of_whole_rows_take_the_time_of_rows() -> None:
    packed, grouped = (step(packing, lengths=((8192, 1.0),)) for packing in ("pack", "dynapipe"))
    assert grouped.step_time_s == pytest.approx(packed.step_time_s, rel=1e-6)
    assert grouped.filling is not None
    assert grouped.filling.micro_batches == 32
    assert grouped.filling.padding == pytest.approx(0.0, abs=1e-9)
    assert grouped.peak_memory_bytes == packed.peak_memory_bytes


def test_the_same_sequences_are_trained_with_less_padding_than_in_bins() -> None:
    packed, grouped, bins = (step(packing) for packing in ("pack", "dynapipe", "bins"))
    assert packed.filling is not None
    assert grouped.filling is not None
    assert bins.filling is not None
    assert grouped.filling.tokens_per_step == packed.filling.tokens_per_step
    assert grouped.filling.packed_step_time_s == packed.step_time_s
    assert 0.0 <= grouped.filling.padding < bins.filling.padding
    assert sum(seconds for _, seconds in grouped.breakdown_s) == pytest.approx(grouped.step_time_s)
    rate = grouped.tokens_per_s_per_device * grouped.step_time_s
    assert rate == pytest.approx(packed.tokens_per_s_per_device * packed.step_time_s)


def test_it_gains_most_over_rows_without_a_mask_and_the_more_the_longer_rows_are() -> None:
    """As published: gains over packing grow with the longest length, whose square every packed row pays."""
    gains = []
    for seq in (2048, 8192):
        rates = {}
        for packing in ("concat", "dynapipe"):
            row = replace(ROW, gbs=32 * 8192 // seq)
            work = Workload(
                seq_len=seq,
                global_batch=row.gbs,
                sequence_lengths=LENGTHS,
                packing=packing,
                attention_kernel="materialised",
            )
            found = estimate_plan(expand(row, DENSE, seq), DENSE, resolve_gpus("8xA100-80"), work)
            rates[packing] = found.tokens_per_s_per_device
        gains.append(rates["dynapipe"] / rates["concat"])
    assert 1.0 < gains[0] < gains[1]


def test_long_pipelines_wait_for_long_micro_batches() -> None:
    shallow, deep = (step("dynapipe", replace(ROW, tp=8 // pp, pp=pp)) for pp in (2, 8))
    assert (
        dict(shallow.breakdown_s)["bubble"] / shallow.step_time_s < dict(deep.breakdown_s)["bubble"] / deep.step_time_s
    )


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1"])
def test_other_schedules_run_as_many_micro_batches_as_they_can(schedule: str) -> None:
    row = replace(ROW, vpp=3 if schedule == "interleaved" else 1, schedule=schedule, gbs=8)
    found = step("dynapipe", row)
    assert found.filling is not None
    assert found.filling.micro_batches is not None
    if schedule == "interleaved":
        assert round(found.filling.micro_batches) % 4 == 0
    assert found.filling.packed_step_time_s is not None
    assert found.step_time_s < 1.5 * found.filling.packed_step_time_s


def test_the_planner_ranks_plans_by_their_micro_batches() -> None:
    found = mw.plan(
        DENSE,
        gpus="8xA100-80",
        lengths=LENGTHS,
        packing="dynapipe",
        seq_len=8192,
        global_batch=32,
        pin=("pp=4", "tp=2"),
    )
    times = [plan.estimate.step_time_s for plan in found.plans]
    assert times == sorted(times)
    assert found.certificate is not None
    assert not found.certificate.optimal
    assert "with packed rows" in found.verdict.text
    again = mw.estimate(plan=found.best)
    assert again.best.estimate == found.best.estimate


def test_what_it_cannot_group_is_refused() -> None:
    with pytest.raises(InputError, match="one kind of device"):
        mw.plan(DENSE, gpus="8xA100-80,8xH100", lengths=LENGTHS, packing="dynapipe")
    plan, where = expand(ROW, DENSE, 8192), resolve_gpus("8xA100-80")
    work = Workload(seq_len=8192, global_batch=32, sequence_lengths=LENGTHS, packing="dynapipe")
    with pytest.raises(UnsupportedError, match="drawn"):
        step_timeline(plan, DENSE, where, work)
    one, other = (
        expand(replace(ROW, pp=2), DENSE, 8192).pipelines[0],
        expand(replace(ROW, pp=2), DENSE, 8192).pipelines[0],
    )
    moved = tuple(replace(w, devices=tuple((a + 4, b + 4) for a, b in w.devices)) for w in other.workers)
    both = ExecutionPlan(
        strategies=expand(replace(ROW, pp=2), DENSE, 8192).strategies, pipelines=(one, replace(other, workers=moved))
    )
    with pytest.raises(UnsupportedError, match="one pipeline"):
        estimate_plan(both, DENSE, where, replace(work, global_batch=64))
