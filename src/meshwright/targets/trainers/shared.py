"""What trainers share whose YAML says a whole training: keys with their references filled in, data ranks, refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.huggingface import read_config
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron import model_facts
from meshwright.specs.precision import Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import fsdp, overrides
from meshwright.targets.contract import Files
from meshwright.targets.key_texts import Keys, table_of
from meshwright.targets.keys import KeyReader

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_DEPTH = 8
"""References that may lead to references."""


def yaml_reader(file: tuple[str, str], files: Files, title: str) -> KeyReader:
    """The keys of a YAML file, those of the command line over them, `${a.b}` filled in from its own keys.

    Args:
        file: name and text.
        files: the files of the run.
        title: the title of the trainer.

    Raises:
        InputError: the text is no YAML table.
    """
    keys, over = overrides.laid_over(table_of(file[1], "YAML", f"{title} configuration"), files)
    return KeyReader(keys=filled(keys), file=file, over=over)


def zero_files(prefix: str, *, overlap: bool) -> dict[str, Keys]:
    """Keys of `zero_optimization` in the DeepSpeed files that come with a trainer, by name of the file.

    Args:
        prefix: the prefix of the names, before the stage.
        overlap: their `overlap_comm`.
    """
    cpu = {"device": "cpu"}
    stage = {number: {"stage": number, "overlap_comm": overlap} for number in (1, 2, 3)}
    return {
        f"{prefix}1": stage[1],
        f"{prefix}2": stage[2],
        f"{prefix}2_offload": {**stage[2], "offload_optimizer": cpu},
        f"{prefix}3": stage[3],
        f"{prefix}3_offload": {**stage[3], "offload_optimizer": cpu, "offload_param": cpu},
    }


def filled(keys: Mapping[str, Any]) -> Keys:
    """Keys with `${a.b}` as what stands there among them."""
    return {str(key): _filled(value, keys, 0) for key, value in keys.items()}


def _filled(value: Any, keys: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _filled(entry, keys, depth) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, keys, depth) for entry in value]
    match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or depth > _DEPTH:
        return value
    at: Any = keys
    for name in match[1].split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return _filled(at, keys, depth + 1)


def data_ranks(
    reader: KeyReader,
    devices: int | None,
    *,
    tp: tuple[str, int] = ("", 1),
    cp: tuple[str, int] = ("", 1),
    replicate: tuple[str, int] = ("", 1),
) -> int | None:
    """Data ranks of a job, None with a problem where its devices do not go with the degrees.

    Args:
        reader: the reader of the file.
        devices: the number of devices of the job; by default the product of the degrees.
        tp, cp, replicate: the key that says a degree, and the degree.
    """
    split = tp[1] * cp[1] * replicate[1]
    reader.multiple = split
    world = devices or split
    if world % split:
        said = " x ".join(f"{key} {degree}" for key, degree in (tp, cp, replicate) if degree > 1)
        key = next(key for key, degree in (tp, cp, replicate) if degree > 1)
        reader.refuse(key, reader.get(key), f"{world} devices must be a multiple of {said}")
        return None
    return world // (tp[1] * cp[1])


def steps_of(reader: KeyReader, key: str, batch: int, mbs: int, dp: int) -> int:
    """The batch of a step in whole micro-batches on every data rank, with a problem where it is none."""
    if batch % (mbs * dp):
        reader.refuse(key, batch, f"must be a multiple of micro-batch {mbs} x {dp} data ranks = {mbs * dp}")
        return mbs * dp
    return batch


def launched(
    reader: KeyReader,
    row: PlanRow | None,
    *,
    precision: Precision,
    model: str | None = None,
    config: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    questions: tuple[Problem, ...] = (),
    started: int | None = None,
    **workload: Any,
) -> LaunchFile:
    """What a file says.

    Args:
        reader: the reader of the file.
        row: the plan, None where it was not read.
        precision: the precision of the training.
        model: its name.
        config: its configuration, in the words of the transformers library, where the file holds it.
        notes: what was taken for granted.
        questions: what only the user can say.
        started: processes that the file itself starts.
        workload: other fields of a workload; None for those that the file does not say.
    """
    said = {"precision": precision, **workload, **({"global_batch": row.gbs} if row is not None else {})}
    spec = None if config is None else read_config(dict(config), _stem(reader), source=f"keys of {reader.file[0]}")
    facts = {"name": model} if model else {} if spec is None else model_facts(spec)
    return reader.launch(
        row if not questions else None,
        model=facts,
        spec=None if model else spec,
        workload={name: value for name, value in said.items() if value is not None},
        notes=notes,
        questions=questions,
        started=started,
    )


def _stem(reader: KeyReader) -> str:
    return f"model of {reader.file[0]}"


def copies(row: PlanRow) -> int:
    """Copies of the weights of a plan: data ranks over those of one shard group."""
    return row.dp * row.cp_degree // row.shard_group if row.sharding == "hsdp" else 1


def sharded_row(
    dp: int,
    *,
    mbs: int,
    gbs: int,
    sharded: bool,
    replicate: int = 1,
    context: tuple[str, int] = ("", 1),
    reshard: bool = True,
    **more: Any,
) -> PlanRow:
    """A plan of data ranks that hold whole copies or shards of everything.

    Args:
        dp: data ranks.
        mbs, gbs: sequences of a micro-batch, and of a step.
        sharded: everything is sharded over them.
        replicate: copies, where it is.
        context: kind and degree of context parallelism, whose ranks hold shards, too.
        reshard: gathered weights are freed after the forward pass.
        more: other fields of a row.
    """
    cp = context[1]
    held = fsdp.sharding(sharded and dp * cp > 1, dp=dp, replicate=replicate if sharded else dp, cp=cp, reshard=reshard)
    return PlanRow(dp=dp, mbs=mbs, gbs=gbs, cp=(context,) if cp > 1 else (), **held, **more)
