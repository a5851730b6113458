"""Parts sum to their whole: seconds to the step, kinds to the peak, stages to the model; one row equals many rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.estimate.layout import expand
from meshwright.estimate.memory import MEMORY_KINDS
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.step import BREAKDOWN
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.plan import ExecutionPlan
from tests.estimate.cases import DENSE, LATENT, MIXED, TIED, Case, case, cases, memory, part


@given(cases())
def test_parts_sum_to_the_step(case: Case) -> None:
    estimate = case.estimate()
    assert tuple(name for name, _ in estimate.breakdown_s) == BREAKDOWN
    assert all(seconds >= -1e-12 * estimate.step_time_s for _, seconds in estimate.breakdown_s)
    busiest = max(stage.busy_s for stage in estimate.stages)
    assert 0 < busiest <= estimate.step_time_s * (1 + 1e-9)
    assert part(estimate, *BREAKDOWN) == pytest.approx(estimate.step_time_s, rel=1e-9)
    assert estimate.step_time_low_s < estimate.step_time_s < estimate.step_time_high_s
    device_s = estimate.step_time_s * case.cluster.devices
    assert estimate.tokens_per_s_per_device * device_s == pytest.approx(case.workload.tokens_per_step)
    assert 0 < estimate.mfu <= estimate.hfu
    assert estimate.mfu <= 1
    price = case.cluster.groups[0].price_per_hour
    assert estimate.price_per_step == (None if price is None else pytest.approx(price * device_s / 3600))


@given(cases())
def test_kinds_sum_to_the_peak_stages_to_the_model_and_degrees_to_the_devices(case: Case) -> None:
    estimate, row = case.estimate(), case.row
    for stage in estimate.stages:
        assert tuple(kind for kind, _ in stage.memory_bytes) == MEMORY_KINDS
        assert all(size >= 0 for _, size in stage.memory_bytes)
        assert memory(stage, *MEMORY_KINDS) == pytest.approx(stage.peak_memory_bytes, rel=1e-12)
    assert estimate.peak_memory_bytes == max(stage.peak_memory_bytes for stage in estimate.stages)
    assert (estimate.fits == "no") == (estimate.peak_memory_bytes > estimate.capacity_bytes)
    ranges = sorted(pair for stage in estimate.stages for pair in stage.layers)
    assert [layer for first, last in ranges for layer in range(first, last + 1)] == [*range(case.model.num_layers)]
    assert sum(stage.devices for stage in estimate.stages) == case.cluster.devices
    assert row.tp * row.cp_degree * row.pp * row.dp == case.cluster.devices
    assert len(estimate.stages) == row.pp
    assert all(stage.devices == stage.tp * stage.cp * stage.dp for stage in estimate.stages)


@given(cases())
def test_a_row_comes_back_from_its_plan(case: Case) -> None:
    """A block no smaller than its largest chunk recomputes everything, which is called full."""
    plan = expand(case.row, case.model, case.workload.seq_len)
    found = row_of(plan, case.model)
    assert found is not None
    if found != case.row:
        assert case.row.recompute == "block"
        largest = max(chunk.num_layers for pipeline in plan.pipelines for chunk in pipeline.chunks())
        assert case.row.recompute_layers >= largest
    assert expand(found, case.model, case.workload.seq_len) == plan


def spread(plan: ExecutionPlan, copies: int) -> ExecutionPlan:
    """The same plan with its strategies several times in the table, chunk after chunk from another copy."""
    size = len(plan.strategies)
    (pipeline,) = plan.pipelines
    workers = []
    for number, worker in enumerate(pipeline.workers):
        chunks = []
        for place, chunk in enumerate(worker.chunks):
            copy = (number + place) % copies
            runs = tuple(replace(run, strategy=run.strategy + copy * size) for run in chunk.runs)
            chunks.append(replace(chunk, runs=runs))
        workers.append(replace(worker, chunks=tuple(chunks)))
    return ExecutionPlan(strategies=plan.strategies * copies, pipelines=(replace(pipeline, workers=tuple(workers)),))


@settings(max_examples=settings.default.max_examples // 2)
@given(cases(), st.integers(2, 3))
def test_one_row_equals_many_rows(case: Case, copies: int) -> None:
    one = case.estimate()
    plan = spread(expand(case.row, case.model, case.workload.seq_len), copies)
    many = estimate_plan(plan, case.model, case.cluster, case.workload)
    assert many.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)
    assert dict(many.breakdown_s) == pytest.approx(dict(one.breakdown_s), rel=1e-6, abs=1e-9 * one.step_time_s)
    for other, stage in zip(many.stages, one.stages, strict=True):
        assert dict(other.memory_bytes) == pytest.approx(dict(stage.memory_bytes), rel=1e-9)


def test_unused_slots_are_bubble() -> None:
    """1F1B of equal stages: (p - 1) / m of the work. Layers dominate, so head and embedding blur it a little."""
    estimate = case(replace(DENSE, vocab=1000), "4xH100", pp=4, mbs=1, gbs=12).estimate()
    work = part(estimate, "compute", "host")
    assert part(estimate, "bubble") / work == pytest.approx(3 / 12, rel=0.05)


@pytest.mark.parametrize(
    ("model", "row"),
    [
        (DENSE, {"tp": 4, "pp": 2}),
        (TIED, {"tp": 2, "dp": 4}),
        (MIXED, {"dp": 8, "ep": 8}),
        (LATENT, {"pp": 4, "dp": 2, "ep": 2}),
    ],
)
def test_all_parameters_stand_somewhere(model: object, row: dict[str, int]) -> None:
    """Weights of all stages, times what shares them, are the model's; tied tables and prediction modules may add."""
    one = case(model, "8xH100", gbs=8, **row)
    estimate = one.estimate()
    ranks = one.row.tp if not one.model.is_moe else 1
    held = sum(memory(stage, "weights") for stage in estimate.stages) / 2
    if not one.model.is_moe:
        positions = one.model.learned_positions * one.model.hidden  # on every tensor rank
        assert held * ranks == pytest.approx(one.model.parameters + (ranks - 1) * positions, rel=2e-3)
    else:
        experts = sum(
            count * kind.mlp.experts * kind.mlp.expert_parameters(one.model.hidden)
            for kind, count in one.model.kind_counts().items()
            if kind.mlp.kind == "moe"
        )
        module = one.model.mtp_parameters
        if one.model.mtp_layers:
            mlp = one.model.last_layer().mlp
            experts += mlp.experts * mlp.expert_parameters(one.model.hidden)
        rest = one.model.parameters + module - experts
        assert held == pytest.approx(rest + experts / one.row.ep, rel=2e-3)
