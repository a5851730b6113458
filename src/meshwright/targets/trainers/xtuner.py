"""XTuner: a configuration of mmengine, a Python file of assignments, which is read and never run.

Names are those of xtuner/configs and xtuner/model/sft.py of xtuner 0.1.23 (2024-07), whose models are recomputed
unless the file says otherwise, https://github.com/InternLM/xtuner.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.key_text import Entry, KeyText
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import fine_tuning, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of
from meshwright.targets.key_texts import Keys
from meshwright.targets.keys import KeyReader
from meshwright.targets.python_values import UNKNOWN, expression_value
from meshwright.targets.trainers import shared

TITLE = "XTuner"
_OF_V1 = re.compile(r"^from xtuner\.v1\b|^import xtuner\.v1\b", re.M)
_OF_XTUNER = re.compile(r"^from xtuner\.(?:model|engine|dataset|v1)\b", re.M)
_ENGINE = "deepspeed"
_ZERO = shared.zero_files("deepspeed_zero", overlap=True)
"""What `--deepspeed NAME` stands for: files that come with xtuner (xtuner/configs/deepspeed)."""
_OPTIMIZERS = {"adamw": "adamw", "torch.optim.adamw": "adamw", "pagedadamw32bit": "adamw", "sgd": "sgd"}


def _recognised(name: str, text: str) -> bool:
    return PurePath(name).suffix == ".py" and _OF_XTUNER.search(text) is not None


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A configuration as a plan.

    Args:
        files: the Python file.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no Python.
    """
    file = file_of(files, "xtuner.py", _recognised)
    if _OF_V1.search(file[1]):
        why = "configurations of its second trainer are programs, and are not read"
        fix = "check a configuration of xtuner/configs, or price its plan: check MODEL --plan PLAN"
        raise InputError(Problem(what=f"{file[0]} is of xtuner.v1", why=why, fix=fix, field="source"), code="MW231")
    keys, over = overrides.laid_over(_assigned(file), files)
    reader = KeyReader(keys=keys, file=file, over=over)
    kind = str(reader.get("model.type", ""))
    if kind != "SupervisedFinetune":
        why = "a step runs other models than one decoder, or pairs"
        reader.refuse("model.type", kind, why, "check a configuration of SupervisedFinetune")
    lora = _lora(reader)
    name = reader.get("model.llm.pretrained_model_name_or_path") or reader.get("pretrained_model_name_or_path")
    row, questions = _row(reader, devices)
    optimizer = reader.word("optim_type", "adamw")
    if optimizer not in _OPTIMIZERS:
        reader.refuse("optim_type", optimizer, f"{', '.join(_OPTIMIZERS)} can be planned", "use AdamW")
    half = "fp16" if reader.word("optim_wrapper.dtype", "float16") == "float16" else "bf16"
    notes = ("sequences are packed to max_length",) if reader.switch("pack_to_max_length") else ()
    return shared.launched(
        reader,
        row,
        precision=PRECISIONS[half],
        model=str(name) if name else None,
        optimizer=_OPTIMIZERS.get(optimizer, "adamw"),
        seq_len=reader.get("max_length") if isinstance(reader.get("max_length"), int) else None,
        lora=lora,
        notes=notes,
        questions=questions,
    )


def _row(reader: KeyReader, devices: int | None) -> tuple[Any, tuple[Problem, ...]]:
    sp = reader.degree("sequence_parallel_size")
    dp = shared.data_ranks(reader, devices, cp=("sequence_parallel_size", sp))
    engine = str(reader.get(_ENGINE) or "").removesuffix(".json").rpartition("/")[2]
    if not engine:
        why = "`xtuner train` takes it with --deepspeed, and the file does not say it"
        fix = f"give --set {_ENGINE}=NAME with one of {', '.join(_ZERO)}, or --set {_ENGINE}=no"
        return None, (Problem(what="what shards the model is not known", why=why, fix=fix, field=_ENGINE),)
    if engine not in (*_ZERO, "no"):
        reader.refuse(_ENGINE, engine, f"{', '.join(_ZERO)} come with it", "use deepspeed_zero2")
    if dp is None:
        return None, ()
    zero = _ZERO.get(engine, {})
    mbs, steps = reader.degree("batch_size"), reader.degree("accumulative_counts")
    letters = ("w" if "offload_param" in zero else "") + ("og" if "offload_optimizer" in zero else "")
    return PlanRow(
        cp=(("a2a", sp),) if sp > 1 else (),
        dp=dp,
        sharding=f"z{zero.get('stage', 0)}",
        mbs=mbs,
        gbs=mbs * steps * dp,
        offload=letters,
        dp_overlap=True,
        recompute="full" if reader.switch("model.use_activation_checkpointing", default=True) else "none",
    ), ()


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    """Adapters, which stand on all linear layers where no target is named."""
    at = "model.llm.quantization_config."
    stored = None
    if reader.switch(f"{at}load_in_4bit"):
        stored = reader.word(f"{at}bnb_4bit_quant_type", "fp4")
        stored += "" if reader.switch(f"{at}bnb_4bit_use_double_quant") else "-single"
    elif reader.switch(f"{at}load_in_8bit"):
        stored = "int8"
    if reader.get("model.lora") is None:
        return None
    found = {
        "r": reader.degree("model.lora.r", 8),
        "targets": fine_tuning.targets_of(reader.get("model.lora.target_modules") or [ALL_LINEAR]),
        "dropout": reader.get("model.lora.lora_dropout", 0.0),
        "base": stored,
    }
    return {name: value for name, value in found.items() if value}


_MAX_DEPTH = 12


def _assigned(file: tuple[str, str]) -> Keys:
    """Names that a configuration assigns, `dict(...)` as tables, classes by their name.

    Raises:
        InputError: the text is no Python.
    """
    try:
        tree = ast.parse(file[1])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what, fix = f"{file[0]} is no Python", "correct its syntax"
        raise InputError(Problem(what=what, why=str(error)[:200], fix=fix, field="source")) from None
    found: Keys = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _value(node.value, found, 0)
            if value is not None:
                found[node.targets[0].id] = value
            else:
                found.pop(node.targets[0].id, None)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            whole = ast.BinOp(left=ast.Name(id=node.target.id, ctx=ast.Load()), op=node.op, right=node.value)
            with contextlib.suppress(*UNKNOWN):
                found[node.target.id] = expression_value(whole, found)
    return found


def _value(node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
    """A value that stands in the file; None where it does not."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        made = {str(one.arg): _value(one.value, names, depth + 1) for one in node.keywords}
        return {key: value for key, value in made.items() if value is not None}
    if isinstance(node, ast.Name) and node.id not in names:
        return node.id
    if isinstance(node, ast.Attribute):
        return ast.unparse(node)
    with contextlib.suppress(*UNKNOWN):
        return expression_value(node, names)
    return None


_MULTIPLIED = re.compile(r"^accumulative_counts \*= sequence_parallel_size\b", re.M)
_NUMBERS = re.compile(r"^(batch_size|accumulative_counts|sequence_parallel_size)[ \t]*=[ \t]*(\d+)", re.M)


_AGAIN = "model.use_activation_checkpointing"
_MODEL = re.compile(r"^model[ \t]*=[ \t]*dict\(\s*(type[ \t]*=[ \t]*(\w+))", re.M)
_CHECKPOINTS = re.compile(r"\buse_activation_checkpointing[ \t]*=[ \t]*(True|False)\b")


def _says(row: PlanRow, text: str) -> dict[str, object]:
    steps = row.micro_batches
    if _MULTIPLIED.search(text) and steps % row.cp_degree == 0:
        steps //= row.cp_degree
    again = row.recompute == "full"
    stated = {} if again and "use_activation_checkpointing" not in text else {_AGAIN: again}
    return {"sequence_parallel_size": row.cp_degree, "batch_size": row.mbs, "accumulative_counts": steps, **stated}


def _edited(name: str, text: str) -> KeyText | None:
    """The file as a text whose numbers of a batch can be edited where they stand."""
    found = list(_NUMBERS.finditer(text))
    entries: dict[tuple[str, ...], Entry] = {
        (one[1],): Entry(start=one.start(), value=one.start(2), end=one.end(2)) for one in found
    }
    values: dict[str, Any] = {one[1]: int(one[2]) for one in found}
    model, again = _MODEL.search(text), _CHECKPOINTS.search(text)
    if model is not None:
        entries["model",] = Entry(start=model.start(), value=model.start(1), end=model.end(), table=True, braces=True)
        entries["model", "type"] = Entry(start=model.start(1), value=model.start(2), end=model.end(2))
    if again is not None:
        entries["model", "use_activation_checkpointing"] = Entry(
            start=again.start(), value=again.start(1), end=again.end(1)
        )
        values[_AGAIN] = again[1] == "True"
    return KeyText(text=text, entries=entries, said=repr, key=str, values=values, joint=" = ")


TARGET = ReadTarget(
    name="xtuner",
    title=TITLE,
    version="0.1.23 (2024-07)",
    like="deepspeed",
    says=_says,
    edited=_edited,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_equals(launch.words),
    software="pytorch-eager",
)
