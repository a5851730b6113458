"""Batch time and memory of executions that share layouts and settings.

Each part of the model is priced once per combination of what it reads, and an execution takes what is its own:

    memory      every layout, with the settings but networks and overlap of traffic
    flow        blocks with the stage traffic and offload beside them; few keys of a layout
    reduction   every layout, with the few settings that gradients and optimizer read
    batch       every execution: flow and reduction, times its counts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from meshwright.calculon.blocks import BLOCK_KEYS
from meshwright.calculon.data_parallel import Room, hidden_s, reduction_s, room_of
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.factored import LAYOUT_KEYS, FactoredRows
from meshwright.calculon.inputs import NO_OVERLAP
from meshwright.calculon.memory import spaces
from meshwright.calculon.pipeline import Flow, bubble_s, chunk_s, flow
from meshwright.calculon.rows import ExecutionRows, Prepared
from meshwright.calculon.settings import MEMORY_KEYS, OFFLOAD_KEYS
from meshwright.calculon.vocabulary import vocabulary_times
from meshwright.search.parts import in_parts
from meshwright.shapes import Float

FLOW_KEYS = (
    *(key for key in BLOCK_KEYS if key not in LAYOUT_KEYS),
    "pipeline_par_net",
    "optimizer_sharding",
    *OFFLOAD_KEYS,
)
"""Settings that `flow` and `room_of` read."""
REDUCTION_KEYS = ("datatype", "attention_type", "optimizer_sharding", "data_par_net", "training")
"""Settings that gradients, optimizer and vocabulary read, besides whether tensor traffic overlaps at all."""

Prepare = Callable[[ExecutionColumns], Prepared]
Table = Mapping[str, Float[np.ndarray, "combinations"]]


def price_factored(rows: FactoredRows, prepare: Prepare) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds per batch, and bytes of both memory tiers, of legal executions.

    Args:
        rows: the executions.
        prepare: prices the blocks and optimizer steps of executions.
    """
    layouts, settings = rows.layouts, rows.settings
    tiled = settings.tensor_par_overlap != NO_OVERLAP
    held = rows.combine([rows.own], [*(getattr(settings, key) for key in (*MEMORY_KEYS, "training")), tiled])
    sent = rows.combine(
        [layouts.tensor_par, layouts.microbatch_size, layouts.data_par, layouts.pipeline_par > 1],
        [getattr(settings, key) for key in FLOW_KEYS],
    )
    reduced = rows.combine([rows.own], [*(getattr(settings, key) for key in REDUCTION_KEYS), tiled])
    combined = (held.columns, sent.columns, reduced.columns)
    prepared = prepare(ExecutionColumns.joined(combined))
    tiers, ways, steps = (
        _table(prepared, columns, sum(one.rows for one in combined[:place]), read)
        for place, (columns, read) in enumerate(zip(combined, (_memory, _flow, _reduction), strict=True))
    )
    of_layouts = ExecutionRows(prepared, layouts, slice(0, 0))
    found = total_s, tier1, tier2 = np.empty(rows.rows), np.empty(rows.rows), np.empty(rows.rows)
    trains = bool(settings.training.all())
    hides = settings.data_par_overlap[rows.setting]

    def price(of: np.ndarray | None, hidden: bool, part: slice) -> None:
        where = part if of is None else of[part]
        these = rows.take(where)
        place = held.of(these)
        tier1[where], tier2[where] = tiers["tier1"].take(place), tiers["tier2"].take(place)
        way, step = sent.of(these), reduced.of(these)
        total_s[where] = _batch_s(
            PairRows(of_layouts, these, trains=trains),
            PairFlow(lambda name: ways[name].take(way)),
            PairRoom(lambda name: ways[name].take(way)) if hidden else None,
            {name: values.take(step) for name, values in steps.items()},
        )

    # Rows whose gradient traffic overlaps need several times the arithmetic of the others.
    for hidden in (False, True):
        of = np.flatnonzero(hides == hidden)
        in_parts(len(of), partial(price, None if len(of) == rows.rows else of, hidden))
    return found


def _batch_s(rows: ExecutionRows, blocks: Flow, room: Room | None, step: Table) -> Float[np.ndarray, "rows"]:
    """`batch.batch` of rows whose parts are known, in the same order, so that the sums are the same."""
    chunk = chunk_s(rows, blocks)
    exposed_s = step["link_s"] if room is None else hidden_s(rows, blocks, room, step["block_s"])
    total_s = rows.passes * (chunk - blocks.unpaid_s) + bubble_s(rows, blocks, chunk) + exposed_s + step["optimizer_s"]
    for name in VOCABULARY:
        if name in step:
            total_s = total_s + step[name]
    return total_s


VOCABULARY = ("words_fw_s", "words_bw_s", "words_optimizer_s", "words_traffic_s")


def _memory(rows: ExecutionRows) -> Table:
    need = spaces(rows)
    return {"tier1": need.tier1, "tier2": need.tier2}


def _flow(rows: ExecutionRows) -> Table:
    found = flow(rows)
    room = room_of(rows, found)
    kept = ("base_s", "edge_s", "unpaid_s", "stage_bw_s", "bw_base_s", "bw_edge_s")
    return {name: getattr(found, name) for name in kept} | {name: getattr(room, name) for name in Room.__slots__}


def _reduction(rows: ExecutionRows) -> Table:
    block_s, link_s = reduction_s(rows)
    found = {"block_s": block_s, "link_s": link_s, "optimizer_s": rows.blocks * rows["block_optim_time"]}
    words = vocabulary_times(rows)
    if words is not None:
        found |= dict(zip(VOCABULARY, (words.fw_s, words.bw_s, words.optimizer_s, words.traffic_s), strict=True))
    return found


def _table(prepared: Prepared, columns: ExecutionColumns, first: int, read: Callable[[ExecutionRows], Table]) -> Table:
    """What is read of combinations, of the prepared rows from the first on."""
    table: dict[str, Float[np.ndarray, "combinations"]] = {}

    def one(part: slice) -> None:
        rows = ExecutionRows(prepared, columns.take(part), slice(first + part.start, first + part.stop))
        for name, values in read(rows).items():
            table.setdefault(name, np.empty(columns.rows))[part] = values

    in_parts(columns.rows, one)
    return table


class GatheredColumns:
    """Columns of the rows by name, each gathered from a table when it is first asked for."""

    def __init__(self, find: Callable[[str], np.ndarray]) -> None:
        object.__setattr__(self, "find", find)

    def __getattr__(self, name: str) -> Any:
        found = object.__getattribute__(self, "find")(name)
        object.__setattr__(self, name, found)
        return found


class PairFlow(GatheredColumns, Flow):
    """The flow of pairs."""


class PairRoom(GatheredColumns, Room):
    """The room of pairs."""


class PairColumns(GatheredColumns, ExecutionColumns):
    """The keys of pairs of a layout and a setting."""


class PairRows(GatheredColumns, ExecutionRows):
    """The counts of pairs, which are those of their layouts; blocks are not known."""

    def __init__(self, layouts: ExecutionRows, rows: FactoredRows, *, trains: bool) -> None:
        super().__init__(lambda name: getattr(layouts, name).take(rows.layout))
        self.prepared, self.uneven, self.trains = layouts.prepared, layouts.uneven, trains
        self.passes, self.inner_blocks, self.rounds = (
            getattr(layouts, name).take(rows.layout) for name in ("passes", "inner_blocks", "rounds")
        )
        self.columns = PairColumns(rows.column)
