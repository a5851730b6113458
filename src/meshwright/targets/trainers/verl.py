"""verl's supervised fine-tuning: scripts that start `verl.trainer.fsdp_sft_trainer` with Hydra's KEY=VALUE words.

Keys and defaults are those of verl/trainer/config/sft_trainer.yaml and fsdp_sft_trainer.py of verl (2026), whose
weights are fp32 shards that are computed with in bf16, https://github.com/volcengine/verl.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Launch, Script, processes
from meshwright.specs.precision import PRECISIONS
from meshwright.targets import fine_tuning, fsdp
from meshwright.targets.contract import ReadTarget
from meshwright.targets.key_texts import nested_tables
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import commands, shared
from meshwright.targets.trainers.commands import Command

TITLE = "verl"
_PROGRAM = re.compile(r"(?:^|[./])verl[./]\w|(?:^|[./])recipe[./]\w+[./]main_\w+")
_TEXT = re.compile(r"^[^#\n]*(?:-m[ \t]+|[ \t/])verl[./](?:trainer|experimental|recipe)[./]\w+", re.M)
_NEEDED = re.compile(
    r"batch|max_length|lora|target|pretrain|parallel|offload|checkpointing|dtype|n_gpus|nnodes|strategy"
)


def _started(launch: Launch) -> Command | None:
    ours = _PROGRAM.search(launch.program) is not None
    return Command(launch=launch, options=commands.by_keys(launch.words)) if ours else None


def read(script: Script, devices: int | None = None) -> LaunchFile:
    """What a script starts, as a plan.

    Args:
        script: the script as bash means it.
        devices: the number of devices of the job; by default those that the launcher starts.
    """
    fix = "check a script of fsdp_sft_trainer"
    last = commands.start_in(script, _started, TITLE, fix)
    if isinstance(last, LaunchFile):
        return last
    problems = commands.unread(script)
    name = last.launch.program.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    if name != "fsdp_sft_trainer":
        why = "it trains a policy with rollouts: no plan here prices the models that generate and judge them"
        if "sft" in name:
            why = "it fills micro-batches with tokens, in an engine that other files choose, which are not read"
            fix = "price the plan that it makes: check MODEL --plan PLAN"
        return commands.not_read((*problems, Problem(what=f"{TITLE} starts {name}", why=why, fix=fix, field="source")))
    if asked := last.questions(_NEEDED, "model.partial_pretrain"):
        return commands.not_read(problems, asked, last.text("model.partial_pretrain"))
    reader = KeyReader(keys=nested_tables(last.keys()), problems=problems)
    launched = _plan(reader, last, devices or processes(last.launch.launcher)[0] or 1)
    return commands.with_places(launched, last, reader.said(), reader.unpriced())


def _plan(reader: KeyReader, one: Command, world: int) -> LaunchFile:
    sp = reader.degree("ulysses_sequence_parallel_size")
    model = reader.get("model.partial_pretrain")
    if sp > 1 and not reader.switch("use_remove_padding"):
        reader.refuse("use_remove_padding", False, "sequences are cut over ranks without padding only", "use true")
    dp = shared.data_ranks(reader, world, cp=("ulysses_sequence_parallel_size", sp))
    if dp is None:
        return reader.launch(None, model={"name": str(model)} if model else {})
    mbs = reader.degree("data.micro_batch_size_per_gpu", reader.degree("data.micro_batch_size", 4))
    batch = reader.degree("data.train_batch_size", 256)
    if reader.switch("model.fsdp_config.cpu_offload") or reader.switch("model.fsdp_config.offload_params"):
        why = "which states leave the device follows from both keys and the release"
        reader.refuse("model.fsdp_config.cpu_offload", True, why, "use False")
    wide = reader.word("model.fsdp_config.model_dtype", "fp32")
    if wide not in ("fp32", "bf16"):
        reader.refuse("model.fsdp_config.model_dtype", wide, "fp32 and bf16 can be planned", "use fp32")
    if reader.word("model.strategy", "fsdp2") not in ("fsdp", "fsdp2"):
        reader.refuse("model.strategy", reader.get("model.strategy"), "fsdp and fsdp2 are read", "use fsdp2")
    fine_tuning.refuse_seeing(reader, "model.partial_pretrain")
    lora = _lora(reader)
    row = shared.sharded_row(
        dp,
        mbs=mbs,
        gbs=shared.steps_of(reader, "data.train_batch_size", batch, mbs, dp),
        sharded=True,
        context=("a2a", sp),
        recompute="full" if reader.switch("model.enable_gradient_checkpointing", default=True) else "none",
    )
    return shared.launched(
        reader,
        row,
        started=processes(one.launch.launcher)[0],
        precision=fsdp.ALL_IN_16_BITS if wide == "bf16" and lora is None else PRECISIONS["bf16"],
        model=str(model) if model else None,
        optimizer="adamw",
        seq_len=reader.degree("data.max_length", 1024),
        lora=lora,
    )


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    rank = reader.number("model.lora_rank")
    if not rank:
        return None
    return {"r": rank, "targets": fine_tuning.targets_of(reader.get("model.target_modules") or "all-linear")}


TARGET = ReadTarget(
    name="verl",
    title=TITLE,
    version="0.7 (2026)",
    like="accelerate",
    script=read,
    recognised=commands.bash_with(_TEXT),
    software="pytorch-eager",
)
