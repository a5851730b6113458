"""Plans as launch scripts: every flag is Megatron-LM's, what it cannot do is refused."""

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

from meshwright.errors import UnsupportedError
from meshwright.formats.megatron import megatron_script, model_facts, translate
from meshwright.formats.megatron.options import known_options
from meshwright.formats.megatron.read import read_flags
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import ExecutionPlan, PlanRow
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import (
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Offload,
    Recompute,
    Tensor1D,
    TensorNamed,
)
from tests.formats.jobs import MOE_LAYER, job
from tests.formats.megatron.specs import DEEPSEEK, with_model
from tests.formats.rows import rows

LISTED = Path(__file__).resolve().parents[3].parent / "shared" / "compiler" / "megatron_args.json"


def split_of(row: PlanRow, extra: Sequence[int] = ()) -> list[int]:
    """Layers of each virtual stage, uneven where asked for."""
    split = [10] * (row.pp * row.vpp)
    for stage, more in enumerate(extra[: len(split)]):
        split[stage] += more
    return split


@given(rows(megatron=True), st.lists(st.integers(0, 3), max_size=6))
def test_a_row_survives_its_flags(row: PlanRow, extra: list[int]) -> None:
    split = split_of(row, extra)
    made = job(plan_of(row, split))
    written = megatron_script(made)
    read = read_flags(written.text)
    assert read.problems == ()
    assert (read.row, read.layout) == (row, tuple(split))
    assert model_facts(made.model).items() <= read.model.items()
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
    assert model_facts(made.model).items() <= read.model.items()


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


def test_multi_token_prediction_sits_before_the_loss() -> None:
    row = PlanRow(pp=4, dp=8, ep=8, sharding="z1", gbs=8)
    made = with_model(plan_of(row, [15, 16, 16, 14]), DEEPSEEK)
    layout = dict(megatron_script(made).arguments)["--pipeline-model-parallel-layout"]
    assert layout == "Et*15|t*16|t*16|t*14mL"
    assert read_flags(megatron_script(made).text).layout == (15, 16, 16, 14)


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
    "ring": (variant(data=DataParallel(shard=8, zero=3, passing="ring")), "data.passing"),
    "elastic": (variant(data=DataParallel(replicate=8, averaging="elastic")), "data.averaging"),
    "table of recompute": (variant(recompute=Recompute(kind="optimal", reference="x")), "recompute.kind"),
    "weights away": (variant(offload=Offload(weights=1.0)), "offload.weights"),
    "gradients away": (variant(offload=Offload(optimizer=1.0, gradients=1.0)), "offload.gradients"),
    "nvme": (variant(offload=Offload(optimizer=1.0, tier="nvme")), "offload.tier"),
    "tiles": (variant(optimizer_tile=1000), "optimizer_tile"),
    "gpipe": (job(plan_of(PlanRow(pp=2, gbs=4, schedule="gpipe"), [4, 4])), "schedule"),
    "chimera": (job(plan_of(PlanRow(pp=2, gbs=4, schedule="chimera"), [4, 4])), "schedule"),
    "short group": (job(plan_of(PlanRow(pp=4, vpp=2, gbs=6, schedule="interleaved"), [1] * 8)), "num_micro_batches"),
    "unsharded offload": (job(plan_of(PlanRow(dp=2, gbs=2, offload="o"), [4])), "offload.optimizer"),
    "offload unsharded over context": (
        job(plan_of(PlanRow(cp=(("ag", 2),), gbs=2, offload="o"), [4])),
        "offload.optimizer",
    ),
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


def test_a_row_of_modules_beyond_the_core_is_written() -> None:
    made = variant(recompute=Recompute(kind="selective", modules=("core_attn", "moe_act")))
    assert dict(megatron_script(made).arguments)["--recompute-modules"] == "core_attn moe_act"
    row = read_flags(megatron_script(made).text).row
    assert row is not None
    assert row.recompute_modules == ("core_attn", "moe_act")
    assert parse_row(row.format(), devices=row.devices, global_batch=row.gbs, schedules=()) == row


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


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("epdedup", {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "deepep"}),
        ("epag", {"--moe-token-dispatcher-type": "allgather"}),
        ("epov", {"--overlap-moe-expert-parallel-comm": ""}),
        ("epdedup.epov-wgrad", {"--overlap-moe-expert-parallel-comm": "", "--delay-wgrad-compute": ""}),
        ("epov-shared", {"--moe-shared-expert-overlap": ""}),
    ],
)
def test_how_tokens_reach_experts_is_written_and_read(token: str, said: dict[str, str]) -> None:
    row = parse_row(f"pp2.vpp2.ep4.{token}.dp4.z1.mbs1.gbs16", devices=8, global_batch=16, schedules=())
    written = megatron_script(job(plan_of(row, [2, 2, 2, 2]), MOE_LAYER))
    flags = dict(written.arguments)
    assert {name: flags.get(name) for name in said} == said
    assert read_flags(written.text).row == row
