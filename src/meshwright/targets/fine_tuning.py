"""What targets share whose YAML says a whole fine-tuning: model, length, adapters, batch and engine in one file.

Their engines are others': DeepSpeed with its JSON, FSDP2, or copies of the weights (DDP).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, Problem
from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import deepspeed, fsdp, hugging_face
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.key_texts import Keys, json_text, table_of
from meshwright.targets.sayable import Plan, Rule, only

if TYPE_CHECKING:
    from meshwright.formats.launch_file import LaunchFile
    from meshwright.targets.keys import KeyReader

AS_LOADED = (
    fsdp.ALL_IN_16_BITS.name,
    stated(PRECISIONS["bf16"], {"grad_dtype": "bf16", "moment_dtype": "bf16", "main_copy": "none"}).name,
    stated(PRECISIONS["bf16"], {"grad_dtype": "bf16", "main_copy": "none"}).name,
)
"""Names of the formats of weights that are loaded in 16 bits and trained so: a question leaves the messages out, and of
optimizers with formats of their own the moments."""
PACKED = only((), "pack", why="samples share rows of one length", fix="use --packing pack")
"""How sequences of unlike lengths fill rows: a row holds as many as fit."""
ENGINE = "deepspeed"
"""The key that names a file of DeepSpeed."""
_SEES = re.compile(
    r"(?i)(?:^|[-_./\d])(?:vl|omni|audio|ocr|vision|llava|internvl|ovis|minicpm-?v|voxtral|pixtral)(?:$|[-_./\d])"
)
"""Words in names of models that see or hear."""


def refuse_seeing(reader: KeyReader, path: str) -> None:
    """Refuse a model, by its name, that images or sound go through before the text."""
    name = str(reader.get(path) or "")
    if _SEES.search(name):
        why = "images or sound go through a tower before the text, which a plan of its decoder leaves out"
        reader.refuse(path, name, why, "check a file of a text model")


def refuse_on(reader: KeyReader, names: Iterable[str], why: str, fix: str = "leave it out") -> None:
    """Refuse keys that are given and not empty, nor off."""
    for name in names:
        value = reader.get(name)
        if value not in (None, False, "", 0, [], {}):
            shown = "given" if isinstance(value, (Mapping, list)) else value
            reader.refuse(name, shown, why, fix)


_BATCHES = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""What the trainer says itself, and compares with the JSON where that has a number."""


def reader_of(files: Files, file: tuple[str, str], title: str, marks: Iterable[str] = ()) -> KeyReader:
    """The keys of a file, those of the command line that starts it over them.

    Args:
        files: the files of the run.
        file: name and text of the YAML.
        title: the title of the target.
        marks: keys of which one stands in every file of it: where the file has none, a launcher's file may hold the
            trainer's in a table of its own.

    Raises:
        InputError: the text is no YAML, or holds the trainer's keys in several tables.
    """
    from meshwright.targets.keys import KeyReader  # searches read no files
    from meshwright.targets.overrides import laid_over

    keys = _trainers(table_of(file[1], "YAML", f"{title} configuration"), tuple(marks), title)
    given = text_beside(files, hugging_face.ARGUMENTS)
    keys, over = laid_over({**keys, **(json.loads(given) if given else {})}, files)
    return KeyReader(keys=keys, file=file, over=over)


def _trainers(keys: Keys, marks: tuple[str, ...], title: str) -> Keys:
    """The table of a file in which a trainer's own keys stand: the file itself, or one within it."""
    if not marks or any(mark in keys for mark in marks):
        return keys
    outer = [value for value in keys.values() if isinstance(value, Mapping)]
    inner = [value for table in outer for value in table.values() if isinstance(value, Mapping)]
    found = [dict(table) for table in (*outer, *inner) if any(mark in table for mark in marks)]
    if len(found) > 1:
        why = f"{len(found)} tables of it hold keys of {title}"
        raise InputError(Problem(what="the file holds several jobs", why=why, fix="check one in a file of its own"))
    return found[0] if found else keys


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
    from meshwright.targets.deepspeed.read import launch_of  # searches read no files
    from meshwright.targets.keys import KeyReader

    said = reader.get(ENGINE)
    if isinstance(said, Mapping):
        own = KeyReader(keys=said, problems=reader.problems, file=reader.file)
    else:
        name = PurePath(str(said)).name
        text = text_beside(files, name)
        shipped = SHIPPED.get("/".join(PurePath(str(said)).parts[-2:]))
        if text is None and shipped is None:
            return None
        keys = shipped if text is None else table_of(text, "JSON", "configuration of DeepSpeed")
        own = KeyReader(keys=keys or {}, problems=reader.problems, file=(name, text or ""))
    reader.beside.append(own)
    for key, value in zip(_BATCHES, (trainer.mbs, trainer.steps), strict=True):
        if key not in trainer.stated and own.get(key, "auto") not in ("auto", value):
            own.refuse(key, own.get(key), f"the trainer has {value}, and stops where they differ", "write auto")
    return launch_of(own, trainer, devices)


def _of_zero(stage: int, *, overlap: bool, hosts: str = "", bf16: bool | str = "auto", tp: int = 1) -> Keys:
    """A file of DeepSpeed that leaves batches to the trainer: `hosts` names what the host's memory holds."""
    zero: Keys = {"stage": stage, "overlap_comm": overlap}
    zero |= {f"offload_{part}": {"device": "cpu"} for part in hosts.split()}
    tensors = {"tensor_parallel": {"autotp_size": tp}} if tp > 1 else {}
    auto = dict.fromkeys((*_BATCHES, "train_batch_size"), "auto")
    return {**auto, "bf16": {"enabled": bf16}, "fp16": {"enabled": "auto"}, "zero_optimization": zero, **tensors}


SHIPPED: dict[str, Keys] = {
    **{f"deepspeed_configs/zero1{more}.json": _of_zero(1, overlap=True) for more in ("", "_torch_compile")},
    **{
        f"deepspeed_configs/zero2{more}.json": _of_zero(2, overlap=True, hosts="optimizer")
        for more in ("", "_torch_compile")
    },
    "deepspeed_configs/zero3.json": _of_zero(3, overlap=True),
    "deepspeed_configs/zero3_bf16.json": _of_zero(3, overlap=True, bf16=True),
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": _of_zero(3, overlap=True, hosts="optimizer param", bf16=True),
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": _of_zero(3, overlap=True, hosts="param", bf16=True),
    **{f"deepspeed/ds_z{stage}_config.json": _of_zero(stage, overlap=False) for stage in (0, 2, 3)},
    "deepspeed/ds_z2_offload_config.json": _of_zero(2, overlap=False, hosts="optimizer"),
    "deepspeed/ds_z3_offload_config.json": _of_zero(3, overlap=False, hosts="optimizer param"),
    "deepspeed/ds_z2_autotp_config.json": _of_zero(2, overlap=False, tp=2),
}
"""Files of DeepSpeed that come with axolotl (deepspeed_configs) and LLaMA-Factory (examples/deepspeed), by the end of
their path: read where the file is not here. Source: axolotl 0.19.0 and llamafactory 0.9.5 (2026-11)."""


def shipped_note(reader: KeyReader, files: Files) -> tuple[str, ...]:
    """Says that a file that is not here was taken as the one of that name that is shipped."""
    said = str(reader.get(ENGINE) or "")
    known = "/".join(PurePath(said).parts[-2:]) in SHIPPED
    if not known or text_beside(files, PurePath(said).name) is not None:
        return ()
    return (f"{said[:80]} is not here: taken as the file of that name that comes with the program",)


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
    """Whether DeepSpeed runs a plan: whole copies with a main copy of weights, or states sharded as ZeRO does."""
    return plan.strategy.data.family != "fsdp" and not copies_as_loaded(plan)


def copies_as_loaded(plan: Plan) -> bool:
    """Whether the trainer itself runs a plan: whole copies of weights that are trained in the 16 bits they load in."""
    return plan.strategy.data.family != "fsdp" and plan.model.lora is None and plan.precision.name in AS_LOADED


def as_loaded(source: str) -> Rule:
    """Such copies have no engine that would shard or offload.

    Args:
        source: the source where the target says so.
    """
    return Rule(
        field="precision",
        holds=lambda plan: (
            not copies_as_loaded(plan)
            or plan.strategy.data.zero == plan.strategy.offload.weights == plan.strategy.offload.optimizer == 0
        ),
        why="DeepSpeed keeps a main copy and moments in fp32",
        fix="leave out main_copy, or neither shard nor offload",
        source=source,
    )


def targets_of(said: object) -> list[str]:
    """Modules with adapters, which files name in a list, or in one text with commas; `all` for every product."""
    names = said if isinstance(said, list) else [part.strip() for part in str(said).split(",") if part.strip()]
    return [ALL_LINEAR] if "all" in names else [str(name) for name in names]


def dtype_keys(plan: Plan) -> Keys:
    """The format of activations as switches."""
    return {"bf16": plan.precision.activations == "bf16", "fp16": plan.precision.activations == "fp16"}


def with_fields(
    launched: LaunchFile, reader: KeyReader, model: object, files: Files | None = None, **workload: Any
) -> dict[str, Any]:
    """Fields of a `LaunchFile`: what an engine said, with the rest of the file around it."""
    return {
        "model": {"name": str(model)} if model else {},
        "workload": {**launched.workload, **{name: value for name, value in workload.items() if value is not None}},
        "questions": launched.questions,
        "notes": (*launched.notes, *shipped_note(reader, files or {})),
    }
