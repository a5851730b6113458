"""Megatron-DeepSpeed: scripts by the facts of its parser, and its own defaults and names read as they are meant."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.described import described_model
from meshwright.formats.shell import launches, read_script
from meshwright.launch_files.fixes.script import script_fix
from meshwright.launch_files.format import format_of
from meshwright.launch_files.script import shape_differs
from meshwright.launch_files.source import NOTHING_OUTSIDE, LaunchSource
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.targets import TARGETS, target_of_file
from tests.targets.cases import job, runs_of
from tests.targets.test_round_trip import any_estimate, written

TARGET = TARGETS["megatron-deepspeed"]
RATIO = "zero_optimization.offload_optimizer.ratio"
LLAMA = """#!/bin/bash
cat <<EOT > ds.json
{ "train_batch_size": 64, "train_micro_batch_size_per_gpu": MBS, "zero_optimization": { "stage": 1 } }
EOT
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 2 --no-pipeline-parallel \\
  --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-key-value-heads 2 --micro-batch-size 1 \\
  --global-batch-size 64 --seq-length 128 --max-position-embeddings 128 --bf16 MORE \\
  --deepspeed --deepspeed_config ds.json
"""


def facts() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Kind, choices and number of values by flag."""
    text = (files("meshwright.targets.megatron_deepspeed") / "options.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return {
        flag: (kind, tuple(choices.split(",")) if choices else (), takes)
        for flags, kind, _, choices, takes in rows
        for flag in flags.split(",")
    }


def read(more: str = "", mbs: str = "1") -> LaunchFile:
    assert TARGET.script is not None
    return TARGET.script(read_script(LLAMA.replace("MORE", more).replace("MBS", mbs)), 16)


def test_every_option_is_one_of_its_parser() -> None:
    known = facts()
    for one in runs_of("megatron-deepspeed")[::6]:
        script = read_script(written("megatron-deepspeed", one.job())["train.sh"])
        words = [word.text for word in launches(script.commands)[-1].words]
        at = 0
        while at < len(words):
            kind, choices, takes = known[words[at]]
            value = words[at + 1] if takes != "0" else None
            assert value is None or kind == "str" or float(value) == float(value)
            assert not choices or value in choices, (words[at], value)
            at += 1 if takes == "0" else 2
            assert at == len(words) or words[at].startswith("--"), words[at]


def test_what_the_fork_calls_otherwise_is_read() -> None:
    """Grouped queries were once read as full heads, and unfused attention as fused."""
    found = read()
    assert found.model["kv_heads"] == 2
    assert found.workload["attention_kernel"] == "materialised"
    assert read("--use-flash-attn-v2").workload["attention_kernel"] == "flash"
    assert not read("--tokenizer-type HFTokenizer --tokenizer-model some/model").problems
    assert found.row is not None
    assert found.row.format() == "tp2.nosp.dp8.z1.mbs1.gbs64.nodpov"
    assert not found.problems


def test_the_stage_of_zero_is_edited_where_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(LLAMA.replace("MORE", "--zero-stage 1 --use-flash-attn-v2").replace("MBS", "1"))
    source = LaunchSource.of(file, "megatron-deepspeed", 16, NOTHING_OUTSIDE)
    wanted = job("tp2.nosp.dp8.z2.mbs1.gbs64.nodpov", model="llama-2-7b")
    found, _ = homogeneous(wanted.plan)
    assert found is not None
    row = row_from(found, gbs=64)
    assert row is not None
    fix = script_fix(source, source.read(), wanted, row, any_estimate())
    assert not fix.why_not
    first, *others = [(one.option, one.old, one.new) for one in fix.changes]
    assert first == ("--zero-stage", "1", "2")
    # The script describes a small model, and the plan is of another.
    assert ("--num-layers", "4", "32") in others


def test_experts_stand_in_every_second_layer_and_tokens_go_to_one() -> None:
    facts_of = read("--num-experts 8 --moe-expert-parallel-size 4").model
    assert facts_of["experts"] == 8
    assert facts_of["top_k"] == 1
    assert facts_of["moe_layers"] == [False, True, False, True]
    assert "experts" not in read("--num-experts 1").model


def test_a_pyramid_has_a_number_of_experts_a_layer_and_an_mlp_beside_them() -> None:
    facts = read("--num-experts 4 8 --mlp-type residual --moe-expert-parallel-size 4").model
    model = described_model({"vocab": 512} | facts, name="train.sh", vocab=512)
    sparse = [layer.mlp for layer in model.layers() if isinstance(layer.mlp, MoeMlp)]
    assert [(mlp.experts, mlp.top_k, mlp.residual) for mlp in sparse] == [(4, 1, True), (8, 1, True)]
    assert {mlp.shared_ffn_hidden for mlp in sparse} == {sparse[0].ffn_hidden}
    said = {name: value for name, value in facts.items() if name != "vocab"}
    assert not list(shape_differs(model, said))
    assert [one.field for one in shape_differs(model, said | {"experts": 8})] == ["experts"]


@pytest.mark.parametrize(
    ("layers", "more", "layout"),
    [
        (14, "", (4, 4, 3, 3)),
        (22, "--pp-partition-method type:transformer", (6, 6, 5, 5)),
        (23, "--pp-partition-method 'type:transformer|embedding'", (6, 6, 6, 5)),
        (22, "--pp-partition-method 'type:transformer|embedding'", (5, 6, 6, 5)),
    ],
)
def test_stages_of_unlike_size_are_cut_as_deepspeed_cuts_them(layers: int, more: str, layout: tuple[int, ...]) -> None:
    text = LLAMA.replace("--no-pipeline-parallel", "--pipeline-model-parallel-size 4").replace("MBS", "1")
    assert TARGET.script is not None
    found = TARGET.script(read_script(text.replace("layers 4", f"layers {layers}").replace("MORE", more)), 16)
    assert found.layout == layout
    assert not found.problems


def test_a_configuration_that_says_otherwise_is_a_problem() -> None:
    found = read(mbs="2")
    assert [problem.field for problem in found.problems] == ["train_micro_batch_size_per_gpu"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ('"fp16": {"enabled": true}', "fp16.enabled"),
        ('"bf16": {"enabled": true}', None),
        ('"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}', RATIO),
        ('"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}', None),
    ],
)
def test_the_engine_in_another_number_format_or_with_part_of_the_states_is_told(more: str, field: str | None) -> None:
    """The engine casts the model to its own format, whatever the options of the script say."""
    assert TARGET.script is not None
    text = LLAMA.replace('"zero_optimization": { "stage": 1 }', more).replace("MORE", "").replace("MBS", "1")
    found = TARGET.script(read_script(text), 16)
    assert [problem.field for problem in found.problems if problem.field != "--zero-stage"] == (
        [field] if field else []
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("tp2.pp2.z2", "data.zero"),
        ("tp2.cp2-a2a.z1", "cp"),
        ("tp2.pp2.zb-h1.z1", "tensor.sequence_parallel"),
        ("pp2.z1", "pp"),
    ],
)
def test_its_rules(line: str, field: str) -> None:
    problems = TARGET.refused(job(line, model="llama-2-7b"))
    assert field in {problem.field for problem in problems}


def test_its_pipeline_runs_models_without_rotary_positions() -> None:
    (problem,) = TARGET.refused(job("pp2.dp8.z1", model="llama-2-7b"))
    assert "rotary positions" in problem.why
    runs = job("pp2.dp8.z1", model="gpt3-175b")
    runs = replace(runs, workload=replace(runs.workload, seq_len=2048))
    assert not TARGET.refused(runs)
    assert any("beside nothing" in note for note in TARGET.files(runs, any_estimate()).notes)


def test_tensor_ranks_hold_whole_heads_of_keys_and_values() -> None:
    assert "tp" in {problem.field for problem in TARGET.refused(job("tp16.nosp.z1", model="llama-2-70b"))}


def test_models_it_has_no_options_for_are_refused() -> None:
    fields = {problem.field for problem in TARGET.refused(job("dp16.z1", model="llama-3.1-8b"))}
    assert "--use-rope-scaling" in fields
    assert {problem.field for problem in TARGET.refused(job("dp16.z1", model="mixtral-8x7b"))} == {"model.moe"}


def test_its_scripts_are_not_those_of_megatron_lm() -> None:
    assert target_of_file("train.sh", LLAMA) == "megatron-deepspeed"
    assert target_of_file("train.sh", LLAMA.replace("--deepspeed ", "")) != "megatron-deepspeed"


def test_full_recompute_takes_the_layers_of_the_forks_own_default() -> None:
    """Its parser says 1 where Megatron-LM's says nothing; its launcher hands every process a rank."""
    text = (
        "deepspeed --num_gpus 8 pretrain_gpt.py --local_rank=0 --num-layers 4 --hidden-size 1024 --bf16 "
        "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        "--global-batch-size 8 --vocab-size 32000 --deepspeed --zero-stage 1 --recompute-granularity full "
        "--recompute-method uniform\n"
    )
    assert TARGET.read is not None
    read = TARGET.read({"train.sh": text}, None)
    assert not read.problems
    assert read.row is not None
    assert read.row.recompute == "full"


@pytest.mark.parametrize(
    ("number", "piped", "sharding"), [("--bf16", True, "z1"), ("--fp16", True, "z0"), ("--bf16", False, "z0")]
)
def test_its_pipeline_shards_states_under_bf16_though_zero_is_off(number: str, piped: bool, sharding: str) -> None:
    assert TARGET.script is not None
    text = LLAMA.replace("MORE", "--zero-stage 0").replace("MBS", "1").replace("--bf16", number)
    text = text.replace("--no-pipeline-parallel", "") if piped else text
    row = TARGET.script(read_script(text.replace('"stage": 1', '"stage": 0')), 16).row
    assert row is not None
    assert row.sharding == sharding


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("--num-experts 4 --mlp-type residual", ""),
        ("--num-experts 4 --mlp-type wide", "--mlp-type"),
        ("--num-experts 4 8", ""),
        ("--num-experts 4 8 8", "--num-experts"),
        ("--num-experts 4 0", "--num-experts"),
        ("--num-experts 4 --mlp-type standard", ""),
        ("--num-experts 4 --moe-train-capacity-factor 2.0", "--moe-train-capacity-factor"),
        ("--num-experts 4 --moe-train-capacity-factor 1.0", ""),
        ("--random-ltd", "--random-ltd"),
        ("--kd --num-layers-teacher 8 --load-teacher runs/large", "source"),
    ],
)
def test_what_no_plan_holds_is_refused(more: str, field: str) -> None:
    assert [problem.field for problem in read(more).problems] == ([field] if field else [])


def test_a_curriculum_is_said() -> None:
    assert any("--curriculum-learning-legacy" in note for note in read("--curriculum-learning-legacy").notes)


def test_one_expert_is_said_to_be_none() -> None:
    found = read("--num-experts 1")
    assert found.row == read().row
    assert any("--num-experts 1" in note for note in found.notes)


def test_a_script_without_the_switch_is_told_and_read_as_with_it() -> None:
    assert TARGET.script is not None
    text = LLAMA.replace("MORE", "--normalization rmsnorm").replace("MBS", "1")
    found = TARGET.script(read_script(text.replace("--deepspeed --deepspeed_config", "--deepspeed_config")), 16)
    assert [problem.field for problem in found.problems] == ["--deepspeed"]
    assert found.row == read("--normalization rmsnorm").row
    assert "--deepspeed" not in {one.option for one in found.said}


@pytest.mark.parametrize(("switch", "found"), [("true", "megatron-deepspeed"), ("false", "megatron")])
def test_a_script_that_leaves_deepspeed_off_is_of_megatron(tmp_path: Path, switch: str, found: str) -> None:
    file = tmp_path / "train.sh"
    words = "--num-layers 4 --hidden-size 256 --micro-batch-size 1 --bf16"
    file.write_text(
        f"DEEPSPEED={switch}\nCMD='pretrain_gpt.py {words}'\n"
        'if [ $DEEPSPEED = true ]; then CMD="$CMD --deepspeed --zero-stage 1"; fi\ntorchrun $CMD\n'
    )
    assert format_of(file) == found
