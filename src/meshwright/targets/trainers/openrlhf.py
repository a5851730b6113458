"""OpenRLHF's supervised fine-tuning: scripts that start `openrlhf.cli.train_sft`, which makes DeepSpeed's file itself.

Names and defaults are those of openrlhf/cli/train_sft.py and utils/deepspeed of OpenRLHF 0.9 (2026), with the flat
names of releases before, https://github.com/OpenRLHF/OpenRLHF.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Launch, Script, processes
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning
from meshwright.targets.contract import ReadTarget
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import commands, shared
from meshwright.targets.trainers.commands import Command

TITLE = "OpenRLHF"
_PROGRAM = re.compile(r"openrlhf[./]cli[./](train_\w+?)(?:\.py)?$")
_TEXT = re.compile(r"^[^#\n]*openrlhf[./]cli[./]train_\w+", re.M)
_NEEDED = re.compile(
    r"batch|zero|zpg|offload|dtype|bf16|max_len|lora|checkpointing|ring|tensor_parallel|4bit|pretrain|model"
)
_FLAT = {
    "model.model_name_or_path": "pretrain",
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "data.max_len": "max_len",
    "ds.zero_stage": "zero_stage",
    "ds.zpg": "zpg",
    "ds.adam_offload": "adam_offload",
    "ds.overlap_comm": "overlap_comm",
    "ds.grad_accum_dtype": "grad_accum_dtype",
    "ds.param_dtype": "param_dtype",
    "ds.packing_samples": "packing_samples",
    "ds.ring_attn_size": "ring_attn_size",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "ds.load_in_4bit": "load_in_4bit",
    "ds.lora.rank": "lora_rank",
    "ds.lora.target_modules": "target_modules",
    "ds.lora.dropout": "lora_dropout",
    "ds.use_liger_kernel": "use_liger_kernel",
    "ds.deepcompile": "deepcompile",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
}
"""Today's names with those of releases before 0.9."""


_SFT = "check a script of train_sft"


def _started(launch: Launch) -> Command | None:
    match = _PROGRAM.search(launch.program)
    return Command(launch=launch, options=commands.options_by_name(launch.words)) if match is not None else None


def read(script: Script, devices: int | None = None) -> LaunchFile:
    """What a script starts, as a plan.

    Args:
        script: the script as bash means it.
        devices: the number of devices of the job; by default those that the launcher starts.
    """
    last = commands.start_in(script, _started, TITLE, _SFT)
    if isinstance(last, LaunchFile):
        return last
    problems = commands.unread(script)
    kind = _PROGRAM.search(last.launch.program)[1]  # type: ignore[index]
    if kind != "train_sft":
        what = f"{TITLE} starts {kind}"
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
        return commands.not_read((*problems, Problem(what=what, why=why, fix=_SFT, field="source")))
    model = next((name for name in ("model.model_name_or_path", "pretrain") if name in last.options), "pretrain")
    if asked := last.questions(_NEEDED, model):
        return commands.not_read(problems, asked, last.text(model))
    keys = last.keys()
    reader = KeyReader(keys=_nested(keys), problems=problems)
    launched = _plan(reader, last, devices or processes(last.launch.launcher)[0] or 1)
    back = {path: old if old in keys else path for path, old in _FLAT.items()}
    said = tuple(commands.renamed(one, back.get(one.option, one.option)) for one in reader.said())
    left = tuple(commands.renamed(one, back.get(one.option, one.option)) for one in reader.unpriced())
    return commands.with_places(launched, last, said, left)


def _nested(keys: dict[str, Any]) -> dict[str, Any]:
    """Options by today's names, tables within tables."""
    from meshwright.targets.key_texts import nested_tables

    today = {old: path for path, old in _FLAT.items()}
    return nested_tables({today.get(name, name): value for name, value in keys.items()})


def _plan(reader: KeyReader, one: Command, world: int) -> LaunchFile:
    tp, cp = reader.degree("ds.tensor_parallel_size"), reader.degree("ds.ring_attn_size")
    model = reader.get("model.model_name_or_path")
    dp = shared.data_ranks(reader, world, tp=("ds.tensor_parallel_size", tp), cp=("ds.ring_attn_size", cp))
    if dp is None:
        return reader.launch(None, model={"name": str(model)} if model else {})
    mbs, batch = reader.degree("train.micro_batch_size", 8), reader.degree("train.batch_size", 128)
    zero = reader.number("ds.zero_stage", 2)
    if zero > 3:
        reader.refuse("ds.zero_stage", zero, "must be 0, 1, 2 or 3", "use 3")
    if reader.degree("ds.zpg") > 1:
        reader.refuse("ds.zpg", reader.get("ds.zpg"), "a second copy of shards in a node is not read", "use 1")
    fine_tuning.refuse_on(reader, ("ds.deepcompile",), "what it moves while it runs is in no plan")
    if reader.word("optim", "adam") != "adam":
        reader.refuse("optim", reader.get("optim"), "adam can be planned", "use adam")
    dtype = "fp16" if reader.word("ds.param_dtype") == "fp16" else "bf16"
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=(("p2p", cp),) if cp > 1 else (),
        dp=dp,
        sharding=f"z{min(zero, 3)}",
        mbs=mbs,
        gbs=shared.steps_of(reader, "train.batch_size", batch, mbs, dp),
        offload="og" if reader.switch("ds.adam_offload") else "",
        dp_overlap=reader.switch("ds.overlap_comm") or zero == 3,
        recompute="full" if reader.switch("model.gradient_checkpointing_enable") else "none",
    )
    return shared.launched(
        reader,
        row,
        started=processes(one.launch.launcher)[0],
        precision=PRECISIONS[dtype],
        model=str(model) if model else None,
        optimizer="adamw",
        seq_len=reader.degree("data.max_len", 2048),
        lora=_lora(reader),
    )


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    rank = reader.number("ds.lora.rank")
    if not rank:
        if reader.switch("ds.load_in_4bit"):
            reader.refuse("ds.load_in_4bit", True, "all weights are trained", "leave it out")
        return None
    found = {
        "r": rank,
        "targets": fine_tuning.targets_of(reader.get("ds.lora.target_modules") or "all-linear"),
        "dropout": reader.get("ds.lora.dropout", 0.0),
        "base": "nf4" if reader.switch("ds.load_in_4bit") else None,
    }
    return {name: value for name, value in found.items() if value}


TARGET = ReadTarget(
    name="openrlhf",
    title=TITLE,
    version="0.9 (2026)",
    like="deepspeed",
    script=read,
    recognised=commands.bash_with(_TEXT),
    software="pytorch-eager",
)
