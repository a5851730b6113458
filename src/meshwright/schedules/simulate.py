"""The event simulator: exact start and end of every task of a schedule table, for one or many sets of durations.

Each worker runs its list in order; a task starts when the worker is free and its inputs have arrived. A transfer
between workers adds latency and occupies nobody; within a worker it is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules.program import Program, compile_table, run
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.shapes import Float, Int

BLOCK_CELLS = 4_000_000
"""Most task ends kept at once, so that a batch of any size fits the memory of a small machine."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Times:
    """Seconds of the tasks of one micro-batch, by worker and chunk; leading axes hold sets of durations."""

    forward_s: Float[np.ndarray, "*#rows workers chunks"]
    backward_s: Float[np.ndarray, "*#rows workers chunks"]
    """Full backward; input gradients take what `weight_s` leaves of it."""
    transfer_s: Float[np.ndarray, "*rows_and_edges"] | float = 0.0
    """Latency between a virtual stage and the next one, the same in both directions: by worker and chunk of the
    upstream stage (*rows, workers, chunks), or along the chain (*rows, workers*chunks - 1). Ignored inside a worker."""
    weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None
    """Weight gradient; needed by schedules that split the backward."""
    recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None
    """Recomputation; needed by schedules with recompute tasks."""

    @classmethod
    def equal(cls, p: int, v: int = 1, *, forward_s: float = 1.0, backward_s: float = 2.0, transfer_s: float = 0.0,
              weight_s: float | None = None, recompute_s: float | None = None) -> Times:  # fmt: skip
        """The same times, given per full worker share, on every worker; a chunk takes 1/v of them."""

        def share(seconds: float) -> np.ndarray:
            return np.full((p, v), seconds / v)

        return cls(
            forward_s=share(forward_s),
            backward_s=share(backward_s),
            transfer_s=np.full((p, v), float(transfer_s)),
            weight_s=None if weight_s is None else share(weight_s),
            recompute_s=None if recompute_s is None else share(recompute_s),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """When every task of a table runs, with one set of durations."""

    table: ScheduleTable
    start_s: Float[np.ndarray, " tasks"]
    end_s: Float[np.ndarray, " tasks"]
    """Fused tasks share start and end."""
    busy_s: Float[np.ndarray, " workers"]
    """Seconds each worker computes."""

    @cached_property
    def worker_end_s(self) -> Float[np.ndarray, " workers"]:
        """End of each worker's last task."""
        return self.end_s[self.table.first[1:] - 1]

    @property
    def makespan_s(self) -> float:
        """End of the last task."""
        return float(self.worker_end_s.max())

    @property
    def bubble_makespan(self) -> float:
        """Idle share of the makespan: 1 - busy / (p * makespan)."""
        return 1.0 - float(self.busy_s.sum()) / (self.table.p * self.makespan_s)

    @property
    def span_s(self) -> float:
        """Largest time from first start to last end of one worker."""
        return float((self.worker_end_s - self.start_s[self.table.first[:-1]]).max())

    @property
    def bubble_span(self) -> float:
        """Idle share of the longest span: 1 - mean busy / span (the zero-bubble papers' definition)."""
        return 1.0 - float(self.busy_s.mean()) / self.span_s


def simulate(table: ScheduleTable, times: Times) -> Timeline:
    """Start and end of every task: end = max(worker free, inputs arrived) + duration.

    Args:
        table: what runs in which order.
        times: one set of durations, without leading axes.
    """
    program = _program(table)
    seconds, latency = task_seconds(table.placement, times, _kinds(table))
    if seconds.shape[-1] != 1:
        raise InputError(
            Problem(
                what=f"{seconds.shape[-1]} sets of durations for one timeline",
                why="a timeline shows one set",
                fix="pass arrays of shape (workers, chunks), or ask `makespans` for many sets",
                field="times",
            )
        )
    ends, _ = run(program, _weights(program, seconds, latency), skip=False)
    end_s = ends[1:, 0][program.position][table.node]
    own = seconds[table.kind * (table.p * table.v) + table.worker * table.v + table.chunk, 0]
    together = np.bincount(table.node, weights=own)
    return Timeline(
        table=table,
        start_s=end_s - together[table.node],
        end_s=end_s,
        busy_s=np.bincount(table.worker, weights=own, minlength=table.p),
    )


def makespans(table: ScheduleTable, times: Times) -> Float[np.ndarray, "*all_rows workers"]:
    """End of each worker's last task for many sets of durations at once; the step's makespan is the largest.

    Equal to `simulate` up to rounding (relative 1e-10); the middle of a steady phase is skipped where it is periodic.

    Args:
        table: what runs in which order.
        times: sets of durations along leading axes.
    """
    return worker_ends(_program(table), table.placement, _kinds(table), times)


def worker_ends(
    program: Program, placement: Placement, kinds: frozenset[Kind], times: Times, periods: tuple[int, ...] | None = None
) -> Float[np.ndarray, "*all_rows workers"]:
    """`makespans` of a compiled table, its phases run `periods` times.

    Args:
        program: the compiled table.
        placement: of its virtual stages.
        kinds: kinds of tasks it holds.
        times: sets of durations along leading axes.
        periods: of every segment, if not the program's own.
    """
    lead = np.broadcast_shapes(np.shape(times.forward_s)[:-2], np.shape(times.backward_s)[:-2])
    seconds, latency = task_seconds(placement, times, kinds)
    counts = periods or tuple(segment.periods for segment in program.segments)
    nodes = sum(count * segment.nodes for count, segment in zip(counts, program.segments, strict=True))
    rows = seconds.shape[-1]
    block = max(1, BLOCK_CELLS // (nodes + 1))
    worker_end_s = np.empty((rows, placement.p))
    for low in range(0, rows, block):
        part = slice(low, low + block)
        ends, last = run(program, _weights(program, seconds[:, part], latency[:, part]), periods)
        worker_end_s[part] = ends[last].T
    return worker_end_s.reshape(*lead, placement.p)


def edge_latency_s(
    placement: Placement, transfer_s: Float[np.ndarray, "*rows_and_edges"] | float, lead: tuple[int, ...]
) -> Float[np.ndarray, "*#rows workers chunks"]:
    """Latency behind each virtual stage by worker and chunk; 0 behind the last of a chain and inside a worker.

    Args:
        placement: of the virtual stages.
        transfer_s: seconds, by worker and chunk of the upstream stage, along the chain, or one for all.
        lead: leading axes of the other times.
    """
    p, v = placement.p, placement.v
    given = np.asarray(transfer_s, float)
    if given.ndim == len(lead) + 1 and placement.chains == 1 and given.shape[-1] == placement.stages - 1:
        along = np.zeros((*given.shape[:-1], p, v))
        along[..., placement.worker[:-1], placement.chunk[:-1]] = given
        given = along
    try:
        given = np.broadcast_to(given, (*lead, p, v))
    except ValueError:
        raise InputError(_shape_problem("transfer_s", given.shape, (*lead, p, v))) from None
    crosses = np.zeros((p, v), bool)
    crosses[placement.worker, placement.chunk] = (placement.following >= 0) & (
        placement.worker[placement.following] != placement.worker
    )
    return np.where(crosses, given, 0.0)


def _program(table: ScheduleTable) -> Program:
    """The compiled table, compiled once."""
    known = table.__dict__.get("_program")
    if known is None:
        known = table.__dict__["_program"] = compile_table(table)
    return known


def _kinds(table: ScheduleTable) -> frozenset[Kind]:
    known = table.__dict__.get("_kinds")
    if known is None:
        known = table.__dict__["_kinds"] = frozenset(Kind(kind) for kind in np.unique(table.kind))
    return known


def task_seconds(
    placement: Placement, times: Times, kinds: frozenset[Kind]
) -> tuple[Float[np.ndarray, "kinds_cells rows"], Float[np.ndarray, "cells rows"]]:
    """Seconds by kind, worker and chunk, and latency by worker and chunk, one column per set; all problems at once."""
    p, v = placement.p, placement.v
    forward, backward = np.asarray(times.forward_s, float), np.asarray(times.backward_s, float)
    problems = []
    if kinds & {Kind.I, Kind.W} and times.weight_s is None:
        problems.append(_missing("weight_s", "I and W"))
    if kinds & {Kind.R, Kind.X} and times.recompute_s is None:
        problems.append(_missing("recompute_s", "R"))
    given = {"forward_s": forward, "backward_s": backward}
    weight = recompute = np.zeros((p, v))
    if times.weight_s is not None:
        given["weight_s"] = weight = np.asarray(times.weight_s, float)
    if times.recompute_s is not None:
        given["recompute_s"] = recompute = np.asarray(times.recompute_s, float)
    problems += [_shape_problem(n, a.shape, (p, v)) for n, a in given.items() if a.shape[-2:] != (p, v)]
    problems += [
        Problem(
            what=f"{name} has values that are negative, infinite or not numbers",
            why="a duration is at least 0 s",
            field=name,
        )
        for name, array in {**given, "transfer_s": np.asarray(times.transfer_s, float)}.items()
        if not (np.isfinite(array).all() and (array >= 0).all())
    ]
    if problems:
        raise InputError(problems)
    lead = np.broadcast_shapes(*(array.shape[:-2] for array in given.values()))
    latency = edge_latency_s(placement, times.transfer_s, lead)
    by_kind = {
        Kind.F: forward, Kind.B: backward, Kind.I: backward - weight, Kind.W: weight, Kind.R: recompute, Kind.X: recompute
    }  # fmt: skip
    if Kind.I in kinds and (by_kind[Kind.I] < 0).any():
        raise InputError(
            Problem(
                what="weight_s is longer than backward_s",
                why="backward_s is the sum of input and weight gradient",
                field="weight_s",
            )
        )
    shape = (*lead, p, v)
    stacked = np.stack([np.broadcast_to(by_kind.get(kind, weight * 0.0), shape).reshape(-1, p * v) for kind in Kind])
    return stacked.transpose(0, 2, 1).reshape(len(Kind) * p * v, -1), latency.reshape(-1, p * v).T


def _weights(
    program: Program, seconds: Float[np.ndarray, "kinds_cells rows"], latency: Float[np.ndarray, "cells rows"]
) -> Float[np.ndarray, "classes rows"]:
    """Seconds that each weight class adds: the durations of its node and the latency of its edge."""
    none = np.zeros((1, seconds.shape[1]))
    return np.vstack([seconds, none])[program.durations].sum(axis=1) + np.vstack([latency, none])[program.latency]


def _missing(name: str, tasks: str) -> Problem:
    return Problem(
        what=f"{name} is missing",
        why=f"the schedule has {tasks} tasks",
        fix=f"pass {name} for every worker and chunk",
        field=name,
    )


def _shape_problem(name: str, shape: tuple[int, ...], wanted: tuple[Int[np.ndarray, ""] | int, ...]) -> Problem:
    return Problem(
        what=f"{name} has shape {shape}",
        why=f"the last axes are workers and chunks, here {wanted}",
        fix=f"pass an array whose shape ends in {wanted[-2:]}",
        field=name,
    )
