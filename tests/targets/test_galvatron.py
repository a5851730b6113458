"""Galvatron is the target for plans whose layers differ."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.specs.job import Job
from meshwright.specs.strategy import Recompute
from meshwright.targets import TARGETS
from meshwright.targets.galvatron.trainer import divided
from tests.targets.cases import job
from tests.targets.test_round_trip import written


def test_layers_that_differ_survive() -> None:
    one = job("tp2.pp2.dp4.fsdp.mbs1.gbs64", model="llama-2-7b")
    plain = one.plan.strategies[0]
    full = replace(plain, recompute=Recompute(kind="full"))
    worker = one.plan.pipelines[0].workers[0]
    chunk = worker.chunks[0]
    run = chunk.runs[0]
    mixed = replace(chunk, runs=(replace(run, layers=3, strategy=0), replace(run, layers=run.layers - 3, strategy=1)))
    pipeline = replace(
        one.plan.pipelines[0],
        workers=(replace(worker, chunks=(mixed,)), *one.plan.pipelines[0].workers[1:]),
    )
    unlike = replace(one, plan=replace(one.plan, strategies=(plain, full), pipelines=(pipeline,)), name=None)
    files = written("galvatron", unlike)
    assert '"checkpoint": "0,0,0,1,1,' in files["galvatron_config.json"]
    read = TARGETS["galvatron"].read
    assert read is not None
    launch = read(files, None)
    assert launch.row is None
    assert launch.plan is not None
    assert not TARGETS["galvatron"].refused(replace(unlike, plan=launch.plan))
    assert written("galvatron", replace(unlike, plan=launch.plan)) == files


def test_its_trainer_is_given_the_sizes_that_no_option_says() -> None:
    files = written("galvatron", job("tp2.pp2.dp4.fsdp.mbs1.gbs64", model="llama-2-70b"))
    sizes = next(one.value for one in ast.parse(files["start.py"]).body if isinstance(one, ast.Assign))
    said = ast.literal_eval(sizes)
    assert (said["n_layers"], said["ffn_dim"], said["n_kv_heads"], said["norm_eps"]) == (80, 28672, 8, 1e-5)
    assert said["n_positions"] == 4096
    script = files["train.sh"]
    assert "start.py" in script
    assert "--galvatron_config_path ./galvatron_config.json" in script  # it makes the folder of the path first
    assert "manually" not in script


@pytest.mark.parametrize(
    ("line", "shards"),
    [
        ("dp16.fsdp.mbs1.gbs64", True),
        ("dp16.fsdp.mbs4.gbs64", False),
        ("dp16.z0.mbs1.gbs64", False),
        ("dp16.z2.mbs2.gbs64", True),
    ],
)
def test_gradients_are_sharded_between_micro_batches(line: str, shards: bool) -> None:
    script = written("galvatron", job(line, model="llama-2-7b"))["train.sh"]
    assert ("--no_async_grad_reduce" in script) == shards
    assert "--reduce_in_fp32" in script


def test_an_epsilon_that_no_config_states_is_asked_for() -> None:
    files = written("galvatron", replaced(job("dp16.z2", model="gpt2-xl"), 1024))
    assert "NORM_EPSILON:?" in files["train.sh"]
    assert 'os.environ["NORM_EPSILON"]' in files["start.py"]
    ast.parse(files["start.py"])


def replaced(one: Job, seq_len: int) -> Job:
    """The same with sequences of another length."""
    return replace(one, workload=replace(one.workload, seq_len=seq_len))


@pytest.mark.parametrize(
    ("line", "model", "field"),
    [
        ("dp16.z2", "gpt2-xl", "workload.seq_len"),  # 1024 learned positions, and 4096 tokens
        ("dp16.fsdp", "smollm-135m", "--untie-embeddings-and-output-weights"),
        ("tp16.fsdp", "llama-2-70b", "tp"),  # 8 heads of keys and values
    ],
)
def test_models_that_its_classes_do_not_build_are_refused(line: str, model: str, field: str) -> None:
    assert field in [problem.field for problem in TARGETS["galvatron"].refused(job(line, model=model))]


def test_a_rope_that_its_llama_does_not_know_is_refused() -> None:
    problems = TARGETS["galvatron"].refused(job("dp16.fsdp", model="llama-3.1-8b"))
    assert [problem.field for problem in problems] == ["model.settings.rope_base"]


def test_its_trainer_gives_the_rest_of_the_layers_to_the_last_stage() -> None:
    assert divided(32, ranks=3) == (10, 10, 12)
    text = (
        "runtime:\n  model:\n    hf_model_name_or_path: llama-2-7b\n  parallel:\n    pp_deg: 4\n"
        "    default_dp_type: zero2\n    global_tp_deg: 1\n  train:\n    global_batch_size: 64\n    chunks: 8\n"
        "    seq_length: 4096\n"
    )
    read = TARGETS["galvatron"].read
    assert read is not None
    launch = read({"train_dist.yaml": text}, 8)
    assert launch.dealt is not None
    assert launch.dealt(34) == (8, 8, 8, 10)


def test_a_pipeline_is_found_among_plans_without_chunks() -> None:
    best = mw.plan("llama-2-7b", gpus="16xH100", pin={"pp": 2}, target="galvatron", top=1).best
    assert all(len(worker.chunks) == 1 for worker in best.job.plan.pipelines[0].workers)


def degrees(**more: object) -> dict[str, object]:
    """A configuration of four layers with tensor ranks of two."""
    columns = dict.fromkeys(("dp_types_enc", "use_sp", "checkpoint"), "0,0,0,0")
    return {
        "pp_deg": 1,
        "tp_sizes_enc": "2,2,2,2",
        "global_bsz": 16,
        "chunks": 1,
        "default_dp_type": "zero2",
        **columns,
        **more,
    }


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"cp_sizes_enc": "2,2,2,2", "vtp": 2, "vcp": 2}, "tp2.cp2.dp2.z2.mbs8.gbs16.gpipe"),
        ({"ep_sizes_enc": "2,2,2,2", "tp_of_ep_sizes_enc": "2,2,2,2"}, "tp2.ep2.etp2.dp4.z2.mbs4.gbs16.gpipe"),
        ({"vtp": 2, "vsp": 0}, "tp2.dp4.z2.mbs4.gbs16.gpipe"),
    ],
)
def test_degrees_of_later_releases_are_those_of_the_plan(more: dict[str, object], line: str) -> None:
    read = TARGETS["galvatron"].read
    assert read is not None
    launch = read({"galvatron_config.json": json.dumps(degrees(**more))}, 8)
    assert launch.row is not None
    assert (launch.row.format(), launch.problems) == (line, ())


@pytest.mark.parametrize(("tensor", "context", "field"), [("2", "3", "cp_sizes_enc"), ("3", "1", "tp_sizes_enc")])
def test_the_degree_that_divides_no_stage_is_named(tensor: str, context: str, field: str) -> None:
    read = TARGETS["galvatron"].read
    assert read is not None
    columns = {"tp_sizes_enc": ",".join(tensor * 4), "cp_sizes_enc": ",".join(context * 4)}
    launch = read({"galvatron_config.json": json.dumps(degrees(**columns))}, 8)
    assert [problem.field for problem in launch.problems] == [field]


@pytest.mark.parametrize("more", [{"vtp": 8}, {"vcp": 2}, {"vsp": 1}])
def test_an_embedding_cut_otherwise_than_the_layers_is_refused(more: dict[str, object]) -> None:
    read = TARGETS["galvatron"].read
    assert read is not None
    (problem,) = read({"galvatron_config.json": json.dumps(degrees(**more))}, 8).problems
    assert (problem.field, problem.why) == (next(iter(more)), "plans cut embedding and head as the layers")
