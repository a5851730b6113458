"""What targets share whose YAML says a whole fine-tuning: model, length, adapters, batch and engine in one file.

Their engines are others': DeepSpeed with its JSON, FSDP2, or copies of the weights (DDP).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.tuning import ALL_LINEAR, Lora
from meshwright.targets import deepspeed, hugging_face
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.keys import KeyReader, Keys, json_text, table_of
from meshwright.targets.sayable import Plan

ENGINE = "deepspeed"
"""The key that names a file of DeepSpeed."""


_BATCHES = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""What the trainer says itself, and compares with the JSON where that has a number."""


def reader_of(files: Files, file: tuple[str, str], title: str) -> KeyReader:
    """The keys of a file, those of the command line that starts it over them.

    Args:
        files: of the run.
        file: name and text of the YAML.
        title: of the target.
    """
    keys = table_of(file[1], "YAML", f"{title} configuration")
    over = text_beside(files, hugging_face.ARGUMENTS)
    return KeyReader(keys={**keys, **(json.loads(over) if over else {})}, file=file)


def engine_named(text: str) -> tuple[str, ...]:
    """The file of DeepSpeed that a YAML names."""
    keys = (f"{ENGINE}:", "config_file:")
    values = (line.partition(":")[2].partition(" #")[0] for line in text.splitlines() if line.strip().startswith(keys))
    named = [value.strip().strip("\"'") for value in values]
    return tuple(name for name in named if name.endswith(".json"))


def of_deepspeed(
    reader: KeyReader, files: Files, trainer: hugging_face.Arguments, devices: int | None
) -> LaunchFile | None:
    """What the JSON of DeepSpeed says that the keys name, or hold; None where there is none, which is asked for."""
    said = reader.get(ENGINE)
    if isinstance(said, Mapping):
        own = KeyReader(keys=said, problems=reader.problems, file=reader.file)
    else:
        name = PurePath(str(said)).name
        text = text_beside(files, name)
        if text is None:
            return None
        own = KeyReader(
            keys=table_of(text, "JSON", "configuration of DeepSpeed"), problems=reader.problems, file=(name, text)
        )
    reader.beside.append(own)
    for key, value in zip(_BATCHES, (trainer.mbs, trainer.steps), strict=True):
        if own.get(key, "auto") not in ("auto", value):
            own.refuse(key, own.get(key), f"the trainer has {value}, and stops where they differ", "write auto")
    return deepspeed.launch_of(own, trainer, devices)


def engine_missing(reader: KeyReader) -> Problem:
    """Asks for the file of DeepSpeed."""
    name = str(reader.get(ENGINE))
    why = "it states what is sharded and offloaded, and is not beside the file that names it"
    return Problem(what=f"{name[:80]} is not here", why=why, fix=f"put it at {name[:80]} from there", field=ENGINE)


def engine_files(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The JSON of DeepSpeed for a plan that it runs; its batch of a step tells how many devices there are, too."""
    if not by_deepspeed(plan):
        return ()
    return ((deepspeed.CONFIG, json_text(deepspeed.configuration(plan) | dict.fromkeys(_BATCHES, "auto"))),)


def by_deepspeed(plan: Plan) -> bool:
    """Whether DeepSpeed runs a plan: whole copies, or states sharded as ZeRO does."""
    return plan.strategy.data.family != "fsdp"


def lora_of(plan: Plan) -> Lora | None:
    """The adapters of a plan."""
    return plan.model.tuning.lora if plan.model.tuning is not None else None


def targets_of(said: object) -> list[str]:
    """Modules with adapters, which files name in a list, or in one text with commas; `all` for every product."""
    names = said if isinstance(said, list) else [part.strip() for part in str(said).split(",") if part.strip()]
    return [ALL_LINEAR] if "all" in names else [str(name) for name in names]


def dtype_keys(plan: Plan) -> Keys:
    """The format of activations as switches."""
    return {"bf16": plan.precision.activations == "bf16", "fp16": plan.precision.activations == "fp16"}


def with_fields(launched: LaunchFile, reader: KeyReader, model: object, **workload: Any) -> dict[str, Any]:
    """Fields of a `LaunchFile`: what an engine said, with the rest of the file around it."""
    return {
        "model": {"name": str(model)} if model else {},
        "workload": {**launched.workload, **{name: value for name, value in workload.items() if value is not None}},
        "questions": launched.questions,
        "notes": launched.notes,
    }
