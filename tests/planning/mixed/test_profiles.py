from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from meshwright import plan as plan_measured
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.formats.plan_json import read_document
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.mixed.profiles import priced_cluster

PROFILES = Path(__file__).parents[2] / "data" / "profiles"

CLUSTER = """
[[group]]
name = "new"
device = "Alpha-32"
nodes = {new}
devices_per_node = 2
memory_gib = 32
[[group]]
name = "old"
device = "Beta-12"
nodes = 2
devices_per_node = 2
memory_gib = {old_gib}
zone = "{zone}"
"""


def cluster_file(folder: Path, *, new: int = 2, old_gib: float = 12, zone: str = "z1") -> Path:
    file = folder / "cluster.toml"
    file.write_text(CLUSTER.format(new=new, old_gib=old_gib, zone=zone))
    return file


def rows_of(plans: PlanSet) -> list[dict[str, Any]]:
    """The stages of the best plan as data."""
    return plans.to_dict()["plans"][0]["estimate"]["stages"]


def step_s(plans: PlanSet) -> float:
    return plans.best.estimate.step_time_s


def price(plans: PlanSet) -> float:
    found = plans.best.estimate.price_per_step
    assert found is not None
    return found


@cache
def planned(folder: Path) -> PlanSet:
    return plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=cluster_file(folder))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> PlanSet:
    return planned(tmp_path_factory.mktemp("mixed"))


def test_the_plan_holds_every_layer_trains_the_batch_and_fits(mixed: PlanSet) -> None:
    assert mixed.best.plan.num_layers == 4
    assert mixed.best.plan.global_batch == 48
    assert mixed.best.plan.devices <= 8
    for row in rows_of(mixed):
        assert row["peak_memory_bytes"] <= row["capacity_bytes"]


def test_stages_of_each_pipeline_name_every_layer_once_and_in_order(mixed: PlanSet) -> None:
    held: dict[int, list[int]] = {}
    for row in rows_of(mixed):
        own = [layer for first, last in row["layers"] for layer in range(first, last + 1)]
        held.setdefault(row["pipeline"], []).extend(own)
    assert held
    assert all(layers == [0, 1, 2, 3] for layers in held.values())


def test_a_stage_lies_on_devices_of_its_group_and_no_tensor_group_straddles_nodes(mixed: PlanSet) -> None:
    rows = rows_of(mixed)
    workers = [worker for pipeline in mixed.best.plan.pipelines for worker in pipeline.workers]
    assert len(rows) == len(workers)
    for row, worker in zip(rows, workers, strict=True):
        ((first, last),) = worker.devices
        assert (last < 4) == (row["group"] == "new")
        assert last - first + 1 == row["devices"] == row["tp"] * row["dp"]
        assert first % row["tp"] == 0


def test_it_is_no_worse_than_either_kind_alone_and_no_better_than_the_bound(mixed: PlanSet) -> None:
    assert mixed.mixing is not None
    alone = [one.step_time_s for one in mixed.mixing.alone if one.step_time_s is not None]
    assert len(alone) == 2
    bounds = mixed.mixing.searched.bound_s, mixed.mixing.searched.bound_of_shapes_s
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[0] < bounds[1] <= step_s(mixed) <= min(alone) * (1 + 1e-12)
    assert len(mixed.to_dict()["verdict"]["alone"]) == 2


def test_the_document_is_json_and_its_parts_sum_to_the_step(mixed: PlanSet) -> None:
    document = json.loads(json.dumps(mixed.to_dict(), allow_nan=False))
    assert document["schema"] == "meshwright.plan-set/1"
    estimate = document["plans"][0]["estimate"]
    assert sum(estimate["breakdown_s"].values()) == pytest.approx(estimate["step_time_s"])
    assert min(estimate["breakdown_s"].values()) >= -1e-12
    assert {row["group"] for row in estimate["stages"]} <= {"new", "old"}


def test_a_kind_that_fits_nothing_is_left_idle_and_said(tmp_path: Path) -> None:
    plan = plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=cluster_file(tmp_path, old_gib=2.5))
    assert {row["group"] for row in rows_of(plan)} == {"new"}
    assert any("0 of 4 old used, 4 idle" in line for line in plan.warnings)
    assert "Mixing does not pay" in plan.verdict.text


def test_a_model_nobody_profiled_and_a_zone_nobody_measured(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="did you mean tiny"):
        plan_measured("tinny", profiles=PROFILES, global_batch=8, cluster=cluster_file(tmp_path))
    with pytest.raises(UnsupportedError, match="knows Beta-12 in z1"):
        plan_measured("tiny", profiles=PROFILES, global_batch=8, cluster=cluster_file(tmp_path, zone="z2"))


def test_a_device_nobody_profiled_and_one_of_unknown_memory() -> None:
    with pytest.raises(UnsupportedError, match="no times of tiny on H100"):
        plan_measured("tiny", profiles=PROFILES, global_batch=8, gpus="8xH100")
    with pytest.raises(InputError, match="memory of Alpha-32 is not known"):
        plan_measured("tiny", profiles=PROFILES, global_batch=8, gpus="2xAlpha-32")


def test_nothing_fits(tmp_path: Path) -> None:
    file = cluster_file(tmp_path)
    file.write_text(file.read_text().replace("memory_gib = 32", "memory_gib = 2.5").replace("= 12\n", "= 2.5\n"))
    with pytest.raises(InfeasibleError, match="does not fit"):
        plan_measured("tiny", profiles=PROFILES, global_batch=8, cluster=file)


def test_one_of_gpus_and_cluster() -> None:
    with pytest.raises(InputError, match="one of them"):
        plan_measured("tiny", profiles=PROFILES, global_batch=8)


def test_a_verb_that_needs_a_model_says_that_the_plan_has_none(mixed: PlanSet) -> None:
    with pytest.raises(UnsupportedError, match="measured layers instead of a model"):
        assert read_document(mixed.to_dict()).job


def test_the_text_says_who_holds_what(mixed: PlanSet) -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as capture:
        console.print(mixed)
    text = capture.get()
    assert "measured layers" in text
    assert "pipelines 0-" in text
    assert "slowest stage" not in text, "each pipeline is one stage, which is no slower than itself"
    assert "sensitivity: " in text
    assert "Memory of" in text


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    file = cluster_file(tmp_path)
    link = '[[link]]\nbetween = ["new", "old"]\nprice_per_gb = 0.5\n'
    file.write_text(file.read_text().replace("devices_per_node", "price_per_device_hour = 3\ndevices_per_node") + link)
    return file


def test_the_cheapest_plan_rents_what_pays_and_says_what_it_costs(tmp_path: Path) -> None:
    file = cluster_file(tmp_path)
    text = file.read_text()
    file.write_text(text.replace("nodes = 2\n", "nodes = 2\nprice_per_device_hour = 3\n", 1))
    with pytest.raises(InputError, match="no price is known for old"):
        plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=file, objective="cost")
    quick = plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=file, price=3.0)
    cheap = plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=file, price=3.0, objective="cost")
    assert price(cheap) < price(quick)
    assert step_s(cheap) > step_s(quick)
    assert any("at 3 USD/h" in line for line in cheap.verdict.why)
    assert any("the quickest plan takes" in line for line in cheap.verdict.why)
    assert any("not rented" in line for line in cheap.warnings)


def test_limits_are_kept_or_the_nearest_that_can_be_had_is_named(priced: Path) -> None:
    def planned_with(**limits: float | str) -> PlanSet:
        return plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=priced, **limits)

    quick = planned_with()
    cheap = planned_with(objective="cost")
    between_s = 0.5 * (step_s(quick) + step_s(cheap))
    timely = planned_with(max_step_time=f"{1e3 * between_s}ms")
    assert timely.aim.objective == "cost"
    assert step_s(timely) <= between_s * (1 + 1e-9)
    assert price(cheap) <= price(timely) <= price(quick) * (1 + 1e-9)
    budget = planned_with(max_price_per_step=price(timely))
    assert price(budget) <= price(timely) * (1 + 1e-9)
    assert step_s(budget) <= step_s(timely)
    with pytest.raises(InfeasibleError, match="the quickest found takes") as late:
        planned_with(max_step_time=step_s(quick) / 10)
    assert "allow --max-step-time" in str(late.value)
    with pytest.raises(InfeasibleError, match="the cheapest found takes"):
        planned_with(max_price_per_step=price(cheap) / 10)


def test_what_crosses_a_priced_link_is_paid_for(priced: Path) -> None:
    plan = plan_measured("tiny", profiles=PROFILES, global_batch=48, cluster=priced)
    estimate = plan.to_dict()["plans"][0]["estimate"]
    (link,) = estimate["traffic"]
    assert link["between"] == ["new", "old"]
    assert link["price_per_step"] == pytest.approx(0.5e-9 * (link["activation_bytes"] + link["gradient_bytes"]))
    used = sum(row["devices"] for row in rows_of(plan))
    devices = 3 * used * step_s(plan) / 3600
    assert estimate["price_per_step"] == pytest.approx(devices + link["price_per_step"])
    assert any("USD/GB" in line for line in plan.verdict.why)


def test_one_price_is_that_of_every_group_and_none_leaves_each_its_own() -> None:
    cluster = resolve_gpus("8xH100,8xA100-80")
    own = [group.price_per_device_hour for group in cluster.groups]
    assert [group.price_per_device_hour for group in priced_cluster(cluster, None).groups] == own
    assert [group.price_per_device_hour for group in priced_cluster(cluster, 1.25).groups] == [1.25, 1.25]
