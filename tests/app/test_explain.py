"""`explain`: every rung and neighbour is a plan that was really priced."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from meshwright import estimate, plan
from meshwright.app.explain import Explanation, explain
from meshwright.errors import InputError
from meshwright.estimate.price import estimate_plan
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.repair.changes import neighbours, with_data_degree
from meshwright.planning.variants import equal_shares, evenly, variants
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from tests.app.questions import GPUS, MODEL, best_plans
from tests.estimate.cases import DENSE
from tests.estimate.mixed import Stage, plan_of


def test_every_rung_and_neighbour_of_a_2d_plan_says_its_change() -> None:
    found = explain(estimate("llama-3-8b", "tp4-2d.dp2.mbs4.z1", gpus="8xH100")[0])
    assert "add tp2d2" in [step.change for step in found.ladder]
    assert all(step.change.strip() for step in (*found.ladder, *found.neighbours))


def test_the_ladder_climbs_from_plain_data_parallelism_to_the_plan() -> None:
    chosen = estimate("llama-3-70b", "tp8.pp4.vpp2.z1.rc-sel.tpov", gpus="64xH100")[0]
    found = explain(chosen)
    changes = [step.change for step in found.ladder]
    assert changes == [
        "start: plain data parallelism",
        "add z1",
        "add tp8",
        "add pp4",
        "add rc-sel",
        "add vpp2",
        "add tpov",
    ]
    assert found.ladder[0].outcome == "no"
    assert "does not fit (" in found.ladder[0].text
    assert found.ladder[-1].name == chosen.name
    assert found.ladder[-1].step_time_s == chosen.estimate.step_time_s


def test_rungs_are_priced_as_estimate_prices_them() -> None:
    for step in explain(best_plans()[1]).ladder:
        again = estimate(MODEL, step.name, gpus=GPUS)[0].estimate
        assert step.step_time_s == pytest.approx(again.step_time_s)
        assert step.peak_memory_bytes == pytest.approx(again.fullest.peak_memory_bytes)


def test_no_neighbour_of_the_best_plan_fits_and_is_faster() -> None:
    best = best_plans()[0]
    for step in explain(best).neighbours:
        if step.outcome == "fits" and "off-" not in step.name:
            assert step.step_time_s is not None
            assert step.step_time_s >= best.estimate.step_time_s * (1 - 1e-9), step


def test_neighbours_say_why_they_lose() -> None:
    found = explain(estimate(MODEL, "tp2.pp2.z1.mbs2", gpus=GPUS)[0])
    by_outcome = {step.outcome: step for step in found.neighbours}
    assert "does not fit" in by_outcome["no"].text if "no" in by_outcome else True
    slower = [step for step in found.neighbours if "slower" in step.text]
    assert slower
    assert all("%" in step.text for step in slower)


def test_the_sensitivities_are_ordered_and_point_the_right_way() -> None:
    effects = best_plans()[0].explain().sensitivity
    assert effects
    spans = [effect.step_time_worse_s - effect.step_time_better_s for effect in effects]
    assert spans == sorted(spans, reverse=True)
    assert all(span > 0 for span in spans)
    assert "16-bit GEMM" in effects[0].name


def test_a_plan_file_is_enough(tmp_path: Path) -> None:
    file = best_plans()[0].save(tmp_path / "plan.json")
    found = explain(file)
    assert found.estimate == best_plans()[0].estimate
    json.dumps(found.to_dict(), allow_nan=False)
    assert "start: plain data parallelism" in str(found)


def test_the_one_line_form_alone_is_not_enough() -> None:
    with pytest.raises(InputError, match="no plan file"):
        explain("tp8.pp4")


def test_experts_are_a_rung_of_their_own() -> None:
    chosen = estimate("mixtral-8x7b", "tp2.ep8.z1", gpus="16xH100")[0]
    assert "add ep8" in [step.change for step in explain(chosen).ladder]


def test_neighbours_without_an_order_of_exchanges_and_gradients_say_so() -> None:
    found = explain(estimate("mixtral-8x7b", "ep8.epfirst.z1", gpus="16xH100")[0])
    sharded = [step for step in found.neighbours if ".z3." in step.name]
    assert sharded
    assert all("prioritised" in step.text for step in sharded)


def test_neighbours_use_all_devices_and_differ() -> None:
    model = models.resolve(MODEL)
    row = with_data_degree(PlanRow(tp=2, pp=2, vpp=4, gbs=64, schedule="interleaved", sharding="z1"), 8)
    found = list(neighbours(row, model, 8))
    rows = [change.row for change in found]
    assert len(set(rows)) == len(rows)
    assert row not in rows
    assert all(change.row.devices <= 8 or change.row.dp == 1 for change in found)
    assert {"tp", "pp", "cp", "mbs", "vpp", "recompute", "sharding", "tp_overlap", "offload"} <= {
        c.lever for c in found
    }


def mixed_job() -> Job:
    """Two pipelines through H100 and A100-80, the first with more than its share of the batch."""
    whole, half = LayerStrategy(tensor=Tensor1D(degree=4)), LayerStrategy(tensor=Tensor1D(degree=2))
    made = plan_of(([Stage(0, whole, 8), Stage(8, whole, 4)], 1, 6), ([Stage(4, half, 7), Stage(12, half, 5)], 1, 2))
    return Job(
        model=DENSE,
        cluster=resolve_gpus("8xH100,8xA100-80"),
        workload=Workload(seq_len=2048, global_batch=made.global_batch),
        plan=made,
    )


@cache
def explained() -> Explanation:
    """One explanation for all tests: many plans are priced for it."""
    return explain(mixed_job())


def test_unequal_stages_have_a_ladder_of_their_own() -> None:
    job, found = mixed_job(), explained()
    assert [step.change for step in found.ladder] == [
        "start: layers and batch shared evenly",
        "add its layers by stage",
        "add its shares of the batch",
    ]
    assert found.ladder[-1].step_time_s == found.estimate.step_time_s
    even = evenly(job.plan)
    assert even is not None
    shared = equal_shares(even)
    assert shared is not None
    assert [pipeline.num_micro_batches for pipeline in shared.pipelines] == [4, 4]
    assert {worker.chunks[0].num_layers for pipeline in shared.pipelines for worker in pipeline.workers} == {6}
    start = estimate_plan(shared, job.model, job.cluster, job.workload)
    assert found.ladder[0].step_time_s == start.step_time_s


def test_changes_of_unequal_stages_are_plans_of_the_same_batch() -> None:
    job = mixed_job()
    changes = {variant.change: variant.plan for variant in variants(job)}
    words = set(changes)
    assert {
        "pipeline 0 one layer from stage 0 to stage 1",
        "one micro-batch from pipeline 1 to pipeline 0",
        "pipeline 1 stage 1 recompute none -> full",
    } <= words
    for changed in changes.values():
        assert changed.num_layers == job.plan.num_layers
        assert changed.global_batch == job.plan.global_batch
        assert changed != job.plan
    assert {variant.lever for variant in variants(job)} == {"layers", "micro-batches", "recompute", "mbs"}
    shown = {step.change: step.step_time_s for step in explained().neighbours}
    again = "one micro-batch from pipeline 1 to pipeline 0"
    assert shown[again] == estimate_plan(changes[again], job.model, job.cluster, job.workload).step_time_s


def test_stages_of_several_chunks_are_changed_by_group() -> None:
    job = plan("llama-3-8b", gpus="8xH100,8xA100-80", schedule="interleaved", top=1).plans[0].job
    assert isinstance(job, Job)
    assert max(len(worker.chunks) for worker in job.plan.pipelines[0].workers) > 1
    found = list(variants(job))
    assert {"tp", "recompute", "sharding"} <= {variant.lever for variant in found}
    assert {"H100", "A100-80"} <= {variant.change.split(":")[0] for variant in found}
    for variant in found:
        assert variant.plan.global_batch == job.plan.global_batch
        assert variant.plan != job.plan


def test_numbers_of_every_group_and_link_are_moved() -> None:
    named = {effect.name for effect in explained().sensitivity}
    assert any(name.startswith("H100: ") for name in named)
    assert any(name.startswith("A100-80: ") for name in named)
