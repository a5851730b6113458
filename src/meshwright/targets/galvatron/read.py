"""Galvatron's JSON as a plan: a row where all layers are alike, else layer by layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, StrategyRun, Worker
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.targets import overrides
from meshwright.targets.contract import Files
from meshwright.targets.galvatron import arguments, trainer
from meshwright.targets.keys import KeyFile, KeyReader

CONFIG = "galvatron_config.json"
_ENCODED = ("tp_sizes_enc", "dp_types_enc", "use_sp", "checkpoint")
_LATER = ("cp_sizes_enc", "ep_sizes_enc", "tp_of_ep_sizes_enc")
"""Degrees of each layer that later releases have; 1 where a file has them not."""
_SHARDINGS = {"ddp": "z0", "zero2": "z2", "zero3": "fsdp"}
_SCHEDULES = {"pipedream_flush": "1f1b", "gpipe": "gpipe"}


FILE = KeyFile(title="Galvatron", name=CONFIG, package="meshwright.targets.galvatron", marks=(('"tp_sizes_enc"',),))


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A JSON configuration as a plan.

    Args:
        files: the configuration, or the YAML of the trainer with it.
        devices: the number of devices of the job; by default `world_size`, which files written here hold.

    Raises:
        InputError: the text is no JSON.
    """
    trained = arguments.BY_OPTIONS in files.get(overrides.FILE, "")
    trained = trained or any(trainer.recognised(*file) for file in files.items())
    around = trainer.read_trainer(files, devices) if trained else None
    if around is not None and around[1] is None:
        return around[0]
    name = None if around is None else around[1]
    reader = FILE.read(files if name is None else {name: files[name]})
    plan = _plan(reader, devices)
    if plan is None:
        return reader.launch(None)
    found, _ = homogeneous(plan)
    row = row_from(found, gbs=plan.global_batch) if found is not None else None
    workload: dict[str, Any] = {"global_batch": plan.global_batch, "precision": PRECISIONS["bf16"]}
    layout = tuple(chunk.num_layers for chunk in plan.pipelines[0].chunks())
    model: dict[str, Any] = {"num_layers": sum(layout)}
    if around is None:
        return reader.launch(row, layout, plan=None if row else plan, model=model, workload=workload)
    own = around[0]
    stated = {name: value for name, value in own.workload.items() if value is not None}
    launch = reader.launch(row, layout, plan=None if row else plan, model=own.model | model, workload=workload | stated)
    read = replace(launch, said=(*own.said, *launch.said), problems=(*own.problems, *launch.problems))
    return replace(read, spec=own.spec, model={} if own.spec is not None else read.model)


def _plan(reader: KeyReader, devices: int | None) -> ExecutionPlan | None:
    pp, chunks, gbs = reader.degree("pp_deg"), reader.degree("chunks"), reader.degree("global_bsz")
    world = devices or (reader.degree("world_size") if reader.get("world_size") else None)
    reader.multiple = pp
    if world is None or world % pp:
        reader.refuse("world_size", world, f"must be a multiple of pp_deg {pp}", "say --gpus")
        return None
    columns = {name: _numbers(reader, name) for name in _ENCODED}
    layers = len(columns["tp_sizes_enc"])
    columns = {name: values or [0] * layers for name, values in columns.items()}
    columns |= {name: _numbers(reader, name) or [1] * layers for name in _LATER}
    division = _numbers(reader, "pp_division") or list(trainer.divided(layers, ranks=pp))
    lengths = {name: len(values) for name, values in columns.items()}
    if not layers or set(lengths.values()) != {layers} or sum(division) != layers or len(division) != pp:
        why = (
            f"{layers} layers in tp_sizes_enc, {lengths}, {sum(division)} in the {len(division)} stages of pp_division"
        )
        reader.refuse("pp_division", division, why)
        return None
    sharding = _SHARDINGS.get(reader.word("default_dp_type", "ddp"), "z0")
    schedule = _SCHEDULES.get(reader.word("pipeline_type", "gpipe"), "1f1b")
    rows: list[PlanRow] = []
    for degree, sharded, ulysses, recomputed, context, experts, cut in zip(*columns.values(), strict=True):
        size = degree * context
        if size < 1 or (world // pp) % size or gbs % (chunks * (world // pp // size)):
            why = f"must divide the {world // pp} devices of a stage, and the batch"
            if context != 1 and degree > 0 and (world // pp) % degree == 0:
                reader.refuse("cp_sizes_enc", context, f"times tp_sizes_enc {degree}, it {why}")
            else:
                reader.refuse("tp_sizes_enc", degree, why)
            return None
        if ulysses and degree > 1 and context > 1:
            why = "a layer is cut by heads (Ulysses) and by context at once"
            reader.refuse("use_sp", ulysses, why, "use one of use_sp and cp_sizes_enc")
            return None
        dp = world // pp // size
        rows.append(
            PlanRow(
                tp=1 if ulysses else degree,
                cp=(("a2a", degree),) if ulysses and degree > 1 else (("p2p", context),) if context > 1 else (),
                pp=pp,
                dp=dp,
                ep=experts,
                etp=cut if experts > 1 else 1,
                sharding="fsdp" if sharded else sharding,
                mbs=gbs // (chunks * dp),
                gbs=gbs,
                schedule=schedule,
                recompute="full" if recomputed else "none",
            )
        )
    _ends(reader, {name: values[0] for name, values in columns.items()})
    if len(set(rows)) == 1:
        return plan_of(rows[0], division)
    return _by_layer(rows, division, chunks, schedule)


def _ends(reader: KeyReader, first: dict[str, int]) -> None:
    """Refuse an embedding and a head that are cut otherwise than the first layer is.

    Args:
        reader: the keys of the file.
        first: degrees of the first layer by key.
    """
    for key, of_layers in (("vtp", "tp_sizes_enc"), ("vcp", "cp_sizes_enc"), ("vsp", "use_sp")):
        said, own = reader.get(key), first[of_layers]
        if said is not None and said != own and (key != "vsp" or first["tp_sizes_enc"] > 1):
            reader.refuse(key, said, "plans cut embedding and head as the layers", f"use {own}")


def _by_layer(rows: list[PlanRow], division: list[int], chunks: int, schedule: str) -> ExecutionPlan:
    """A plan whose layers differ."""
    strategies = list(dict.fromkeys(row.strategy() for row in rows))
    size = rows[0].devices // len(division)
    workers, start = [], 0
    for stage, count in enumerate(division):
        own = [strategies.index(row.strategy()) for row in rows[start : start + count]]
        runs = tuple(StrategyRun(layers=len([*same]), strategy=index) for index, same in groupby(own))
        chunk = Chunk(
            virtual_stage=stage,
            layers=((start, start + count - 1),),
            runs=runs,
            embedding=stage == 0,
            head=stage == len(division) - 1,
        )
        workers.append(Worker(devices=((stage * size, (stage + 1) * size - 1),), chunks=(chunk,)))
        start += count
    pipeline = Pipeline(
        micro_batch=rows[0].mbs, num_micro_batches=chunks, workers=tuple(workers), schedule=Schedule(name=schedule)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(pipeline,))


def _numbers(reader: KeyReader, name: str) -> list[int]:
    """A text of numbers with commas; a problem and nothing where it is none."""
    text = str(reader.get(name, "")).replace(" ", "")
    if not text:
        return []
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts) or len(parts) > 10_000:
        reader.refuse(name, text, "must be numbers with commas, one for each layer")
        return []
    return [int(part) for part in parts]
