"""Megatron-LM: what we write it knows, what we write we read back, and what it cannot do we refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.megatron import megatron_script, model_facts, read_flags, translate
from meshwright.formats.megatron.layout import read_layout, write_layout
from meshwright.formats.megatron.model import read_pattern
from meshwright.formats.megatron.options import known_options
from meshwright.formats.megatron.shell import read_script
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import ExecutionPlan, LayerRun, ModelSpec, PlanRow, Workload
from meshwright.specs.job import Job
from meshwright.specs.layers import Attention, DenseMlp, LatentAttention, MoeMlp
from meshwright.specs.model import LayerSpec
from meshwright.specs.strategy import (
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Offload,
    Recompute,
    Tensor1D,
    TensorNamed,
)
from meshwright.specs.workload import PRECISIONS
from tests.formats.jobs import DENSE_LAYER, MOE_LAYER, cluster, job, model
from tests.formats.rows import rows

LISTED = Path(__file__).resolve().parents[2].parent / "shared" / "compiler" / "megatron_args.json"


def split_of(row: PlanRow, extra: Sequence[int] = ()) -> list[int]:
    """Layers of each virtual stage, uneven where asked for."""
    split = [10] * (row.pp * row.vpp)
    for stage, more in enumerate(extra[: len(split)]):
        split[stage] += more
    return split


def with_model(plan: ExecutionPlan, spec: ModelSpec, **workload: Any) -> Job:
    return Job(
        model=spec,
        cluster=cluster(plan.devices),
        workload=Workload(**({"seq_len": 4096, "global_batch": plan.global_batch} | workload)),
        plan=plan,
    )


@given(rows(megatron=True), st.lists(st.integers(0, 3), max_size=6))
def test_a_row_survives_its_flags(row: PlanRow, extra: list[int]) -> None:
    split = split_of(row, extra)
    made = job(plan_of(row, split))
    written = megatron_script(made)
    read = read_flags(written.text)
    assert read.problems == ()
    assert (read.row, read.layout) == (row, tuple(split))
    assert read.model == model_facts(made.model)
    assert read.workload["precision"] == made.workload.precision
    assert (read.workload["seq_len"], read.workload["global_batch"]) == (4096, row.gbs)
    words = [word for flag, value in written.arguments for word in (flag, *value.split())]
    assert read_flags(words, devices=row.devices).row == row


@given(rows(megatron=True), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_experts_survive_their_flags(row: PlanRow, ep: int, etp: int) -> None:
    row = replace(row, sp=True, ep=ep, etp=etp)
    whole = row.tp * row.cp_degree * row.dp
    if whole % (ep * etp) or row.sharding in ("hsdp", "fsdp-keep"):
        row = replace(row, ep=1, etp=1, sharding="z1", shard_group=0, offload="")
    made = job(plan_of(row, split_of(row)), MOE_LAYER)
    read = read_flags(megatron_script(made).text)
    assert read.problems == ()
    assert read.row == row
    assert read.model == model_facts(made.model)


@pytest.fixture(scope="module")
def listed() -> dict[str, dict[str, Any]]:
    if not LISTED.exists():
        pytest.skip("the list of Megatron-LM's options is not here")
    options = json.loads(LISTED.read_text())["options"]
    return {flag: option for option in options for flag in option["flags"]}


def test_our_list_of_options_is_megatrons(listed: dict[str, dict[str, Any]]) -> None:
    assert set(known_options()) == {flag for flag in listed if flag.startswith("--")}


@settings(max_examples=25)
@given(rows(megatron=True))
def test_megatron_knows_every_flag(listed: dict[str, dict[str, Any]], row: PlanRow) -> None:
    for made in (job(plan_of(row, split_of(row))), with_model(plan_of(PlanRow(gbs=1), [61]), DEEPSEEK)):
        check_flags(translate(made).arguments, listed)


def check_flags(arguments: Sequence[tuple[str, str]], listed: dict[str, dict[str, Any]]) -> None:
    for flag, value in arguments:
        option = listed[flag]
        words = value.split()
        if option["nargs"] == 0:
            assert not words, flag
        else:
            assert len(words) == 1 or option["nargs"] == "+", flag
        for word in words:
            {"int": int, "float": float}.get(option["type"], str)(word)
            known = [str(choice).removeprefix("AttnBackend.") for choice in option["choices"] or [word]]
            assert word in known, flag


DEEPSEEK = ModelSpec(
    name="mla",
    family="deepseek",
    hidden=7168,
    vocab=129280,
    max_seq_len=163840,
    runs=(
        LayerRun(
            layers=(
                LATENT := LayerSpec(
                    attention=LatentAttention(
                        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
                    ),
                    mlp=DenseMlp(ffn_hidden=18432, gated=True),
                ),
            ),
            repeats=3,
        ),
        LayerRun(
            layers=(
                replace(
                    LATENT,
                    mlp=MoeMlp(
                        experts=256, top_k=8, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048, router_bias=True
                    ),
                ),
            ),
            repeats=58,
        ),
    ),
    tied_embeddings=False,
    mtp_layers=1,
)
GPT2 = ModelSpec(
    name="learned",
    family="gpt2",
    hidden=768,
    vocab=50257,
    max_seq_len=1024,
    runs=(
        LayerRun(
            layers=(
                LayerSpec(
                    attention=Attention(heads=12, kv_heads=12, head_dim=64, qkv_bias=True, out_bias=True),
                    mlp=DenseMlp(ffn_hidden=3072, gated=False, bias=True),
                    norm="layernorm",
                    dropout=True,
                ),
            ),
            repeats=12,
        ),
    ),
    tied_embeddings=True,
    learned_positions=1024,
    final_norm="layernorm",
)
_FULL = LayerSpec(
    attention=Attention(heads=64, kv_heads=8, head_dim=64, qkv_bias=True, out_bias=True, sinks=True),
    mlp=MoeMlp(experts=32, top_k=4, ffn_hidden=2880, gated=True, router_bias=True, bias=True),
)
WINDOWED = replace(
    DEEPSEEK,
    name="windowed",
    runs=(LayerRun(layers=(replace(_FULL, attention=replace(_FULL.attention, window=128)), _FULL), repeats=12),),
    mtp_layers=0,
)


@pytest.mark.parametrize("spec", [DEEPSEEK, GPT2, WINDOWED], ids=lambda spec: spec.name)
def test_shapes_of_models_survive_their_flags(spec: ModelSpec) -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [spec.num_layers]), spec, seq_len=1024)
    read = read_flags(megatron_script(made).text)
    assert read.problems == ()
    assert read.model == model_facts(spec)


def test_the_window_of_megatron_leaves_out_the_querys_own_key() -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [24]), WINDOWED)
    arguments = dict(megatron_script(made).arguments)
    assert arguments["--window-size"] == "127,0"
    assert arguments["--window-attn-skip-freq"] == "([1]+[0])*12"


def test_multi_token_prediction_sits_before_the_loss() -> None:
    row = PlanRow(pp=4, dp=8, ep=8, sharding="z1", gbs=8)
    made = with_model(plan_of(row, [15, 16, 16, 14]), DEEPSEEK)
    layout = dict(megatron_script(made).arguments)["--pipeline-model-parallel-layout"]
    assert layout == "Et*15|t*16|t*16|t*14mL"
    assert read_flags(megatron_script(made).text).layout == (15, 16, 16, 14)


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_recipe_survives_its_flags(name: str) -> None:
    plan = plan_of(PlanRow(dp=2, sharding="z1", gbs=2), [4])
    for changed in ({}, {"moments": "bf16"}):
        recipe = replace(PRECISIONS[name], **changed)
        made = job(plan)
        made = replace(made, workload=replace(made.workload, precision=recipe))
        read = read_flags(megatron_script(made).text)
        assert read.problems == ()
        assert read.workload["precision"] == recipe


# What is refused.


def variant(**strategy: Any) -> Job:
    """Eight devices in one stage, one thing of the strategy changed."""
    base = plan_of(PlanRow(dp=8, sharding="z1", gbs=16), [8])
    held = replace(base.strategies[0], **strategy)
    return job(replace(base, strategies=(held,)), MOE_LAYER)


REFUSED: dict[str, tuple[Job, str]] = {
    "2d": (variant(tensor=TensorNamed(name="2d", degree=4), data=DataParallel(replicate=2)), "tensor.name"),
    "no overlap": (
        variant(tensor=Tensor1D(degree=2, overlap="none"), data=DataParallel(replicate=4)),
        "tensor.overlap",
    ),
    "experts without sp": (
        variant(tensor=Tensor1D(degree=2, sequence_parallel=False), data=DataParallel(replicate=4)),
        "tensor.sequence_parallel",
    ),
    "striped": (
        variant(context=(ContextParallel(kind="p2p", degree=2, layout="striped"),), data=DataParallel(replicate=4)),
        "context.layout",
    ),
    "shadowed": (variant(expert=ExpertParallel(ep=8, shadowed=1)), "expert.shadowed"),
    "experts that travel": (variant(expert=ExpertParallel(ep=8, dispatcher="move-experts")), "expert.dispatcher"),
    "int8 gathers": (variant(data=DataParallel(shard=8, zero=3, gather_dtype="int8")), "data.gather_dtype"),
    "second copy": (variant(data=DataParallel(shard=8, zero=3, secondary_shard=4)), "data.secondary_shard"),
    "elastic": (variant(data=DataParallel(replicate=8, averaging="elastic")), "data.averaging"),
    "table of recompute": (variant(recompute=Recompute(kind="optimal", reference="x")), "recompute.kind"),
    "weights away": (variant(offload=Offload(weights=1.0)), "offload.weights"),
    "nvme": (variant(offload=Offload(optimizer=1.0, tier="nvme")), "offload.tier"),
    "tiles": (variant(optimizer_tile=1000), "optimizer_tile"),
    "gpipe": (job(plan_of(PlanRow(pp=2, gbs=4, schedule="gpipe"), [4, 4])), "schedule"),
    "chimera": (job(plan_of(PlanRow(pp=2, gbs=4, schedule="chimera"), [4, 4])), "schedule"),
    "short group": (job(plan_of(PlanRow(pp=4, vpp=2, gbs=6, schedule="interleaved"), [1] * 8)), "num_micro_batches"),
    "unsharded offload": (job(plan_of(PlanRow(dp=2, gbs=2, offload="o"), [4])), "offload.optimizer"),
    "kept gathers": (job(plan_of(PlanRow(pp=2, dp=2, gbs=4, sharding="fsdp-keep"), [4, 4])), "data.reshard"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_megatron_cannot_do_is_refused_by_name(name: str) -> None:
    made, field = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        megatron_script(made)
    assert caught.value.exit_code == 4
    assert field in [problem.field for problem in caught.value.problems]
    assert all(problem.why for problem in caught.value.problems)
    assert translate(made).text == ""


def test_stages_that_differ_are_refused_field_by_field() -> None:
    base = plan_of(PlanRow(tp=2, pp=2, gbs=4), [4, 4])
    other = replace(base.strategies[0], recompute=Recompute(kind="selective", modules=("mlp",)))
    head, tail = base.pipelines[0].workers
    run = replace(tail.chunks[0].runs[0], strategy=1)
    tail = replace(tail, chunks=(replace(tail.chunks[0], runs=(run,)),))
    pipeline = replace(base.pipelines[0], workers=(head, tail))
    made = job(ExecutionPlan(strategies=(*base.strategies, other), pipelines=(pipeline,)))
    fields = [problem.field for problem in translate(made).refused]
    assert fields == ["strategies.recompute.kind", "strategies.recompute.modules"]


def test_all_refusals_come_together() -> None:
    row = PlanRow(pp=2, dp=2, gbs=4, schedule="gpipe", offload="wo")
    made = job(plan_of(row, [4, 4]))
    odd = replace(made.workload, training=False, optimizer="muon", precision=replace(PRECISIONS["bf16"], moments="fp4"))
    fields = {problem.field for problem in translate(replace(made, workload=odd)).refused}
    assert fields >= {
        "schedule",
        "offload.weights",
        "offload.optimizer",
        "workload.training",
        "workload.precision.moments",
    }


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"embedding_norm": True}, "model.embedding_norm"),
        ({"head_bias": True}, "model.head_bias"),
        ({"final_norm": None}, "model.final_norm"),
        ({"runs": (LayerRun(layers=(DENSE_LAYER, replace(DENSE_LAYER, norms=4)), repeats=4),)}, "model.norms"),
        ({"runs": (LayerRun(layers=(replace(DENSE_LAYER, parallel_block=True),), repeats=8),)}, "model.parallel_block"),
    ],
)
def test_shapes_that_megatron_does_not_build_are_refused(changed: dict[str, Any], field: str) -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [8]), replace(model(8), **changed))
    assert field in [problem.field for problem in translate(made).refused]


def test_a_row_of_modules_beyond_the_core_is_written() -> None:
    made = variant(recompute=Recompute(kind="selective", modules=("core_attn", "moe_act")))
    assert dict(megatron_script(made).arguments)["--recompute-modules"] == "core_attn moe_act"
    assert any("core_attn moe_act" in problem.what for problem in read_flags(megatron_script(made).text).problems)


# The script.


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_starts_what_the_export_says(tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    launcher.chmod(0o755)
    row = PlanRow(tp=2, pp=2, dp=4, cp=(("a2a", 2), ("p2p", 2)), sharding="z1", recompute="sel", gbs=16, offload="a")
    written = megatron_script(job(plan_of(row, [7, 9]), name="it's `rm -rf` $HOME\nnot"), predicted="1.2 s\nrm -rf /")
    script = tmp_path / "run.sh"
    script.write_text(written.text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MEGATRON": "/opt/megatron"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    start = words.index("/opt/megatron/pretrain_gpt.py") + 1
    expected = [word for flag, value in written.arguments for word in (flag, *value.split())]
    assert words[start : start + len(expected)] == expected
    assert read_flags(words).row == row
    assert all(line.startswith("#") for line in written.text.splitlines()[:8])


HAND_WRITTEN = r"""#!/bin/bash
# A script as people write them.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE * $NNODES))
TP=4; PP=2
if [ -z "$1" ]; then
  SAVE="no where"
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE \
    --nnodes=$NNODES --master_port 6000"
GPT_ARGS="
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --seq-length 8192 --max-position-embeddings 8192
    --micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 4))
    --bf16 --swiglu --disable-bias-linear
"
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size=$PP   # stages
    --sequence-parallel
    --num-layers-per-virtual-pipeline-stage 4
)
MODEL_PARALLEL_ARGS+=(--use-distributed-optimizer --overlap-grad-reduce)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $GPT_ARGS "${MODEL_PARALLEL_ARGS[@]}" \
    --recompute-activations \
    --save "$SAVE" 2>&1 | tee log.txt
"""


def test_a_hand_written_script_is_read() -> None:
    read = read_flags(HAND_WRITTEN)
    assert read.problems == ()
    assert read.row == PlanRow(
        tp=4, pp=2, vpp=4, dp=4, sharding="z1", mbs=1, gbs=128, schedule="interleaved", recompute="sel"
    )
    assert read.layout == (4,) * 8
    assert (read.model["num_layers"], read.model["ffn_hidden"]) == (32, 10880)


def test_what_only_the_shell_knows_is_reported() -> None:
    read = read_flags("torchrun --nproc_per_node 8 a.py --micro-batch-size $MBS --tensor-model-parallel-size `nvidia`")
    assert read.unresolved == ("MBS", "`nvidia`")
    assert read.row is None
    text = " ".join(problem.what for problem in read.problems)
    assert "--micro-batch-size has no value" in text
    assert "does not say MBS" in text


def test_all_problems_of_a_configuration_come_together() -> None:
    read = read_flags(
        "--tensor-model-paralel-size 4 --pipeline-model-parallel-size two --micro-batch-size 1 "
        "--recompute-granularity ful --fp16=yes --global-batch-size 7 --cp-comm-type",
        devices=8,
    )
    text = str(InputError(read.problems))
    for piece in (
        "did you mean --tensor-model-parallel-size",
        "'two'",
        "did you mean full?",
        "it is a switch",
        "multiple of micro-batch 1 x dp 8",
        "--cp-comm-type has no value",
    ):
        assert piece in text


@pytest.mark.parametrize(
    ("options", "devices", "says"),
    [
        ("--tensor-model-parallel-size 3", 8, "multiple of tp 3"),
        ("--tensor-model-parallel-size 0", 8, "at least 1"),
        ("--tp-comm-overlap --tensor-model-parallel-size 2", 8, "needs sequence parallelism"),
        ("--num-experts 8 --expert-model-parallel-size 3", 8, "must divide tp x cp x dp = 8"),
        ("--num-experts 8 --tensor-model-parallel-size 2", 8, "--sequence-parallel is not given"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p", 8, "two degrees"),
        ("--recompute-granularity full", 8, "needs --recompute-method"),
        ("--num-distributed-optimizer-instances 3 --use-distributed-optimizer", 8, "must divide dp x cp = 8"),
        ("--rampup-batch-size 1 1 1", 8, "has no place in a plan"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", 8, "taken as all"),
        ("--bf16", None, "number of devices is not said"),
    ],
)
def test_contradictions_are_named(options: str, devices: int | None, says: str) -> None:
    read = read_flags(f"--micro-batch-size 1 {options}", devices=devices)
    assert says in " ".join(f"{problem.what} {problem.why}" for problem in read.problems)


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ("--num-layers 32", (8, 8, 8, 8)),
        (
            "--num-layers 30 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            (7, 8, 8, 7),
        ),
        ("--num-layers 30 --decoder-first-pipeline-num-layers 6", (6, 8, 8, 8)),
        ("--num-layers 28 --decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6", (6, 8, 8, 6)),
        ("--num-layers 32 --num-virtual-stages-per-pipeline-rank 2", (4,) * 8),
        ("--num-layers 14 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*3,L", (3, 4, 4, 3)),
        ("--num-layers 31", None),
        ("--num-layers 15 --pipeline-model-parallel-layout Et*3|t*4|t*4|t*3,L", None),
    ],
)
def test_splits_of_layers_are_read(options: str, layout: tuple[int, ...] | None) -> None:
    words = options.split()
    rest = "--hidden-size 64 --num-attention-heads 4 --pipeline-model-parallel-size 4 --micro-batch-size 1"
    read = read_flags([*words, *rest.split()], devices=4)
    assert read.layout == layout
    assert bool(read.problems) == (layout is None)


@given(st.text(max_size=200))
def test_junk_is_read_without_an_exception(text: str) -> None:
    assert read_flags(text).row is None


pieces = st.sampled_from(
    [
        "--",
        "$A",
        "${A:-",
        "$((",
        "(",
        ")",
        '"',
        "'",
        "\\",
        "`",
        "A=$A$A",
        "\n",
        "#",
        "--tp",
        "x.py ",
        "--num-layers ",
        "9",
    ]
)


@given(st.lists(pieces, max_size=40).map("".join))
def test_broken_scripts_are_read_without_an_exception(text: str) -> None:
    read_flags(text)
    read_flags(text, devices=8)


def test_variables_that_grow_without_end_stop() -> None:
    script = read_script("A=xxxxxxxxxx\n" + "A=$A$A\n" * 60)
    assert "without end" in script.broken


# Layouts and patterns.


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(0, 2))
def test_a_layout_survives_its_text(layers: list[int], mtp: int) -> None:
    assert read_layout(write_layout(layers, mtp)) == (tuple(layers), mtp)


@pytest.mark.parametrize(
    ("text", "layers", "mtp"),
    [
        ("Ettt|(tt|)*29,m|L", (3, *[2] * 29, 0, 0), 1),
        ("Et*3|(tt|)*2t*3L", (3, 2, 2, 3), 0),
        ("E|t|L", (0, 1, 0), 0),
    ],
)
def test_layouts_of_the_wild_are_read(text: str, layers: tuple[int, ...], mtp: int) -> None:
    assert read_layout(text) == (layers, mtp)


@pytest.mark.parametrize(
    "text", ["", "tL", "Et", "EtLt", "EtxL", "E(tL", "Et)L", "Et*L", "EmtL", "E(((t)*99999)*99999)L"]
)
def test_wrong_layouts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="pipeline-model-parallel-layout"):
        read_layout(text)


@given(st.text(alphabet="EtmL|()*123", max_size=30))
def test_junk_layouts_are_an_error_of_ours(text: str) -> None:
    try:
        layers, _ = read_layout(text)
    except InputError:
        layers = (0,)
    assert layers


def test_patterns_of_layers() -> None:
    assert read_pattern("([0]*3+[1]*2)", 5) == [False] * 3 + [True] * 2
    assert read_pattern("([1]+[0])*2", 4) == [True, False, True, False]
    assert read_pattern("[1,0,1]", 3) == [True, False, True]
    assert read_pattern("2", 4) == [True, False, True, False]
    assert read_pattern("[1]*3", 4) is None
    assert read_pattern("__import__('os')", 4) is None
