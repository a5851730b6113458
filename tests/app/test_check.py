"""`check`: legal, fits, beaten; and the repairs it names do repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright import check, estimate, plan
from meshwright.errors import InputError, UnsupportedError, ViolationError
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D
from tests.app.questions import BATCH, GPUS, MODEL, best_plans
from tests.estimate.cases import DENSE
from tests.estimate.mixed import Stage, plan_of


def test_the_best_plan_is_fine() -> None:
    report = check(None, best_plans()[0])
    assert report.ok
    assert report.legal
    assert report.exit_code == 0
    assert report.better is None
    report.raise_violations()


def test_the_whole_run_is_said_where_its_tokens_are_stated() -> None:
    asked = {"global_batch": BATCH, "search": False}
    report = check(MODEL, "tp8", GPUS, tokens=1e12, price=2.0, carbon_intensity=0.1, **asked)

    assert report.run is not None
    assert report.run.carbon_kg
    assert "1T tokens" in report.text
    assert "USD" in report.text
    assert check(MODEL, "tp8", GPUS, **asked).run is None


def test_a_slow_plan_is_beaten_but_no_violation() -> None:
    report = check(MODEL, "tp8.rc-full", GPUS, global_batch=BATCH)
    assert report.ok
    assert report.better is not None
    assert report.better.gain > 0.02
    assert report.better.step_time_s == pytest.approx(best_plans()[0].estimate.step_time_s)
    assert "faster" in report.text


def test_updates_in_tiles_repair_a_plan_whose_copy_of_gradients_is_too_large() -> None:
    """The fp32 copy of 16-bit gradients: 4 bytes a parameter of gpt2-xl, 6.2 GB, on every rank without ZeRO."""

    def changes(name: str, dtype: str) -> dict[str, Any]:
        found = check("gpt2-xl", name, "8xV100-32", dtype=dtype, search=False)
        assert not found.ok
        return {repair.change: repair for repair in found.repairs}

    tiled = changes("dp8.mbs1.gbs64", "fp16")["whole updates -> updates in tiles of 1,800,000"]
    assert tiled.name == "dp8.mbs1.gbs64.tile1800000"
    there = estimate("gpt2-xl", tiled.name, gpus="8xV100-32", dtype="fp16")[0].estimate
    whole = estimate("gpt2-xl", "dp8.mbs1.gbs64", gpus="8xV100-32", dtype="fp16")[0].estimate
    assert there.fits != "no"
    saved = whole.fullest.peak_memory_bytes - there.fullest.peak_memory_bytes
    assert saved == pytest.approx(4 * 1.5576e9, rel=0.06)
    assert not any("tiles" in change for change in changes("dp8.mbs8.gbs64", "fp32"))


def test_a_plan_too_large_names_stage_and_repairs() -> None:
    report = check(MODEL, "tp1.z0.mbs8", GPUS, search=False)
    assert report.exit_code == 5
    violation = report.violations[0]
    assert (violation.code, violation.stage) == ("MEM_STAGE", 0)
    assert violation.need_bytes is not None
    assert violation.have_bytes is not None
    assert violation.need_bytes > violation.have_bytes
    assert report.repairs
    for repair in report.repairs:
        again = estimate(MODEL, repair.name, gpus=GPUS)[0].estimate
        assert again.fits != "no"
        assert again.step_time_s == pytest.approx(repair.step_time_s)
    assert [m.step_time_s for m in report.repairs if m.fits == "yes"] == sorted(
        m.step_time_s for m in report.repairs if m.fits == "yes"
    )
    with pytest.raises(ViolationError, match="stage 0"):
        report.raise_violations()


@pytest.mark.parametrize("row", ["tp3", "tp2.dp2", "pp8.vpp5.z1", "ep4.z1", "mbs3.z1.gbs1024", "tp6.pp3"])
def test_an_illegal_plan_has_a_repair_that_is_legal(row: str) -> None:
    report = check(MODEL, row, GPUS, search=False)
    assert not report.legal
    assert {violation.code for violation in report.violations} == {"LEGAL"}
    assert report.repairs
    assert estimate(MODEL, report.repairs[0].name, gpus=GPUS)[0].estimate.fits != "no"


def test_a_repair_of_the_chunks_keeps_the_schedule_where_it_can_and_says_so_where_it_cannot() -> None:
    repairs = {
        repair.name: repair.change for repair in check(MODEL, "pp4.zb-v.z1.mbs1.gbs64", GPUS, search=False).repairs
    }
    assert repairs["pp4.vpp2.dp2.z1.mbs1.gbs64.zb-v"] == "vpp 1 -> 2"
    assert repairs["pp4.dp2.z1.mbs1.gbs64"] == "schedule 1f1b"
    repairs = {
        repair.name: repair.change for repair in check(MODEL, "pp4.vpp2.gpipe.z1.mbs1.gbs8", GPUS, search=False).repairs
    }
    assert repairs["pp4.dp2.z1.mbs1.gbs8.gpipe"] == "vpp 2 -> 1"
    assert repairs["pp4.vpp2.dp2.z1.mbs1.gbs8"] == "schedule interleaved"


def test_a_repair_that_changes_the_batch_says_so() -> None:
    report = check(MODEL, "dp8.z1.mbs1.gbs12", GPUS, search=False)
    changed = [repair for repair in report.repairs if repair.changes_training]
    assert all("gbs" in repair.change for repair in changed)
    kept = [repair for repair in report.repairs if not repair.changes_training]
    assert report.repairs[: len(kept)] == tuple(kept)


def test_a_batch_that_nothing_else_divides_is_moved_to_the_nearest_that_does() -> None:
    repairs = check("gpt2", "dp8.mbs8.gbs100", GPUS, search=False).repairs
    assert {repair.change for repair in repairs if repair.changes_training} == {"gbs 100 -> 64", "gbs 100 -> 128"}


def test_the_document() -> None:
    document = check(MODEL, "z0.mbs8", GPUS, global_batch=BATCH).to_dict()
    assert document["schema"] == "meshwright.check/1"
    assert document["exit_code"] == 5
    assert document["violations"][0]["need_bytes"] > document["violations"][0]["have_bytes"]
    json.dumps(document, allow_nan=False)


def test_a_launch_script_is_the_plan_it_was_written_from(tmp_path: Path) -> None:
    best = next(entry for entry in best_plans() if entry.name)
    best.export("megatron", tmp_path / "run")
    report = check(MODEL, cluster=GPUS, source=tmp_path / "run" / "train.sh")
    assert report.ok, report.violations
    assert report.name == best.name
    assert report.estimate == best.estimate


def test_a_launch_script_for_another_model_is_a_violation(tmp_path: Path) -> None:
    best = next(entry for entry in best_plans() if entry.name)
    script = dict(best.export("megatron").files)["train.sh"].replace("--hidden-size 4096", "--hidden-size 5120")
    report = check(MODEL, cluster=GPUS, source=script, search=False)
    assert "MODEL" in {violation.code for violation in report.violations}


def test_options_nobody_knows_are_violations() -> None:
    script = "torchrun --nproc_per_node 8 pretrain_gpt.py \\\n --micro-batch-size 1 --tensor-model-paralel-size 2\n"
    report = check(MODEL, cluster=GPUS, source=script, search=False)
    assert report.exit_code == 5
    assert "OPTIONS" in {violation.code for violation in report.violations}


def test_what_cannot_be_checked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="plan is missing"):
        check(MODEL, cluster=GPUS)
    with pytest.raises(InputError, match="both plan and source"):
        check(MODEL, "tp2", GPUS, source="x.sh")
    with pytest.raises(InputError, match="no such file"):
        check(MODEL, cluster=GPUS, source=tmp_path / "absent.sh")
    with pytest.raises(UnsupportedError, match="megatron"):
        check(MODEL, cluster=GPUS, source="x\ny", source_format="megatrn")


def test_a_launch_script_is_held_against_plans_its_framework_can_run() -> None:
    script = plan("llama-3-8b", gpus="2xH100", global_batch=16, target="megatron")[0].export("megatron")
    report = check("llama-3-8b", source=dict(script.files)["train.sh"], gpus="2xH100")
    assert report.ok
    assert report.better is None
    assert not any("MEGATRON" in text for text in report.warnings)


def test_stages_of_a_mixed_plan_are_held_against_the_model() -> None:
    """A tensor degree that no head count has, and ranks that a micro-batch does not reach, each where it stands."""
    six = LayerStrategy(tensor=Tensor1D(degree=6))
    wide = LayerStrategy(data=DataParallel(shard=4, zero=1))
    made = plan_of(([Stage(0, six, 7), Stage(8, wide, 5)], 2, 3), ([Stage(6, LayerStrategy(), 12)], 1, 2))
    workload = Workload(seq_len=2048, global_batch=made.global_batch)
    job = Job(model=DENSE, cluster=resolve_gpus("8xH100,8xA100-80"), workload=workload, plan=made)
    report = check(None, job)
    found = [(violation.code, violation.what) for violation in report.violations if violation.code == "LEGAL"]
    assert ("LEGAL", "pipeline 0 stage 0: tp 6 does not divide the 32 attention heads") in found
    assert ("LEGAL", "pipeline 0 stage 1: dp 4 does not divide the 2 sequences of a micro-batch") in found
    assert not any("pipeline 1" in what for _, what in found)
    assert report.exit_code == 5
    assert report.estimate is None


def test_what_does_not_fit_a_kind_of_device_is_said_with_its_pipeline() -> None:
    whole = LayerStrategy()
    made = plan_of(([Stage(0, whole, 12)], 1, 2), ([Stage(8, whole, 12)], 1, 1))
    workload = Workload(seq_len=2048, global_batch=made.global_batch)
    job = Job(model=DENSE, cluster=resolve_gpus("8xH200,8xA100-40"), workload=workload, plan=made)
    too_large = [violation for violation in check(None, job).violations if violation.code == "MEM_STAGE"]
    assert [violation.what.split(" needs")[0] for violation in too_large] == ["pipeline 1 stage 0"]


@pytest.mark.parametrize("verb", [check, estimate])
def test_a_plan_file_that_stands_alone_is_the_plan(verb: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    plan("llama-3-8b", cluster="8xH100", top=2).save(path)
    asked = {"search": False} if verb is check else {}
    assert verb(f"{path}#2", **asked).to_dict() == verb(plan=f"{path}#2", **asked).to_dict()
