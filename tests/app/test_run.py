"""`run` and `verify`: what they say, what they write, and what they refuse before JAX starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.app.requests.run import ExecutionFields, RunRequest, VerifyRequest
from meshwright.app.run import Run, StepDone
from meshwright.app.run import run as execute
from meshwright.app.runs.inputs import run_inputs
from meshwright.app.verify import verify
from meshwright.cli import main
from meshwright.errors import InputError, MeshwrightError, StoppedError
from meshwright.formats.plan_json import write_job
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from tests.virtual_devices import eight_devices

eight_devices()


def run(execution: ExecutionFields, on_step: Callable[[StepDone], None] = lambda done: None, **course: Any) -> Run:
    """Some steps of a plan."""
    return execute(RunRequest(execution=execution, **course), on_step=on_step)


def small(plan: str, **options: Any) -> ExecutionFields:
    """A narrow perceptron of four layers."""
    return ExecutionFields(model="mlp-tiny", plan=plan, layers=4, hidden=4, global_batch=8, **options)


def test_a_run_says_losses_seconds_and_prediction_and_writes_both_timelines(tmp_path: Path) -> None:
    said: list[int] = []
    found = run(
        small("pp2.dp2.mbs2"), steps=3, trace=tmp_path / "step.json", on_step=lambda done: said.append(done.step)
    )
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert said == [0, 1, 2]
    assert (answer["schema"], answer["plan"]) == ("meshwright.run/1", "pp2.dp2.mbs2.gbs8")
    assert len(answer["losses"]) == 3
    assert answer["timing"]["predicted_step_time_s"] > 0
    assert set(answer["timing"]["measured_by_kind_s"]) == set(answer["timing"]["predicted_by_kind_s"])

    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert list(names) == ["predicted: mesh 0", "predicted: mesh 1", "measured: mesh 0", "measured: mesh 1"]
    for mesh in range(2):
        ran, foreseen = (
            [event["name"] for event in events if event["pid"] == names[f"{step}: mesh {mesh}"] and event["ph"] == "X"]
            for step in ("measured", "predicted")
        )
        assert ran == foreseen
        assert f"B{mesh}.1" in ran


def test_a_run_in_python_tells_of_every_step() -> None:
    logged: list[tuple[int, float]] = []
    options: dict[str, Any] = {"layers": 2, "hidden": 4, "global_batch": 8, "steps": 2}
    found = mw.run("mlp-tiny", "dp2", **options, on_step=lambda done: logged.append((done.step, done.loss)))
    assert logged == [(one.step, one.loss) for one in found.steps]
    with pytest.raises(InputError, match=r"on_step is 3[\s\S]*called after every step") as caught:
        mw.run("mlp-tiny", "dp2", **options, on_step=3)
    assert [problem.field for problem in caught.value.problems] == ["on_step"]


def test_a_profile_holds_the_kernels_of_one_step(tmp_path: Path) -> None:
    run(small("dp2"), steps=1, profile=str(tmp_path))
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_a_profile_of_other_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeshwrightError, match="a profile of workers in other processes"):
        mw.run("mlp-tiny", "dp2", backend="processes", profile=str(tmp_path))


def test_a_single_step_is_not_a_step_time_since_it_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["run", "mlp-tiny", "--plan", "dp2", "--layers", "2", "--hidden", "4", "--gbs", "8", "--steps", "1"]) == 0
    )
    assert "measured from 2 steps on" in " ".join(capsys.readouterr().out.split())
    timing = run(small("dp2"), steps=1).to_dict()["timing"]
    assert timing["first_step_s"] > 0
    assert (timing["step_time_s"], timing["error"]) == (None, None)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    whole = run(small("dp2"), steps=3).to_dict()["losses"]
    first = run(small("dp2"), steps=2, checkpoint=folder).to_dict()["losses"]
    rest = run(small("pp2.dp1"), steps=3, checkpoint=folder).to_dict()
    assert rest["first_step"] == 2
    assert [*first, *rest["losses"]] == pytest.approx(whole, abs=1e-5)
    with pytest.raises(MeshwrightError, match="nothing is left to run"):
        run(small("dp2"), steps=3, checkpoint=folder)


def test_an_interrupted_run_says_what_its_checkpoint_holds(tmp_path: Path) -> None:
    def interrupt(done: StepDone) -> None:
        if done.step == 2:
            raise KeyboardInterrupt

    course = {"steps": 9, "checkpoint": tmp_path / "state", "every": 2}
    with pytest.raises(StoppedError, match=r"interrupted after step 2[\s\S]*holds the state after step 1"):
        run(small("dp2"), **course, on_step=interrupt)
    assert run(small("dp2"), steps=3, checkpoint=tmp_path / "state").to_dict()["first_step"] == 2
    with pytest.raises(KeyboardInterrupt):
        run(small("dp2"), steps=9, on_step=interrupt)


def test_a_plan_that_equals_one_device_passes_and_a_tolerance_of_nothing_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = verify(VerifyRequest(execution=small("pp2.dp2.zb-h1.z1"), steps=2))
    assert found.ok
    assert found.to_dict()["zero_gradient"] == []
    words = ["verify", "mlp-tiny", "--plan", "dp2", "--layers", "2", "--hidden", "4", "--steps", "1", "--gbs", "8"]
    assert main([*words, "--tolerance", "1e-30"]) == 5
    assert "does NOT equal one device" in capsys.readouterr().out


def test_a_plan_file_carries_model_and_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(mw.plan("llama-3.1-8b", cluster="8xH100", global_batch=16).to_dict()))
    found = run_inputs(ExecutionFields(model=None, plan=f"{file}#1", layers=8, hidden=64, vocab=128, seq_len=32))
    assert found.row.gbs == 16
    assert found.spec is not None
    assert (found.spec.num_layers, sum(found.stage_layers)) == (8, 8)
    assert found.row.devices == found.devices == 8


def test_a_plan_file_keeps_its_division_of_layers(tmp_path: Path) -> None:
    """A run cut the model by the work of its layers, whatever the file said."""
    job = mw.estimate("llama-3.1-8b", "pp2.mbs1.gbs4", cluster="2xH100")[0].job
    assert isinstance(job, Job)
    plan = plan_of(PlanRow(pp=2, gbs=4), [20, 12])
    file = tmp_path / "plan.json"
    file.write_text(write_job(replace(job, plan=plan)))
    whole = ExecutionFields(model=None, plan=str(file), layers=32, hidden=64, vocab=128, seq_len=32)

    assert run_inputs(whole).stage_layers == (20, 12)
    assert sum(run_inputs(replace(whole, layers=8)).stage_layers) == 8


def test_what_a_plan_file_is_priced_with_and_no_run_does_is_refused(tmp_path: Path) -> None:
    file, words = tmp_path / "plan.json", {"cluster": "8xH100", "global_batch": 16}
    for asked, said in (
        ({"optimizer": "shampoo"}, "optimizer shampoo does not run here"),
        ({"lora": "r=8"}, "LoRA does not run here"),
        ({"lengths": "lognormal:mean=1200,sigma=1,max=8192"}, "unequal lengths"),
    ):
        file.write_text(json.dumps(mw.plan("llama-3.1-8b", **words, **asked).to_dict()))
        with pytest.raises(MeshwrightError, match=said):
            run_inputs(ExecutionFields(model=None, plan=f"{file}#1", layers=8, hidden=64, vocab=128, seq_len=32))


def test_every_default_is_said() -> None:
    found = run_inputs(ExecutionFields(model="gpt-tiny", plan="pp2.mbs2"))
    assert (found.row.dp, found.row.gbs, found.seq_len, found.devices) == (4, 32, 64, 8)
    assert [note.partition(" ")[0] for note in found.assumptions] == ["8", "32", "64"]
    sliced = run_inputs(ExecutionFields(model="gpt-tiny", plan="pp2.slimpipe-segments2", devices=2, global_batch=2))
    assert any("slimpipe-segments2: every worker does the attention of its own" in note for note in sliced.assumptions)


@pytest.mark.parametrize(
    ("model", "plan", "options", "words"),
    [
        ("gpt-tinny", "pp2", {}, ["did you mean gpt-tiny"]),
        ("gpt-tiny", "pp2.cp2.ep2.off-o.hsdp3", {}, ["no experts", "off-o", "hsdp3"]),
        ("mlp-tiny", "pp2.cp2.dp2.ep2", {}, ["no tokens", "no experts"]),
        ("gpt-tiny", "cp2.dp2", {"devices": 4, "seq_len": 6}, ["zigzag"]),
        ("gpt-tiny", "cp4-ag2xp2p2", {"devices": 4}, ["ag inside p2p", "cp4"]),
        ("gpt-tiny", "tp3.pp2", {"devices": 6}, ["tp must divide"]),
        ("gpt-tiny", "pp2.dp8", {"devices": 8}, ["--devices 16"]),
        ("gpt-tiny", "pp8", {}, ["layers"]),
        ("gpt-tiny", "pp2.dp2.mbs3", {"global_batch": 4}, ["multiple of dp 2"]),
        ("llama-3.1-8b", "pp2", {"dtype": "fp9"}, ["8.0 billion", "fp9"]),
        ("mlp-tiny", "pp16", {"devices": 16}, ["16 x vpp 1 stages for 8 layers"]),
        (None, "pp2", {}, ["no model is given"]),
    ],
)
def test_what_cannot_run_is_refused_with_every_reason(
    model: str | None, plan: str, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(MeshwrightError) as caught:
        run_inputs(ExecutionFields(model=model, plan=plan, **options))
    for word in words:
        assert word in str(caught.value)


def test_elastic_runs_need_workers_and_checkpoints() -> None:
    with pytest.raises(MeshwrightError) as caught:
        mw.run("gpt-tiny", "pp2", elastic=True, every=0)
    assert len(caught.value.problems) == 3


def test_elastic_runs_drain_their_pipelines() -> None:
    with pytest.raises(MeshwrightError, match="may drain its pipeline"):
        mw.run(
            "llama-tiny",
            "pp2.dp1.2bw.mbs1.gbs4",
            layers=2,
            devices=2,
            elastic=True,
            checkpoint="/nowhere",
            backend="processes",
        )
