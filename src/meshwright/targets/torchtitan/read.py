"""A module of torchtitan read as a plan, from its syntax tree, never by running it; and the TOML of older versions."""

from __future__ import annotations

import ast
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.targets import fsdp, pytorch_pipeline
from meshwright.targets.keys import KeyReader, Keys, key_problems, known_keys
from meshwright.targets.python_values import UNKNOWN, constants, expression_value
from meshwright.targets.torchtitan.flavors import layers_of, library_name

SECTIONS = {"TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile"}
_P = "parallelism."
RECOMPUTE = "activation_checkpoint"
EVERY = "every_layer"
"""Of how many layers one is computed again, where selective recompute goes by layers."""


def read_configuration(file: tuple[str, str], devices: int | None, schedule: str | None = None) -> LaunchFile:
    """A configuration as a plan.

    Args:
        file: its name and its text, a Python module with a function that returns a `Trainer.Config`, or TOML of
            versions before 0.2.
        devices: of the job; by default what the degrees multiply to.
        schedule: text of the schedule's file, where there is one.

    Raises:
        InputError: the text is neither.
    """
    name, text = file
    keys, unresolved = module_keys(text)
    reader = KeyReader(keys=keys, file=(name, text))
    checked = {name: value for name, value in keys.items() if name in SECTIONS.values()}
    reader.problems += key_problems("torchtitan", checked, known_keys("meshwright.targets.torchtitan"))
    shipped = (
        str(reader.get("module") or reader.get("model.name", "")),
        str(reader.get("flavor") or reader.get("model.flavor", "")),
    )
    layers = layers_of(*shipped)
    row, layout = _row(reader, devices, schedule)
    row, notes = (row, ()) if row is None else _again(reader, row, layers)
    workload = fsdp.workload(
        row,
        seq_len=reader.get("training.seq_len"),
        wide=reader.word("training.mixed_precision_param", "bfloat16") == "float32",
    )
    model = {"num_layers": layers, "name": library_name(*shipped)} if layers else {}
    questions = tuple(_question(path, said, name) for path, said in unresolved.items() if path in reader.asked)
    if questions:
        # What follows from a value nobody knows would be wrong: nothing of it is said.
        return replace(reader.launch(None), problems=(), questions=questions)
    return reader.launch(row, layout, model=model, workload=workload, notes=notes)


def _question(path: str, said: str, file: str) -> Problem:
    why = f"{said} is no value that stands in {file}, and the module is not run"
    return Problem(what=f"{path} is not known", why=why, fix="write the number or word in its place", field=path)


def module_keys(text: str) -> tuple[Keys, dict[str, str]]:
    """Values of a module by section and name, and what stands where a value is not known.

    Raises:
        InputError: the text is neither Python nor TOML.
    """
    # TOML first: tables of numbers and words parse as Python too, as lists and assignments that say nothing.
    table, why = _toml(text)
    if table is not None:
        return table, {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unread(f"it is neither Python nor TOML: {why}") from None
    if not any(isinstance(node, ast.Call) and ast.unparse(node.func) == "Trainer.Config" for node in ast.walk(tree)):
        raise _unread("no function in it calls Trainer.Config")
    keys: Keys = {RECOMPUTE: "none"}
    unresolved: dict[str, str] = {}
    names = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            if any(name.name == "model_registry" for name in node.names):
                keys["module"] = str(node.module).rsplit(".", 1)[1]
        elif isinstance(node, ast.Call):
            _call(node, keys, unresolved, names)
    return keys, unresolved


def _call(node: ast.Call, keys: Keys, unresolved: dict[str, str], names: Mapping[str, Any]) -> None:
    name = ast.unparse(node.func)
    if name in SECTIONS:
        section = keys.setdefault(SECTIONS[name], {})
        for given in node.keywords:
            try:
                section[str(given.arg)] = expression_value(given.value, names)
            except UNKNOWN:
                unresolved[f"{SECTIONS[name]}.{given.arg}"] = ast.unparse(given.value)[:60]
    elif name in ("FullAC.Config", "SelectiveAC.Config", "MemoryBudgetAC.Config"):
        keys[RECOMPUTE] = name.split(".")[0]
    elif name == "model_registry" and node.args and isinstance(node.args[0], ast.Constant):
        keys["flavor"] = str(node.args[0].value)


def _unread(why: str) -> InputError:
    return InputError(Problem(what="the torchtitan configuration cannot be read", why=why), code="MW202")


def _toml(text: str) -> tuple[Keys | None, str]:
    """The configuration of versions before 0.2, or why it is no TOML."""
    try:
        keys: Keys = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    again = keys.get(RECOMPUTE, {})
    again = again if isinstance(again, dict) else {}
    mode, option = str(again.get("mode", "selective")).lower(), str(again.get("selective_ac_option", "2"))
    if mode == "selective" and option.isdecimal() and 0 < int(option) < 1000:
        keys[EVERY] = int(option)
    keys[RECOMPUTE] = {"full": "FullAC", "none": "none"}.get(mode, "SelectiveAC")
    return keys, ""


def _row(reader: KeyReader, devices: int | None, table: str | None) -> tuple[PlanRow | None, tuple[int, ...] | None]:
    tp, cp, ep, pp, replicate = (
        reader.degree(f"{_P}{name}_degree")
        for name in (
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "pipeline_parallel",
            "data_parallel_replicate",
        )
    )
    shard = reader.get(f"{_P}data_parallel_shard_degree", -1)
    if shard == -1 and devices is not None:
        shard, rest = divmod(devices, tp * cp * pp * replicate)
        if rest or not shard:
            reader.refuse("devices", devices, f"must be a multiple of {tp * cp * pp * replicate}, the other degrees")
            return None, None
    if not isinstance(shard, int) or shard < 1:
        reader.refuse(f"{_P}data_parallel_shard_degree", shard, "it is what is left of the devices", "say --gpus")
        return None, None
    stages = reader.get(f"{_P}module_fqns_per_model_part")
    mbs, gbs = _batches(reader, pp, replicate * shard)
    if mbs is None:
        return None, None
    schedule, vpp = _schedule(reader, pp, stages)
    if pp > 1 and reader.get(f"{_P}pipeline_parallel_schedule_csv"):
        schedule = _of_file(reader, table, (pp, vpp, gbs // (mbs * replicate * shard)))
    reshard = reader.word(f"{_P}fsdp_reshard_after_forward", "default")
    # By default weights stay gathered where a pipeline would gather them for every micro-batch.
    kept = reshard == "never" or (reshard == "default" and pp > 1)
    row = PlanRow(
        tp=tp,
        sp=tp == 1 or reader.switch(f"{_P}enable_sequence_parallel", default=True),
        tp_overlap="ring" if tp > 1 and reader.switch("compile.enable_async_tensor_parallel") else "bulk",
        cp=(("ag", cp),) if cp > 1 else (),
        pp=pp,
        vpp=vpp,
        ep=ep,
        dp=replicate * shard,
        **fsdp.sharding(shard * cp > 1, dp=replicate * shard, replicate=replicate, cp=cp, reshard=not kept),
        mbs=mbs,
        gbs=gbs,
        schedule=schedule or default_schedule(vpp),
        offload="wog" if reader.switch("training.enable_cpu_offload") else "",
    )
    layout = pytorch_pipeline.layers_of_modules(stages, "layers") if isinstance(stages, list) else None
    return row, layout


def _again(reader: KeyReader, row: PlanRow, layers: int | None) -> tuple[PlanRow, tuple[str, ...]]:
    """The row with what is computed again, and what was taken for it.

    Its selective kind keeps every second product and attention. Priced as full recompute of half the layers of each
    chunk, Llama 3.1 8B takes 71.1 GiB and 7,150 tokens/s per device on 8 H100 against 77.0 and 6,667 measured.
    Source: benchmarks/llama3_h100_202412_torchtitan.md of torchtitan.
    """
    kind = reader.get(RECOMPUTE)
    if kind in ("none", "FullAC"):
        return replace(row, recompute="full" if kind == "FullAC" else "none"), ()
    every = reader.keys.get(EVERY)
    if kind != "SelectiveAC" or layers is None:
        why = "of it no plan says what is computed again; planned without recompute"
        if kind == "SelectiveAC":
            why = "how many layers half of them are is not known of this model; planned without recompute"
        reader.refuse(RECOMPUTE, kind, why, "use FullAC or None")
        return row, ()
    count = max(1, round(layers / (row.pp * row.vpp) / (every or 2)))
    how = f"one layer in {every}" if every else "every second product, priced as one layer in 2"
    note = f"selective recompute: {how}, as the first {count} of each chunk"
    return replace(row, recompute="block", recompute_layers=count), (note,)


def _schedule(reader: KeyReader, pp: int, stages: object) -> tuple[str | None, int]:
    """Ours, None for the default of the chunks, and chunks per worker."""
    if pp == 1:
        return None, 1
    said = str(reader.get(f"{_P}pipeline_parallel_schedule", "1F1B"))
    schedule = pytorch_pipeline.schedule_name(said)
    if schedule is None:
        reader.refuse(f"{_P}pipeline_parallel_schedule", said, "no plan runs it", "use 1F1B, Interleaved1F1B or ZBV")
    single = schedule in ("1f1b", "gpipe")
    count = len(stages) if isinstance(stages, list) and stages else pp * (1 if single else 2)
    return schedule, max(1, count // pp)


def _of_file(reader: KeyReader, table: str | None, size: tuple[int, int, int]) -> str | None:
    """The schedule of a file by its order; a problem and the default where it is none that is known."""
    found = None if table is None else pytorch_pipeline.schedule_of_file(table, *size)
    if found is None:
        why = "the file is not there" if table is None else "its order is of no schedule that is known"
        path = f"{_P}pipeline_parallel_schedule_csv"
        reader.refuse(path, reader.get(path), why, "the steps of the class that is named are taken")
    return found


def _batches(reader: KeyReader, pp: int, dp: int) -> tuple[int | None, int]:
    local = reader.degree("training.local_batch_size", 8)
    mbs = reader.degree(f"{_P}pipeline_parallel_microbatch_size") if pp > 1 else local
    total = reader.get("training.global_batch_size", -1)
    gbs = local * dp if total in (-1, None) else total
    if not isinstance(gbs, int) or gbs < 1 or gbs % (local * dp) or local % mbs:
        why = f"must be a multiple of local_batch_size {local} x data ranks {dp}"
        reader.refuse("training.global_batch_size", total, why, f"use {math.ceil(dp * local)}")
        return None, 1
    return mbs, gbs
