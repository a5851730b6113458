"""Pipeline schedules as `torch.distributed.pipelining` loads them: a line per rank, in it one action per cell.

    0F0,0F1,0B0,0B1                      compute_only: PyTorch puts the communication in
    0UNSHARD,0F0,0SEND_F0,0RECV_B0,...   compute_comms: every action is spelt out

An action is a virtual stage, a kind and, unless it concerns all of them, a micro-batch; `(0F3;7B1)OVERLAP_F_B` are two
that run together. In compute_only files an empty cell stands for an idle step. PyTorch 2.15 (2026-10) and newer want a
wait for every send and reduction in compute_comms files, which 2.14 and older do not know: `with_waits` adds them, and
reading drops them, since they follow from the rest.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_text
from meshwright.shapes import Bool, Int

KINDS = (
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD",
)  # fmt: skip
"""PyTorch's kinds of action: F forward, B whole backward, I input gradient, W weight gradient, sends and receives of
activations (_F) and gradients (_B), gather and release of sharded weights, sum of the gradients over data ranks."""

COMPUTE = ("F", "B", "I", "W")
"""The kinds a compute_only file may hold."""

OF_A_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
"""The kinds that concern a whole stage and name no micro-batch."""

WAITS = ("WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD")
"""Ends of sends and reductions, of PyTorch 2.15 and newer."""

OVERLAP = "OVERLAP_F_B"
NONE = -1
"""Micro-batch of an action that names none."""

MAX_BYTES = 64 * 1024**2
"""A million tasks with their communication take 40 MB."""
MAX_PROBLEMS = 20
"""Cells that are told one by one."""
MOST = 1_000_000
"""Stages and micro-batches count below it."""

_WRITTEN = (*KINDS, *WAITS)
_ACTION = re.compile(rf"(\d{{1,9}})({'|'.join(sorted(_WRITTEN, key=len, reverse=True))})(\d{{0,9}})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """The actions of all ranks as columns, rank after rank in their order."""

    rank: Int[np.ndarray, " actions"]
    kind: Int[np.ndarray, " actions"]
    """Index into `KINDS`."""
    stage: Int[np.ndarray, " actions"]
    """Virtual stage."""
    micro_batch: Int[np.ndarray, " actions"]
    """`NONE` where the action concerns all micro-batches."""
    joined: Bool[np.ndarray, " actions"]
    """True where an action shares the cell of the one before."""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """Rank, kind, stage, micro-batch and whether it is joined."""
        return self.rank, self.kind, self.stage, self.micro_batch, self.joined

    @property
    def ranks(self) -> int:
        """Ranks, each with one action at least."""
        return int(self.rank[-1]) + 1

    @property
    def with_communication(self) -> bool:
        """Whether PyTorch must load it as compute_comms."""
        return bool((self.kind >= len(COMPUTE)).any())


def with_waits(actions: Actions) -> Actions:
    """The actions with the waits of PyTorch 2.15 and newer: these are what a wait's kind counts on from `KINDS`.

    A send of activations is waited for behind the stage's own backward of that micro-batch, which proves that they were
    received; one of gradients, or without a backward behind it, at the end; a reduction at once.

    Args:
        actions: the actions with communication.
    """
    columns: list[tuple[int, int, int, int, bool]] = []
    rows = zip(*(column.tolist() for column in actions.columns), strict=True)
    for rank, row in groupby(rows, key=lambda action: action[0]):
        pending: dict[tuple[int, int, int], None] = {}
        own = list(row)
        for at, (_, kind, stage, unit, joined) in enumerate(own):
            columns.append((rank, kind, stage, unit, joined))
            name = KINDS[kind]
            if name in ("SEND_F", "SEND_B"):
                pending[_wait(name), stage, unit] = None
            elif name == "REDUCE_GRAD":
                columns.append((rank, _wait(name), stage, unit, False))
            if at + 1 < len(own) and own[at + 1][4]:
                continue  # the cell goes on
            first = max(back for back in range(at + 1) if not own[back][4])
            for _, part, part_stage, part_unit, _ in own[first : at + 1]:
                sent = (_wait("SEND_F"), part_stage, part_unit)
                if KINDS[part] in ("B", "I") and sent in pending:
                    del pending[sent]
                    columns.append((rank, *sent, False))
        columns += [(rank, *sent, False) for sent in pending]
    return _actions(columns)


def _wait(name: str) -> int:
    return len(KINDS) + WAITS.index(f"WAIT_{name}")


def _actions(found: list[tuple[int, int, int, int, bool]]) -> Actions:
    columns = np.array(found, np.int32).T
    return Actions(
        rank=columns[0], kind=columns[1], stage=columns[2], micro_batch=columns[3], joined=columns[4].astype(bool)
    )


def write_actions(actions: Actions) -> str:
    """The CSV text.

    Args:
        actions: the actions of every rank from 0 on.
    """
    rows: list[list[str]] = [[] for _ in range(actions.ranks)]
    parts: list[str] = []
    for rank, kind, stage, unit, joined in zip(*(column.tolist() for column in actions.columns), strict=True):
        name = f"{stage}{_WRITTEN[kind]}{'' if unit == NONE else unit}"
        if joined:
            parts = [*parts, name]
            rows[rank][-1] = f"({';'.join(parts)}){OVERLAP}"
        else:
            parts = [name]
            rows[rank].append(name)
    return "".join(",".join(row) + "\n" for row in rows)


def read_actions(path: str | Path) -> Actions:
    """The actions of a CSV file.

    Args:
        path: the path as `write_actions` or PyTorch's own `_dump_csv` wrote it, or written by hand.

    Raises:
        InputError: the file cannot be read, or every cell that is no action, with its line and column.
    """
    return parse_actions(read_text(path, "schedule file", max_bytes=MAX_BYTES), str(path))


def parse_actions(text: str, source: str = "schedule") -> Actions:
    """The actions of a CSV text.

    Args:
        text: the lines.
        source: the source where they come from, for errors.

    Raises:
        InputError: every cell that is no action, with its line and column.
    """
    found: list[tuple[int, int, int, int, bool]] = []
    problems: list[Problem] = []
    rank = 0
    for rank, row in enumerate(_rows(text, source)):
        before = len(found) + len(problems)
        for column, cell in enumerate(row):
            try:
                parts = [(rank, *part) for part in _cell(cell.strip())]
                found.extend(part for part in parts if part[1] < len(KINDS))
            except ValueError as error:
                what = f"{source[:200]}: line {rank + 1}, column {column + 1} is {_short(cell)}"
                fix = "write a virtual stage, a kind and a micro-batch, such as 2F0, 1SEND_F3 or (0F4;3B1)OVERLAP_F_B"
                problems.append(Problem(what=what, why=str(error), fix=fix, field="schedule"))
        if len(found) + len(problems) == before:
            what = f"{source[:200]}: line {rank + 1} holds no action"
            why = "line N is what rank N - 1 runs, and every rank runs something"
            problems.append(Problem(what=what, why=why, fix="remove the line", field="schedule"))
    if problems:
        more = len(problems) - MAX_PROBLEMS
        listed = [*problems[:MAX_PROBLEMS], *([Problem(what=f"and {more} more")] if more > 0 else [])]
        raise InputError(listed, code="MW246")
    return _actions(found)


def _rows(text: str, source: str) -> list[list[str]]:
    """Cells of each line; blank lines at the end are dropped."""
    try:
        return list(csv.reader(io.StringIO(text.rstrip() + "\n", newline=""), strict=True))
    except csv.Error as error:
        problem = Problem(what=f"{source[:200]} is not CSV", why=str(error), fix="name a CSV file", field="schedule")
        raise InputError(problem, code="MW246") from None


def _cell(text: str) -> list[tuple[int, int, int, bool]]:
    """Kind, stage, micro-batch and whether it joins the action before, of each action in a cell."""
    if not text:
        return []
    if not text.startswith("("):
        return [(*_action(text), False)]
    inner, closed, kind = text[1:].partition(")")
    if not closed or kind.strip() != OVERLAP:
        raise ValueError(f"two actions that run together are written (one;other){OVERLAP}")
    parts = [_action(part.strip()) for part in inner.split(";")]
    if len(parts) < 2:
        raise ValueError(f"{OVERLAP} takes two actions")
    return [(*part, index > 0) for index, part in enumerate(parts)]


def _action(text: str) -> tuple[int, int, int]:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"an action is a virtual stage, one of {', '.join(KINDS)}, and a micro-batch")
    stage, kind, unit = match.groups()
    if kind in OF_A_STAGE and unit:
        raise ValueError(f"{kind} is for all micro-batches of a stage and names none")
    if kind not in OF_A_STAGE and not unit:
        raise ValueError(f"{kind} is for one micro-batch and must name it")
    if max(int(stage), int(unit or 0)) >= MOST:
        raise ValueError(f"stages and micro-batches count from 0 to below {MOST:,}")
    return _WRITTEN.index(kind), int(stage), int(unit) if unit else NONE


def _short(cell: str) -> str:
    return repr(cell if len(cell) <= 60 else f"{cell[:57]}...")
