"""Verbs on the file of a plan of measured layers: all priced by the rule that planned it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright import check, estimate, trace
from meshwright import plan as plan_measured
from meshwright.app.compare import compare
from meshwright.app.explain import explain
from meshwright.app.export import export
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.plan_json import read_job, write_job
from meshwright.planning.compose.sources.profiles.price import price_job
from meshwright.specs.measured import MeasuredJob
from tests.formats.test_plan_json import example
from tests.planning.mixed.test_profiles import cluster_file

PROFILES = Path(__file__).parents[1] / "data" / "profiles"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(scope="module")
def planned(folder: Path) -> PlanSet:
    return plan_measured("tiny", profiles=PROFILES, global_batch=45, cluster=cluster_file(folder))


@pytest.fixture(scope="module")
def plan_file(folder: Path, planned: PlanSet) -> str:
    return str(planned.best.save(folder / "plan.json"))


def test_the_file_holds_the_job_and_prices_to_the_planned_step(planned: PlanSet, plan_file: str) -> None:
    read = read_job(plan_file)
    assert read.planned == planned.best.job
    assert not read.warnings
    assert isinstance(read.planned, MeasuredJob)
    assert price_job(read.planned).step_time_s == pytest.approx(planned.best.estimate.step_time_s, rel=1e-12)
    assert write_job(read.planned, read.made_with) == Path(plan_file).read_text()
    assert read_job(json.dumps(planned.to_dict())).planned == planned.best.job


@pytest.mark.parametrize("batch", [1, 7, 48, 96])
def test_any_batch_prices_to_the_planned_step(folder: Path, batch: int) -> None:
    plan = plan_measured("tiny", profiles=PROFILES, global_batch=batch, cluster=cluster_file(folder)).best
    assert isinstance(plan.job, MeasuredJob)
    assert plan.estimate.step_time_s == pytest.approx(price_job(plan.job).step_time_s, rel=1e-12)
    assert sum(dict(plan.estimate.breakdown_s).values()) == pytest.approx(plan.estimate.step_time_s)
    for stage in plan.estimate.stages:
        assert sum(dict(stage.memory_bytes).values()) == pytest.approx(stage.peak_memory_bytes)


def test_explain_prices_every_rung_and_neighbour(planned: PlanSet, plan_file: str) -> None:
    found = explain(plan_file)
    assert found.estimate.step_time_s == pytest.approx(planned.best.estimate.step_time_s, rel=1e-12)
    assert found.ladder[-1].step_time_s == found.estimate.step_time_s
    assert found.neighbours
    times = [one.step_time_s for one in found.neighbours if one.outcome != "no"]
    assert times == sorted(times)
    assert {effect.basis for effect in found.sensitivity} == {"measured"}
    for effect in found.sensitivity:
        assert effect.step_time_better_s <= found.estimate.step_time_s <= effect.step_time_worse_s
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["schema"] == "meshwright.explanation/1"
    assert "measured layers" in str(found)


def test_the_timeline_ends_with_the_step_and_runs_every_micro_batch(planned: PlanSet, plan_file: str) -> None:
    found = trace(plan_file)
    estimate, timeline = found.step.estimate, found.step.timeline
    assert max(phase.end_s for phase in found.step.phases) == pytest.approx(estimate.step_time_s)
    tasks = sum(2 * one.num_micro_batches * len(one.workers) for one in planned.best.plan.pipelines)
    assert timeline.table.tasks == tasks
    np.testing.assert_allclose(timeline.busy_s, [stage.busy_s for stage in estimate.stages])
    rule_s = estimate.step_time_s - dict(estimate.breakdown_s)["dp"] - dict(estimate.breakdown_s)["optimizer"]
    assert timeline.makespan_s <= rule_s * (1 + 1e-9)
    assert "measured" not in found.title
    assert found.chrome(compress=False)


def test_two_plans_are_compared_and_one_of_a_model_is_not(folder: Path, plan_file: str) -> None:
    alone = plan_measured("tiny", profiles=PROFILES, global_batch=45, cluster=cluster_file(folder, old_gib=2.5)).best
    found = compare(plan_file, alone.job)
    assert found.estimates[1].step_time_s == pytest.approx(alone.estimate.step_time_s)
    assert sum(difference.second for difference in found.seconds) == pytest.approx(alone.estimate.step_time_s)
    assert ("devices", str(explain(plan_file).job.plan.devices), str(alone.plan.devices)) in found.settings
    assert found.pictures()
    other = plan_measured("tiny", profiles=PROFILES, global_batch=8, cluster=cluster_file(folder)).best
    assert "sequences/s" in compare(plan_file, other.job).text
    with pytest.raises(UnsupportedError, match="the other of a model"):
        compare(plan_file, example())


def test_check_says_what_does_not_fit(planned: PlanSet, plan_file: str) -> None:
    assert check(None, plan_file).ok
    document = json.loads(Path(plan_file).read_text())
    for group in document["cluster"]["groups"]:
        group["device"]["memory_bytes"] = 3.0e9
    found = check(None, read_job(json.dumps(document)).planned)
    assert found.exit_code == 5
    assert {violation.code for violation in found.violations} == {"MEM_STAGE"}
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_verbs_that_need_a_model_say_why_they_cannot(plan_file: str, tmp_path: Path) -> None:
    for attempt in (
        lambda: export(plan_file, "megatron", tmp_path / "launch"),
        lambda: estimate(None, plan_file),
        lambda: read_job(plan_file).job,
    ):
        with pytest.raises(UnsupportedError, match="measured layers instead of a model"):
            attempt()
    assert not (tmp_path / "launch").exists()
    with pytest.raises(InputError, match="gpus is given with a plan of measured layers"):
        trace(plan_file, gpus="8xH100")


def test_the_file_is_enough_and_says_when_the_profiles_changed(folder: Path) -> None:
    copy = folder / "profiles"
    shutil.copytree(PROFILES, copy)
    plan = plan_measured("tiny", profiles=copy, global_batch=45, cluster=cluster_file(folder)).best
    assert not any("profiles in" in note for note in explain(plan.job).notes)
    times = copy / "layer_times.csv"
    head, *rows = times.read_text().splitlines()
    place = head.split(",").index("fwd_ms")
    longer = []
    for row in rows:
        cells = row.split(",")
        cells[place] = str(2 * float(cells[place]))
        longer.append(",".join(cells))
    times.write_text("\n".join([head, *longer]) + "\n")
    changed = explain(plan.job)
    assert any("changed since" in note for note in changed.notes)
    assert changed.estimate.step_time_s == plan.estimate.step_time_s
    shutil.rmtree(copy)
    gone = explain(plan.job)
    assert any("are gone" in note for note in gone.notes)
    assert gone.estimate.step_time_s == plan.estimate.step_time_s


def _layer_less(profile: dict[str, Any]) -> None:
    profile["points"][0]["forward_s"].pop()


def _negative(profile: dict[str, Any]) -> None:
    profile["points"][0]["backward_s"][1] = -1.0


def _no_unsplit_sizes(profile: dict[str, Any]) -> None:
    profile["sizes"] = [one for one in profile["sizes"] if one["tp"] != 1]


def _all_layers_less(profile: dict[str, Any]) -> None:
    for one in (*profile["points"], *profile["sizes"]):
        for values in one.values():
            if isinstance(values, list):
                values.pop()


def _another_device(profile: dict[str, Any]) -> None:
    for point in profile["points"]:
        point["device"] = "Gamma-9"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_layer_less, "as the first point does"),
        (_negative, "cannot be negative"),
        (_no_unsplit_sizes, "must hold the layers at tp 1"),
        (_all_layers_less, "embedding and head not counted"),
        (_another_device, "was not measured"),
    ],
)
def test_a_file_whose_profile_cannot_be_is_refused(plan_file: str, spoil: Any, words: str) -> None:
    document = json.loads(Path(plan_file).read_text())
    spoil(document["profile"])
    with pytest.raises(InputError) as caught:
        read_job(json.dumps(document))
    assert words in str(caught.value)


def test_a_micro_batch_nobody_measured_is_refused(plan_file: str) -> None:
    document = json.loads(Path(plan_file).read_text())
    sizes = {point["micro_batch"] for point in document["profile"]["points"]}
    document["profile"]["points"] = [p for p in document["profile"]["points"] if p["micro_batch"] == max(sizes)]
    pipeline = document["pipelines"][0]
    pipeline["micro_batch"], pipeline["shapes"] = 3 * max(sizes), []
    with pytest.raises(InputError, match="cannot be priced"):
        explain(read_job(json.dumps(document)).planned)
