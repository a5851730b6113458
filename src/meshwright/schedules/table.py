"""The one schedule language: a table of tasks per worker, checked when it is built.

A schedule sends micro-batches down one or more *chains* of virtual stages. A `Placement` says which worker holds which
virtual stage; a `ScheduleTable` says in which order every worker runs its tasks. Nothing here knows seconds. The named
schedules list computation only; passes (`with_communication` and its neighbours) add the other tasks of `Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules.checks import column_problems, table_problems
from meshwright.schedules.columns import TaskColumns
from meshwright.schedules.kinds import Kind, Placement


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleTable(TaskColumns):
    """Who runs which task in which order.

    Built from any complete order; raises `InputError` with every problem, each told by the fewest tasks that show it,
    when a worker is unknown, a micro-batch misses or repeats a task, a message lacks an end or two ends of a channel
    disagree, something is used before it exists or after it is freed, or workers wait for each other in a circle.
    """

    def __post_init__(self) -> None:
        columns = {name: np.asarray(getattr(self, name)) for name in ("worker", "kind", "stage", "micro_batch")}
        problems = column_problems(columns, self.placement, self.micro_batches)
        if problems:
            raise InputError(problems)
        super().__post_init__()
        problems = table_problems(self)
        if problems:
            raise InputError(problems)

    @classmethod
    def from_entries(
        cls, lists: Sequence[Sequence[str]], *, placement: Placement | None = None, segments: int = 1
    ) -> ScheduleTable:
        """The table that people wrote down: what `entries` returns, read back.

        Args:
            lists: the entries of each worker in order, such as `F0.3`.
            placement: the placement of the virtual stages; None: chunk k of worker r is virtual stage k*p + r.
            segments: sequence segments per micro-batch.

        Raises:
            InputError: entries that cannot be read, or a table that does not pass its checks.
        """
        from meshwright.schedules.entries import micro_batches_of, placed, read_entries  # for tables that are read

        columns = read_entries(lists, segments)
        placement, stage = placed(columns, len(lists), placement)
        version = columns["version"]
        return cls(
            placement=placement,
            micro_batches=micro_batches_of(columns, stage, placement),
            worker=columns["worker"],
            kind=columns["kind"],
            stage=stage,
            micro_batch=columns["micro_batch"],
            fused=columns["fused"].astype(bool),
            version=np.maximum(version, 0) if (version >= 0).any() else None,
            segments=segments,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ScheduleTable:
        """The table that `to_dict` wrote.

        Args:
            data: the data with `orders`, and optionally `chains` and `segments`.

        Raises:
            InputError: another shape, or a table that does not pass its checks.
        """
        orders, chains, segments = data.get("orders"), data.get("chains"), data.get("segments", 1)
        problems = []
        if not _nested(orders, str):
            problems.append(_shape_problem("orders", 'a list of entries such as "F0.3" per worker'))
        if chains is not None and not _places_all(chains):
            problems.append(
                _shape_problem("chains", "per chain the workers that it visits, none of 0, 1, ... left out")
            )
        if not isinstance(segments, int) or isinstance(segments, bool) or segments < 1:
            problems.append(_shape_problem("segments", "segments per micro-batch, at least 1"))
        if problems:
            raise InputError(problems)
        placement = None if chains is None else Placement.of_chains(chains)  # type: ignore[arg-type]
        return cls.from_entries(orders, placement=placement, segments=segments)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, object]:
        """As data: the workers each chain visits, and every worker's entries."""
        starts = np.nonzero(self.placement.preceding < 0)[0]
        chains = np.split(self.placement.worker, starts[1:])
        return {"chains": [chain.tolist() for chain in chains], "segments": self.segments, "orders": self.entries()}

    def entries(self) -> list[list[str]]:
        """Every worker's list as users read it: `F0.3` is kind, chunk of the worker, micro-batch; `+` fuses."""
        lists: list[list[str]] = [[] for _ in range(self.p)]
        letters = [kind.name for kind in Kind]
        fused = np.zeros(self.tasks, bool) if self.fused is None else self.fused
        plain = self.segments == 1 and self.version is None
        columns = (self.worker, self.kind, self.chunk, self.micro_batch, fused)
        for task, (worker, kind, chunk, unit, joined) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            name = f"{letters[kind]}{chunk}.{unit}" if plain else self.name(task)
            if joined:
                lists[worker][-1] += f"+{name}"
            else:
                lists[worker].append(name)
        return lists


def _nested(value: object, of: type) -> bool:
    """Whether a value is a list of lists of things of a type."""
    lists = (list, tuple)
    return isinstance(value, lists) and all(
        isinstance(inner, lists) and all(isinstance(one, of) and one is not True and one is not False for one in inner)
        for inner in value
    )


def _places_all(chains: object) -> bool:
    """Whether these are chains that visit every worker from 0 on."""
    if not _nested(chains, int):
        return False
    visited = [set(chain) for chain in chains]  # type: ignore[attr-defined]
    workers = set().union(*visited)
    return bool(workers) and all(visited) and workers == set(range(len(workers)))


def _shape_problem(name: str, wanted: str) -> Problem:
    return Problem(what=f"schedule table: {name} is missing or malformed", why=f"it is {wanted}", field=name)


__all__ = ["Kind", "Placement", "ScheduleTable"]
