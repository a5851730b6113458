"""Which executions the model accepts, as rules over columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import (
    AR,
    CHOICES,
    FULL,
    GROUPED,
    NO_OVERLAP,
    NONE,
    RS_AG,
    Application,
    System,
)
from meshwright.shapes import Bool, Int

Broken = Bool[np.ndarray, "rows"]


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One rule an execution must keep."""

    field: str
    """The execution's key; several joined by commas."""
    text: str
    """The rule as a sentence."""
    fix: str
    broken: Callable[[Application, System, ExecutionColumns], Broken]
    """Which rows break it; rows that break an earlier rule may answer anything."""
    survivable: bool = False
    """Calculon's searches survive breaking it; otherwise it is an assertion, which ends them (B12)."""


def blocks_per_stage(app: Application, columns: ExecutionColumns) -> Int[np.ndarray, "rows"]:
    """Blocks of the fullest pipeline stage: ceil(blocks / stages)."""
    return -(-app.num_blocks // columns.pipeline_par)


def _choice(key: str) -> AcceptanceRule:
    text = f"it is one of {', '.join(CHOICES[key])}"
    return AcceptanceRule(key, text, "choose one of them", lambda app, system, columns: getattr(columns, key) < 0)


def _positive(key: str) -> AcceptanceRule:
    fix = "give a count of 1 or more"
    return AcceptanceRule(key, "it is 1 or more", fix, lambda app, system, columns: getattr(columns, key) < 1)


def _network(key: str) -> AcceptanceRule:
    def unknown(app: Application, system: System, columns: ExecutionColumns) -> Broken:
        return (getattr(columns, key) >= len(system.networks)) | (getattr(columns, key) < 0)

    text = "it is the position of one of the system's networks, counted from 0"
    return AcceptanceRule(key, text, "name a network that the system has", unknown)


def _divides(size: str) -> AcceptanceRule:
    def uneven(app: Application, system: System, columns: ExecutionColumns) -> Broken:
        return getattr(app, size) % columns.tensor_par != 0

    return AcceptanceRule("tensor_par", f"it divides the application's {size}", f"choose a divisor of {size}", uneven)


def _never(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    return np.zeros(columns.rows, dtype=np.bool_)


def _group(tier: int, columns: ExecutionColumns) -> Int[np.ndarray, "rows"]:
    """Processors that the degrees mapped on a network span together; degrees of 1 need no network."""
    group = np.ones(columns.rows, dtype=np.int64)
    for degree, network in (
        (columns.tensor_par, columns.tensor_par_net),
        (columns.pipeline_par, columns.pipeline_par_net),
        (columns.data_par, columns.data_par_net),
    ):
        group = np.where(network == tier, group * degree, group)
    return group


def _too_wide(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    broken = np.zeros(columns.rows, dtype=np.bool_)
    for tier, network in enumerate(system.networks):
        group = _group(tier, columns)
        broken |= group > np.where(group > 1, network.size, group)
    return broken


def _not_filled(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    broken = np.zeros(columns.rows, dtype=np.bool_)
    for tier, network in enumerate(system.networks):
        if network.must_be_filled:
            broken |= network.size % _group(tier, columns) != 0
    return broken


def _engine(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    known = np.asarray([name in system.matrix and name in system.vector for name in CHOICES["datatype"]])
    return ~known[columns.datatype]


def _kv_heads(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    return (columns.attention_type == GROUPED) & (app.kv_heads is None)


def _kv_split(app: Application, system: System, columns: ExecutionColumns) -> Broken:
    if app.kv_heads is None:
        return np.zeros(columns.rows, dtype=np.bool_)
    t = columns.tensor_par
    uneven = (app.kv_heads % t != 0) & (t % app.kv_heads != 0)
    return (columns.attention_type >= GROUPED) & uneven


_FIRST = (
    *(
        _positive(key)
        for key in (
            "num_procs",
            "tensor_par",
            "pipeline_par",
            "data_par",
            "batch_size",
            "microbatch_size",
            "pipeline_interleaving",
        )
    ),
    *(_choice(key) for key in CHOICES),
    *(_network(key) for key in ("tensor_par_net", "pipeline_par_net", "data_par_net")),
)
"""Broken, they make the rules below meaningless."""

_LATER = (
    AcceptanceRule(
        "num_procs, tensor_par, pipeline_par, data_par",
        "num_procs = tensor_par x pipeline_par x data_par",
        "change one of them so that the product holds",
        lambda app, system, c: c.num_procs != c.tensor_par * c.pipeline_par * c.data_par,
    ),
    AcceptanceRule(
        "data_par",
        "it divides batch_size",
        "choose a divisor of batch_size",
        lambda app, system, c: c.batch_size % c.data_par != 0,
    ),
    AcceptanceRule(
        "microbatch_size",
        "it divides batch_size / data_par",
        "choose a divisor of batch_size / data_par",
        lambda app, system, c: c.batch_size // c.data_par % c.microbatch_size != 0,
    ),
    AcceptanceRule(
        "activation_recompute",
        "inference recomputes nothing",
        'set it to "none", or training to true',
        lambda app, system, c: ~c.training & (c.activation_recompute != NONE),
    ),
    AcceptanceRule(
        "pipeline_interleaving",
        "one pipeline stage is not interleaved: pipeline_par 1 needs pipeline_interleaving 1",
        "set it to 1",
        lambda app, system, c: (c.pipeline_par == 1) & (c.pipeline_interleaving > 1),
    ),
    AcceptanceRule(
        "optimizer_sharding",
        "it needs data_par > 1",
        "set it to false",
        lambda app, system, c: c.optimizer_sharding & (c.data_par == 1),
    ),
    AcceptanceRule(
        "tensor_par_overlap",
        "overlap needs tensor_par > 1",
        'set it to "none"',
        lambda app, system, c: (c.tensor_par_overlap != NO_OVERLAP) & (c.tensor_par == 1),
    ),
    AcceptanceRule(
        "seq_par_ag_redo",
        "only rs_ag traffic redoes its all-gather",
        "set it to false, or tensor_par_comm_type to rs_ag",
        lambda app, system, c: c.seq_par_ag_redo & (c.tensor_par_comm_type != RS_AG),
    ),
    AcceptanceRule(
        "seq_par_ag_redo",
        "full recompute already redoes the all-gather",
        "set it to false",
        lambda app, system, c: c.seq_par_ag_redo & (c.activation_recompute == FULL),
    ),
    AcceptanceRule(
        "data_par_overlap",
        "it needs training",
        "set it to false",
        lambda app, system, c: c.data_par_overlap & ~c.training,
    ),
    AcceptanceRule(
        "data_par_overlap",
        "it needs data_par > 1",
        "set it to false",
        lambda app, system, c: c.data_par_overlap & (c.data_par == 1),
    ),
    AcceptanceRule(
        "optimizer_offload",
        "it needs training",
        "set it to false",
        lambda app, system, c: c.optimizer_offload & ~c.training,
    ),
    AcceptanceRule(
        "pipeline_interleaving",
        "it is at most the blocks of a stage, ceil(num_blocks / pipeline_par)",
        "choose a divisor of the blocks of a stage",
        lambda app, system, c: c.pipeline_interleaving > blocks_per_stage(app, c),
        survivable=True,
    ),
    AcceptanceRule(
        "pipeline_interleaving",
        "it divides the blocks of a stage, ceil(num_blocks / pipeline_par)",
        "choose a divisor of the blocks of a stage",
        lambda app, system, c: blocks_per_stage(app, c) % c.pipeline_interleaving != 0,
        survivable=True,
    ),
    AcceptanceRule(
        "weight_offload, activations_offload, optimizer_offload",
        "offload needs more than 2 blocks per stage",
        "offload nothing, or use fewer pipeline stages",
        lambda app, system, c: (
            (c.weight_offload | c.activations_offload | c.optimizer_offload) & (blocks_per_stage(app, c) <= 2)
        ),
        survivable=True,
    ),
    AcceptanceRule(
        "tensor_par_net, pipeline_par_net, data_par_net",
        "the degrees mapped on a network multiply to at most its size",
        "map a degree on a larger network",
        _too_wide,
        survivable=True,
    ),
    AcceptanceRule(
        "tensor_par_net, pipeline_par_net, data_par_net",
        "the degrees mapped on a network that must be filled multiply to a divisor of its size",
        "map other degrees on it",
        _not_filled,
        survivable=True,
    ),
    _divides("hidden"),
    _divides("feedforward"),
    _divides("attn_heads"),
    AcceptanceRule(
        "tensor_par",
        "with reduce-scatter and all-gather it divides microbatch_size x seq_size",
        'choose a divisor, or tensor_par_comm_type "ar"',
        lambda app, system, c: (c.tensor_par_comm_type != AR) & (c.microbatch_size * app.seq_size % c.tensor_par != 0),
    ),
    AcceptanceRule(
        "attention_type",
        "grouped needs the application's kv_heads",
        "add kv_heads to the application",
        _kv_heads,
    ),
    AcceptanceRule(
        "tensor_par",
        "it divides the application's kv_heads or is a multiple of them",
        "choose such a degree",
        _kv_split,
    ),
    AcceptanceRule(
        "datatype",
        "the system's matrix and vector engines have it",
        "choose a datatype of the system",
        _engine,
    ),
)


def _memory(tier: int, fix: str) -> AcceptanceRule:
    text = f"a processor's need of memory tier {tier} is at most the system's capacity"
    return AcceptanceRule(f"proc_mem_tier{tier}_cap_req", text, fix, _never, survivable=True)


RULES: tuple[AcceptanceRule, ...] = (
    AcceptanceRule("", "accepted", "", _never),
    *_FIRST,
    *_LATER,
    _memory(1, "use more model parallelism, more recompute or a smaller microbatch_size"),
    _memory(2, "offload less"),
)
"""Rules by code of a rejection; 0 is none."""

LATER = 1 + len(_FIRST)
"""Code of the first rule that supposes counts of 1 or more, known choices and networks that are there."""
MEMORY_TIER1 = len(RULES) - 2
MEMORY_TIER2 = len(RULES) - 1


def reject(app: Application, system: System, columns: ExecutionColumns) -> Int[np.ndarray, "rows"]:
    """Code of the first rule each row breaks, 0 where none; memory is not looked at.

    Codes are positions in RULES; `MEMORY_TIER1` and `MEMORY_TIER2` are given by `price` only.
    """
    found = np.zeros(columns.rows, dtype=np.int8)
    _mark(found, _FIRST, 1, app, system, columns)
    sound = np.flatnonzero(found == 0)
    if sound.size == columns.rows:
        _mark(found, _LATER, LATER, app, system, columns)
    elif sound.size:
        later = np.zeros(sound.size, dtype=np.int8)
        _mark(later, _LATER, LATER, app, system, columns.take(sound))
        found[sound] = later
    return found


def _mark(
    found: np.ndarray,
    rules: tuple[AcceptanceRule, ...],
    code: int,
    app: Application,
    system: System,
    columns: ExecutionColumns,
) -> None:
    for offset, rule in enumerate(rules):
        broken = rule.broken(app, system, columns)
        if broken.any():
            found[broken & (found == 0)] = code + offset
