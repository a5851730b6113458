"""Schedule tables as people write them: one list of entries per worker.

    entry  = task { "+" task }                             tasks joined by + run together
    task   = kind chunk "." number [ "s" segment ] [ "@" version ]

`F0.3` is the forward of micro-batch 3 on chunk 0 of the worker whose list it stands in. Of tasks on whole chunks (OPT,
UNSHARD, ...) the number says how many of their kind the chunk had before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from meshwright.errors import InputError, Problem, nearest
from meshwright.schedules.kinds import ROUNDS, Kind, Placement
from meshwright.shapes import Int

_TASK = re.compile(r"([A-Za-z](?:[A-Za-z_]*[A-Za-z])?)(\d{1,6})\.(\d{1,7})(?:s(\d{1,4}))?(?:@(\d{1,7}))?")
PROBLEMS_SHOWN = 8
"""Most unreadable entries that are listed one by one."""

Columns = dict[str, Int[np.ndarray, " tasks"]]


def read_entries(lists: Sequence[Sequence[str]], segments: int = 1) -> Columns:
    """Columns worker, kind, chunk, micro_batch, fused and version (-1: none) of the tasks in these lists.

    Args:
        lists: the entries of each worker, in order.
        segments: sequence segments per micro-batch.

    Raises:
        InputError: entries that cannot be read, each with where it stands.
    """
    rows: list[tuple[int, int, int, int, bool, int]] = []
    problems: list[Problem] = []
    for worker, entries in enumerate(lists):
        for at, entry in enumerate(entries):
            for part, text in enumerate(entry.split("+")):
                task = _read(text.strip(), segments)
                if isinstance(task, Problem):
                    where = f"workers[{worker}].order[{at}]"
                    problems.append(Problem(what=f"{where}: {task.what}", why=task.why, fix=task.fix, field=where))
                    continue
                rows.append((worker, *task[:3], part > 0, task[3]))
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        shown = problems[:PROBLEMS_SHOWN]
        raise InputError([*shown, Problem(what=f"{more} more entries cannot be read")] if more > 0 else shown)
    if not rows:
        raise InputError(what="schedule table: no entries", why="a table has at least one task", field="schedule")
    columns = np.array(rows, np.int64).T
    return dict(zip(("worker", "kind", "chunk", "micro_batch", "fused", "version"), columns, strict=True))


def placed(columns: Columns, workers: int, placement: Placement | None) -> tuple[Placement, Int[np.ndarray, " tasks"]]:
    """The placement, a loop of the chunks if none is given, and the virtual stage of every task.

    Args:
        columns: the columns as `read_entries` returns them.
        workers: lists of entries.
        placement: the placement of the virtual stages, or None.

    Raises:
        InputError: a chunk that its worker does not have.
    """
    if placement is None:
        placement = Placement.loop(workers, int(columns["chunk"].max()) + 1)
    stage_of = np.full((max(workers, placement.p), placement.v), -1)
    stage_of[placement.worker, placement.chunk] = np.arange(placement.stages)
    known = columns["chunk"] < placement.v
    stage = np.where(known, stage_of[columns["worker"], np.minimum(columns["chunk"], placement.v - 1)], -1)
    if (stage < 0).any():
        task = int(np.nonzero(stage < 0)[0][0])
        worker, chunk = int(columns["worker"][task]), int(columns["chunk"][task])
        held = int((placement.worker == worker).sum())
        chunks = "no chunks" if not held else "chunk 0" if held == 1 else f"chunks 0 to {held - 1}"
        raise InputError(
            what=f"schedule table: worker {worker} runs chunk {chunk} ({(stage < 0).sum()} such)",
            why=f"the placement gives it {chunks}",
            fix="use the worker's own chunks, or place another stage there",
            field="schedule",
        )
    return placement, stage


def micro_batches_of(columns: Columns, stage: Int[np.ndarray, " tasks"], placement: Placement) -> tuple[int, ...]:
    """Micro-batches that enter each chain: one more than the largest number a task of it has.

    Args:
        columns: the columns as `read_entries` returns them.
        stage: virtual stage of each task.
        placement: the placement of the virtual stages.
    """
    counted = ~ROUNDS[columns["kind"]]
    most = np.zeros(placement.chains, np.int64)
    np.maximum.at(most, placement.chain[stage[counted]], columns["micro_batch"][counted] + 1)
    return tuple(most.tolist())


def _read(text: str, segments: int) -> tuple[int, int, int, int] | Problem:
    """Kind, chunk, micro-batch (or segment) and version of one task, or what is wrong with it."""
    found = _TASK.fullmatch(text)
    if found is None:
        why = "a task is its kind, the chunk of the worker, a dot and the micro-batch"
        return Problem(what=f"{text!r} is not a task", why=why, fix="write it like F0.3")
    letters, chunk, number, segment, version = found.groups()
    if letters not in Kind.__members__:
        close = nearest(letters.upper(), tuple(Kind.__members__))
        why = f"kinds are {', '.join(Kind.__members__)}"
        return Problem(
            what=f"{text!r} is of unknown kind {letters}", why=why, fix=f"{' or '.join(close)}" if close else ""
        )
    kind = Kind[letters]
    unit = int(number)
    if segments > 1 and not ROUNDS[kind]:
        if segment is None or int(segment) >= segments:
            why = f"every micro-batch has the segments s0 to s{segments - 1}"
            return Problem(what=f"{text!r} names no such segment", why=why, fix=f"write {letters}{chunk}.{number}s0")
        unit = unit * segments + int(segment)
    elif segment is not None:
        return Problem(
            what=f"{text!r} names a segment", why="the table has whole micro-batches", fix=text.split("s")[0]
        )
    return int(kind), int(chunk), unit, -1 if version is None else int(version)
