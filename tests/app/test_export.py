"""A plan as files of a target: all of them or none, nothing dropped."""

from __future__ import annotations

import ast
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import plan
from meshwright.app.export import export
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.plan_json import read_job, write_job
from meshwright.formats.torch_csv import read_actions
from meshwright.formats.writing import write_file, write_folder
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.schedules import SCHEDULES, Kind
from meshwright.schedules.torch_actions import from_actions
from meshwright.specs.job import Job
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from meshwright.targets.torch_csv import plan_table, torch_files
from tests.estimate.mixed import Stage, plan_of


def job(text: str = "tp4.pp2.dp1.z1.mbs1.gbs64.rc-sel") -> Job:
    model = resolve("llama-3-8b")
    cluster = resolve_gpus("8xH100")
    row = parse_row(text, devices=8, global_batch=64, schedules=tuple(SCHEDULES))
    workload = Workload(seq_len=4096, global_batch=row.gbs)
    return Job(model=model, cluster=cluster, workload=workload, plan=expand(row, model, 4096), name=row.format())


def test_a_launch_script_reads_back_as_the_plan(tmp_path: Path) -> None:
    written = export(job(), "megatron", tmp_path / "launch")
    script = (tmp_path / "launch" / "train.sh").read_text()
    assert sorted(path.name for path in (tmp_path / "launch").iterdir()) == ["plan.json", "train.sh"]
    assert dict(written.files)["train.sh"] == script
    row = read_flags(script).row
    assert row is not None
    assert row.format() == written.name
    assert (tmp_path / "launch" / "train.sh").stat().st_mode & stat.S_IXUSR
    assert read_job(tmp_path / "launch" / "plan.json").job == job()
    assert "predicted: step" in script


def test_from_a_file_and_without_writing(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(write_job(job()))
    written = export(tmp_path / "plan.json")
    assert written.directory is None
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert written.files == export(job()).files


def test_what_the_target_cannot_express_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as raised:
        export(job("tp4.pp2.dp1.gbs64.off-w"), "megatron", tmp_path / "launch")
    assert raised.value.exit_code == 4
    assert "offload" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_refusal_names_the_best_of_the_set_that_starts(tmp_path: Path) -> None:
    whole = tmp_path / "plans.json"
    found = plan("llama-3.1-8b", gpus="16xH100", global_batch=64, top=2, pin="sharding=z2")
    found.save(whole)
    data = json.loads(whole.read_text())
    data["plans"].reverse()
    whole.write_text(json.dumps(data))
    with pytest.raises(UnsupportedError) as raised:
        export(whole, "deepspeed")  # context parallel ranks in a ring
    last = raised.value.problems[-1]
    assert last.fix == f"export {whole}#2 --to deepspeed"
    assert f"#2, {found.best.name}: " in last.why
    assert export(f"{whole}#2", "deepspeed").name == found.best.name


def test_a_refusal_names_the_targets_that_start_the_plan() -> None:
    with pytest.raises(UnsupportedError) as raised:
        export(job("dp8.z2.gbs64"), "torchtitan")
    assert "Megatron-LM, DeepSpeed" in raised.value.problems[-1].why


def test_an_unknown_target_names_the_known() -> None:
    with pytest.raises(UnsupportedError, match="megatron"):
        export(job(), "megatrn")


def test_a_plan_that_does_not_fit_is_written_with_a_warning() -> None:
    written = export(job("tp1.pp1.dp8.mbs4.gbs64"))
    assert any("does not fit" in warning for warning in written.warnings)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="--force"):
        export(job(), "megatron", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    export(job(), "megatron", tmp_path, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "plan.json", "train.sh"]
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_an_empty_folder_and_a_new_one_deep_down(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        write_folder(folder, {"one.txt": "1"})
        assert [path.name for path in folder.iterdir()] == ["one.txt"]
        assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".part")] == []


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot be written"):
            write_folder(path, {"one.txt": "1"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_file(tmp_path / "plans.json", "{}\n")
    write_file(tmp_path / "plans.json", "[]\n")
    assert (tmp_path / "plans.json").read_text() == "[]\n"
    for path in (tmp_path, tmp_path / "absent" / "plans.json", "", "nul\0"):
        with pytest.raises(InputError, match="cannot be written"):
            write_file(path, "{}")
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "text.json", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["plans.json"]


def test_recompute_layer_by_layer_is_refused_with_the_mend() -> None:
    plans = plan("llama-3-8b", gpus="2xH100", global_batch=16)
    with pytest.raises(UnsupportedError) as caught:
        plans[0].export("megatron")
    assert len(caught.value.problems) == 1
    assert "--target megatron" in caught.value.problems[0].fix
    assert "(" + "'" not in caught.value.problems[0].what


@pytest.mark.parametrize(
    "text", ["tp2.pp4.dp1.mbs1.gbs64", "tp1.pp2.vpp4.dp4.z3.mbs1.gbs64.rc-sel", "tp4.pp1.dp2.mbs1.gbs64"]
)
def test_a_pipeline_for_pytorch_reads_back_as_the_order_of_the_plan(text: str, tmp_path: Path) -> None:
    planned = job(text)
    written = export(planned, "torch-csv", tmp_path / "pipeline")
    names = ["load_schedule.py", "plan.json", "schedule-with-communication.csv", "schedule.csv"]
    assert sorted(path.name for path in (tmp_path / "pipeline").iterdir()) == names
    assert read_job(tmp_path / "pipeline" / "plan.json").job == planned
    table = plan_table(planned.plan.pipelines[0])
    assert from_actions(read_actions(tmp_path / "pipeline" / "schedule.csv")).entries() == table.entries()
    whole = from_actions(read_actions(tmp_path / "pipeline" / "schedule-with-communication.csv"))
    assert (Kind.SEND_F in whole.kinds) == (table.p > 1)
    loader = ast.parse(dict(written.files)["load_schedule.py"])
    said = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in loader.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert said["MICRO_BATCHES"] == table.micro_batches[0]
    assert said["RANK_OF_STAGE"] == table.placement.worker.tolist()
    layers = [layer for spans in said["LAYERS_OF_STAGE"] for first, last in spans for layer in range(first, last + 1)]
    assert layers == list(range(planned.model.num_layers))
    assert any("FSDP" in note for note in written.notes) == (".z3." in text)


@pytest.mark.parametrize("schedule", ["chimera", "pipedream"])
def test_a_pipeline_that_pytorch_cannot_run_is_refused(schedule: str, tmp_path: Path) -> None:
    planned = job("tp2.pp4.dp1.mbs1.gbs64")
    [pipeline] = planned.plan.pipelines
    other = replace(pipeline, schedule=replace(pipeline.schedule, name=schedule))
    with pytest.raises(UnsupportedError, match=r"torch\.distributed\.pipelining"):
        torch_files(replace(planned, plan=replace(planned.plan, pipelines=(other,))))


def stages_on_two_kinds(*pipelines: tuple[list[Stage], int, int], gpus: str = "8xH100,8xA100-80") -> Job:
    made = plan_of(*pipelines)
    workload = Workload(seq_len=4096, global_batch=made.global_batch)
    return Job(model=resolve("llama-3-8b"), cluster=resolve_gpus(gpus), workload=workload, plan=made)


@pytest.mark.parametrize("target", sorted({*TARGETS} - {"run"}))
def test_unequal_pipelines_are_refused_with_the_reason(target: str) -> None:
    whole, half = LayerStrategy(tensor=Tensor1D(degree=8)), LayerStrategy(tensor=Tensor1D(degree=4))
    one = ([Stage(0, whole, 32)], 1, 6)
    with pytest.raises(UnsupportedError, match="2 pipelines") as caught:
        export(stages_on_two_kinds(one, ([Stage(8, half, 32)], 1, 2)), target)
    assert "equal" in caught.value.problems[0].why


def test_one_pipeline_of_uneven_layers_on_two_kinds_can_be_run(tmp_path: Path) -> None:
    """Equal stages in all but layers: Megatron-LM takes a layout, PyTorch a schedule; nodes come in order."""
    stage = LayerStrategy(tensor=Tensor1D(degree=8))
    uneven = stages_on_two_kinds(([Stage(0, stage, 22), Stage(8, stage, 10)], 1, 4))
    written = export(uneven, "megatron", tmp_path / "launch")
    assert written.notes[0] == (
        "start its nodes in the order of the stages: node rank 0 is node 0 of H100, node rank 1 is node 0 of A100-80"
    )
    flags = read_flags((tmp_path / "launch" / "train.sh").read_text(), devices=16)
    assert flags.layout == (22, 10)
    assert dict(export(uneven, "torch-csv").files)["schedule.csv"]


def test_nodes_are_started_in_the_order_of_the_stages(tmp_path: Path) -> None:
    """The first stage is on the second group: the plan on the launched nodes is the same plan, at the same time."""
    stage = LayerStrategy(tensor=Tensor1D(degree=8))
    uneven = stages_on_two_kinds(([Stage(16, stage, 12), Stage(0, stage, 20)], 1, 4), gpus="16xH100,16xA100-80")
    written = export(uneven, "megatron", tmp_path / "launch")
    assert written.notes[0] == (
        "start its nodes in the order of the stages: node rank 0 is node 0 of A100-80, node rank 1 is node 0 of H100; "
        "the others idle"
    )
    flags = read_flags((tmp_path / "launch" / "train.sh").read_text(), devices=16)
    assert flags.layout == (12, 20)
    launched = on_used_nodes(uneven)
    assert [(group.name, group.nodes) for group in launched.cluster.groups] == [("A100-80", 1), ("H100", 1)]
    assert launched.cluster.link("H100", "A100-80") == uneven.cluster.link("H100", "A100-80")
    one, other = (estimate_plan(job.plan, job.model, job.cluster, job.workload) for job in (launched, uneven))
    assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)


def test_stages_that_alternate_between_kinds_cannot_be_started_in_order() -> None:
    stage = LayerStrategy(tensor=Tensor1D(degree=8))
    three = [Stage(0, stage, 12), Stage(16, stage, 8), Stage(8, stage, 12)]
    with pytest.raises(UnsupportedError, match="numbered stage by stage"):
        export(stages_on_two_kinds((three, 1, 4), gpus="16xH100,8xA100-80"), "megatron")


def test_stages_of_unlike_degrees_are_refused_by_pytorch() -> None:
    wide, narrow = LayerStrategy(tensor=Tensor1D(degree=8)), LayerStrategy(tensor=Tensor1D(degree=4))
    unlike = stages_on_two_kinds(([Stage(0, wide, 22), Stage(8, narrow, 10)], 1, 4))
    with pytest.raises(UnsupportedError, match="stages with different degrees: tensor 8, context 1, data 1 and"):
        export(unlike, "torch-csv")


def test_nodes_of_unequal_size_are_refused_by_megatron() -> None:
    stage = LayerStrategy(tensor=Tensor1D(degree=4))
    unequal = stages_on_two_kinds(([Stage(0, stage, 20), Stage(8, stage, 12)], 1, 4), gpus="8xH100,1x4xA100-80")
    with pytest.raises(UnsupportedError) as caught:
        export(unequal, "megatron")
    assert any("equally many processes, here 4 and 8" in problem.why for problem in caught.value.problems)


def on_the_last_nodes(gpus: str, idle: int) -> Job:
    """The plan of `job`, on the devices behind so many idle ones."""
    one = job()
    pipeline = one.plan.pipelines[0]
    workers = tuple(
        replace(worker, devices=tuple((first + idle, last + idle) for first, last in worker.devices))
        for worker in pipeline.workers
    )
    moved = replace(one.plan, pipelines=(replace(pipeline, workers=workers),))
    return replace(one, cluster=resolve_gpus(gpus), plan=moved)


@pytest.mark.parametrize(
    ("gpus", "idle", "nodes"), [("8xA100-80,8xH100", 8, "0 of H100"), ("4xH200,16xH100", 12, "1 of H100")]
)
def test_files_are_for_the_nodes_that_a_plan_uses(gpus: str, idle: int, nodes: str) -> None:
    written = export(on_the_last_nodes(gpus, idle))
    alone = export(job())
    assert written.notes[0].startswith(f"start it on node {nodes} alone")
    assert written.notes[1:] == alone.notes

    def launch(script: str) -> list[str]:
        return [line for line in script.splitlines() if not line.startswith("#")]

    assert launch(dict(written.files)["train.sh"]) == launch(dict(alone.files)["train.sh"])
    assert "--nproc_per_node 8 --nnodes 1\n" in dict(written.files)["train.sh"]


def test_no_note_where_every_node_is_used() -> None:
    assert not any("alone" in note for note in export(job()).notes)


def test_a_plan_in_one_line_is_exported_for_the_model_beside_it(tmp_path: Path) -> None:
    question = {"model": "llama-3-8b", "gpus": "8xH100", "seq_len": 4096}
    written = mw.export("tp4.pp2.dp1.z1.mbs1.gbs64.rc-sel", "megatron", tmp_path / "launch", **question)
    assert written.name == job().name
    assert (tmp_path / "launch" / "train.sh").exists()
    with pytest.raises(InputError, match=r"model beside a plan file"):
        mw.export(tmp_path / "launch" / "plan.json", "megatron", tmp_path / "again", model="llama-3-8b")
    with pytest.raises(InputError, match=r"no plan file"):
        mw.export("tp4.pp2", "megatron", tmp_path / "again")
    assert not (tmp_path / "again").exists()
