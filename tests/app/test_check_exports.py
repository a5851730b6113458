"""What `export` wrote comes back: every file of its folder answers `check` with the plan, and nothing is asked."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.app.check import CheckReport

MODEL, CLUSTER = "qwen3-0.6b", "8xH100"
PLANS = {
    "megatron": "tp2.dp4.mbs2.gbs32.z1",
    "bridge": "tp2.dp4.mbs2.gbs32.z1",
    "automodel": "tp2.dp4.nosp.fsdp.mbs2.gbs32",
    "torchtitan": "tp2.dp4.fsdp.mbs2.gbs32",
    "deepspeed": "dp8.z2.mbs2.gbs32",
    "accelerate": "dp8.fsdp.mbs2.gbs32",
    "llamafactory": "dp8.z3.mbs2.gbs32",
    "axolotl": "dp8.z2.mbs2.gbs32",
    "maxtext": "dp8.fsdp.mbs2.gbs32",
    "alpa": "dp8.z3.mbs2.gbs32",
    "run": "dp8.z1.mbs2.gbs32",
    "torch-csv": "pp2.dp4.mbs2.gbs32",
}


def _exported(folder: Path, target: str, lora: str | None = None) -> tuple[float, list[Path]]:
    """The step time of a plan, and its files as a target's."""
    planned = mw.estimate(MODEL, gpus=CLUSTER, plan=PLANS[target], seq_len=2048, lora=lora, target=target).best
    mw.export(planned, target=target, directory=folder)
    return planned.estimate.step_time_s, [path for path in sorted(folder.iterdir()) if path.name != "plan.json"]


def _comes_back(report: CheckReport, step_s: float) -> None:
    assert (report.exit_code, report.violations) == (0, ())
    assert report.estimate is not None
    assert report.estimate.step_time_s == pytest.approx(step_s, rel=1e-6)


@pytest.mark.parametrize("target", PLANS)
def test_each_file_of_an_export_is_checked_without_a_question(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "out"
    step_s, files = _exported(folder, target)
    assert files
    for path in (folder, *files):
        _comes_back(mw.check(path, search=False), step_s)


@pytest.mark.parametrize("target", ["galvatron", "megatron-deepspeed"])
def test_a_length_that_no_file_states_is_that_of_the_plan(tmp_path: Path, target: str) -> None:
    plan = "dp8.z2.mbs1.gbs16.rc-full" if target == "galvatron" else "tp2.nosp.dp4.z1.mbs1.gbs16"
    planned = mw.estimate("llama-2-7b", gpus="8xH100", plan=plan, seq_len=8192, target=target).best
    mw.export(planned, target=target, directory=tmp_path / "out")
    _comes_back(mw.check(tmp_path / "out", search=False), planned.estimate.step_time_s)


@pytest.mark.parametrize("target", ["accelerate", "axolotl", "llamafactory"])
def test_adapters_of_an_export_come_from_its_files(tmp_path: Path, target: str) -> None:
    step_s, files = _exported(tmp_path / "out", target, lora="r=16,targets=q_proj,v_proj")
    for path in files:
        _comes_back(mw.check(path, search=False), step_s)


def test_what_the_plan_beside_a_file_says_is_told(tmp_path: Path) -> None:
    _exported(tmp_path / "out", "accelerate")
    plan = tmp_path / "out" / "plan.json"
    said = mw.check(tmp_path / "out" / "train.py", search=False).warnings
    assert f"the cluster is that of {plan}: 8xH100" in said
    assert f"the model is that of {plan}: {MODEL}" in said


def test_what_is_asked_stands_over_the_plan_beside_a_file(tmp_path: Path) -> None:
    _exported(tmp_path / "out", "deepspeed")
    report = mw.check("qwen3-1.7b", source=tmp_path / "out" / "train.py", gpus="8xA100-80", search=False)
    assert "qwen3-1.7b on 8 A100-80" in report.text
    assert not any("plan.json" in warning for warning in report.warnings)


def test_a_set_of_plans_beside_a_script_is_not_its_own(tmp_path: Path) -> None:
    _, (script,) = _exported(tmp_path / "out", "megatron")
    mw.plan(MODEL, gpus="8xA100-80", global_batch=32, top=2).save(tmp_path / "out" / "plan.json")
    report = mw.check(script, search=False)
    assert report.exit_code == 2
    assert [one.what for one in report.violations if one.code == "ASK"] == ["no cluster is given"]


def test_a_script_of_ones_own_beside_an_export_is_not_of_it(tmp_path: Path) -> None:
    _, (script,) = _exported(tmp_path / "out", "megatron")
    other = tmp_path / "out" / "other.sh"
    other.write_text(script.read_text().replace("--micro-batch-size 2", "--micro-batch-size 4"))
    report = mw.check(other, search=False)
    assert [one.what for one in report.violations if one.code == "ASK"] == ["no cluster is given"]
    assert report.launch is not None
    assert report.launch.row is not None
    assert report.launch.row.mbs == 4


def test_an_edited_file_of_an_export_is_read_as_edited(tmp_path: Path) -> None:
    _exported(tmp_path / "out", "deepspeed")
    arguments = tmp_path / "out" / "training_args.json"
    arguments.write_text(
        arguments.read_text().replace('"gradient_accumulation_steps": 2', '"gradient_accumulation_steps": 4')
    )
    report = mw.check(tmp_path / "out" / "train.py", search=False)
    assert any("gradient_accumulation_steps" in one.what for one in report.violations)
