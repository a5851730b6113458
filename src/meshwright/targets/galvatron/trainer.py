"""The YAML of Galvatron's trainer as a plan: one strategy for all layers, or the JSON that it names.

Source: galvatron/core/runtime/args_schema.py and hybrid_parallel_config.py of hetu-galvatron (2026-11).
"""

from __future__ import annotations

import re
from functools import partial
from math import ceil
from pathlib import PurePath
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import overrides
from meshwright.targets.contract import Files, file_of, text_beside
from meshwright.targets.galvatron import arguments, described
from meshwright.targets.key_texts import table_of
from meshwright.targets.keys import KeyReader

_KEYS = re.compile(r"^[ \t]+(?:global_tp_deg|default_dp_type)[ \t]*:", re.MULTILINE)
_PATH = re.compile(r"^[ \t]*galvatron_config_path[ \t]*:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_P, _T = "parallel.", "train."
_SHARDINGS = {"ddp": "z0", "zero2": "z2", "zero3": "fsdp"}
_SCHEDULES = {"pipedream_flush": "1f1b", "gpipe": "gpipe"}
NAME = "train_dist.yaml"


def recognised(name: str, text: str) -> bool:
    """Whether a file is the YAML of its trainer."""
    return PurePath(name).suffix in (".yaml", ".yml") and _KEYS.search(text) is not None


def named(text: str) -> tuple[str, ...]:
    """The JSON that says the strategy of each layer, and the YAML of the model's sizes, where the trainer's names them.

    Args:
        text: the trainer's YAML.
    """
    found = _PATH.search(text)
    own = () if found is None or found[1].lower() in ("null", "none", "~") else (found[1],)
    return (*own, *described.named(text))


def read_trainer(files: Files, devices: int | None = None) -> tuple[LaunchFile, str | None]:
    """A YAML as a plan, and the name of the JSON that says it instead.

    Args:
        files: the files of the run.
        devices: the number of devices of the job.

    Raises:
        InputError: the text is no YAML.
    """
    optioned = arguments.BY_OPTIONS in files.get(overrides.FILE, "")
    file = (overrides.FILE, "{}") if optioned else file_of(files, NAME, recognised)
    keys = table_of(file[1], "YAML", "configuration of Galvatron's trainer")
    root = keys.get("runtime") if isinstance(keys.get("runtime"), dict) else keys
    laid, over = overrides.laid_over(root or {}, files)
    reader = KeyReader(keys=laid, file=file, over=over)
    workload = {"seq_len": reader.get(f"{_T}seq_length"), "precision": _precision(reader)}
    if reader.get(f"{_T}use_flash_attn") is False:
        workload["attention_kernel"] = "materialised"
    more: dict[str, Any] = {"model": {}, "workload": workload}
    missing = None
    if optioned:
        more["spec"], workload["seq_len"] = arguments.model(reader)
    else:
        more["spec"], more["model"], missing = described.model_of(reader, keys, files, workload["seq_len"])
    if missing is not None:
        return reader.launch(None, questions=(missing,), **more), None
    path = reader.get(f"{_P}galvatron_config_path")
    if path is not None:
        name = PurePath(str(path)).name
        if text_beside(files, name) is not None:
            return reader.launch(None, **more), name
        why = "it states the strategy of each layer, and is not beside the file that names it"
        question = Problem(what=f"{str(path)[:80]} is not here", why=why, fix="put it there", field="parallel")
        return reader.launch(None, questions=(question,), **more), None
    row = _row(reader, devices)
    if row is not None:
        workload["global_batch"] = row.gbs
    dealt = partial(divided, ranks=row.pp) if row is not None and row.pp > 1 else None
    return reader.launch(row, dealt=dealt, **more), None


def divided(layers: int, *, ranks: int) -> tuple[int, ...]:
    """Layers of each pipeline rank where a file does not say them: as many on all, the rest on the last.

    Args:
        layers: the number of layers of the model.
        ranks: the number of ranks of the pipeline.
    """
    share = layers // ranks
    return (*(share,) * (ranks - 1), layers - share * (ranks - 1))


def _precision(reader: KeyReader) -> Any:
    return PRECISIONS[{"fp16": "fp16", "fp32": "fp32"}.get(reader.word(f"{_P}mixed_precision", "bf16"), "bf16")]


def _row(reader: KeyReader, devices: int | None) -> PlanRow | None:
    pp, tp, cp = (reader.degree(f"{_P}{name}") for name in ("pp_deg", "global_tp_deg", "global_cp_deg"))
    ep, etp = reader.degree(f"{_P}global_ep_deg"), reader.degree(f"{_P}global_tp_of_ep_deg")
    reader.multiple = pp * tp * cp
    if devices is None or devices % reader.multiple:
        why = f"must be a multiple of pp {pp} x tp {tp} x cp {cp}"
        reader.refuse("devices", devices, why, "say --gpus")
        return None
    ulysses = reader.switch(f"{_P}use_ulysses")
    if ulysses and cp > 1:
        why = "a layer is cut by heads (Ulysses) and by context at once"
        reader.refuse(f"{_P}use_ulysses", True, why, "use one of global_tp_deg with Ulysses and global_cp_deg")
        cp = 1
    ends = reader.degree(f"{_P}vocab_tp")
    if ends != tp:
        reader.refuse(f"{_P}vocab_tp", ends, "plans cut embedding and head as the layers", f"use {tp}")
    dp = devices // (pp * tp * cp)
    gbs, chunks = reader.degree(f"{_T}global_batch_size", 8), reader.get(f"{_T}chunks", -1)
    if chunks == -1:  # its own choice: a micro-batch of four sequences for each device of a stage
        chunks = max(1, ceil(gbs // (devices // pp) / 4)) if pp > 1 else 1
    if type(chunks) is not int or chunks < 1 or gbs % (chunks * dp):
        why = f"{gbs} sequences of a step must divide into chunks x {dp} data ranks"
        reader.refuse(f"{_T}chunks", chunks, why, "use a number that divides them")
        return None
    sharded = reader.get(f"{_P}sdp") in (1, True)
    pipeline = reader.word(f"{_P}pipeline_type", "gpipe")
    return PlanRow(
        tp=1 if ulysses else tp,
        sp=ulysses or tp == 1 or reader.switch(f"{_T}sequence_parallel"),
        cp=(("a2a", tp),) if ulysses and tp > 1 else (("p2p", cp),) if cp > 1 else (),
        pp=pp,
        dp=dp,
        ep=ep,
        etp=etp if ep > 1 else 1,
        sharding="fsdp" if sharded else _SHARDINGS.get(reader.word(f"{_P}default_dp_type", "ddp"), "z0"),
        mbs=gbs // (chunks * dp),
        gbs=gbs,
        schedule=_SCHEDULES.get(pipeline, "1f1b"),
        recompute="full" if reader.get(f"{_P}global_checkpoint") in (1, True) else "none",
    )
