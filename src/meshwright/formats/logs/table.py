"""Plain CSV: a header of `step`, one of the times or rates, and what else is known.

`step_time_s` or `step_time_ms` (never both), `tokens_per_s_per_device`, `samples_per_s`, `global_batch`, `seq_len`,
`memory_gib`, `power_w`, and parts of the step that were measured apart: `compute_s`, `tp_s`, `dp_s`, ... by the names
of a predicted breakdown, several joined by `+` where they were measured together: `compute+recompute_s`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.formats.logs.record import LoggedStep, LoggedTerm, LogReader, LogReading, number
from meshwright.units import GIB

TIMES = {"step_time_s": 1.0, "step_time_ms": 1e-3}
PARTS = ("compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "offload", "host")
"""Parts of a predicted step."""
MEASURES = (*TIMES, "tokens_per_s_per_device", "samples_per_s")


def _read(reading: LogReading, lines: list[str]) -> None:
    """One step a row."""
    rows = csv.DictReader(lines, skipinitialspace=True)
    try:
        columns = [name.strip() for name in rows.fieldnames or ()]
    except csv.Error as error:
        reading.problems.append(_not_csv(1, error))
        return
    rows.fieldnames = columns
    terms = {name: parts for name in columns if (parts := _parts(name))}
    if wrong := _wrong_columns(columns, terms):
        reading.problems.append(wrong)
        return
    for row_number, row in enumerate(_readable(reading, rows)):
        at = rows.line_num

        def value(name: str, row: dict[str, str | None] = row, at: int = at) -> float | None:
            text = row.get(name)
            return reading.positive(at, name, text) if text and text.strip() else None

        times = [found * scale for name, scale in TIMES.items() if (found := value(name)) is not None]
        batch, seq_len, memory, step, power = map(value, ("global_batch", "seq_len", "memory_gib", "step", "power_w"))
        iteration = int(step) if step is not None else row_number + 1
        if seq_len is not None:
            reading.state("seq_len", at, str(seq_len))
        reading.step(
            LoggedStep(
                line=at,
                iteration=iteration,
                step_time_s=times[0] if times else None,
                tokens_per_s_per_device=value("tokens_per_s_per_device"),
                samples_per_s=value("samples_per_s"),
                global_batch=int(batch) if batch is not None else None,
                memory_bytes=memory * GIB if memory is not None else None,
                power_w=power,
            )
        )
        stated = {name: number(text) for name in terms if (text := (row.get(name) or "").strip())}
        if any(seconds is None or not 0 <= seconds < float("inf") for seconds in stated.values()):
            reading.problems.append(
                Problem(
                    what=f"line {at}: {', '.join(stated)} must be seconds",
                    why="one of them is no finite number of at least 0",
                    fix="take the line out, or correct it",
                    field="columns",
                )
            )
        elif stated:
            reading.terms[iteration] = [
                LoggedTerm(name=name.removesuffix("_s"), parts=terms[name], seconds=seconds or 0.0)
                for name, seconds in stated.items()
            ]


def _readable(reading: LogReading, rows: csv.DictReader[str]) -> Iterator[dict[str, str | None]]:
    """Rows up to the first that is no CSV."""
    try:
        yield from rows
    except csv.Error as error:
        reading.problems.append(_not_csv(rows.line_num + 1, error))


def _not_csv(line: int, error: csv.Error) -> Problem:
    fix = "write one row a line, cells apart by commas"
    return Problem(what=f"line {line} is no row of a CSV", why=str(error), fix=fix, field="steps")


def _wrong_columns(columns: list[str], terms: dict[str, tuple[str, ...]]) -> Problem | None:
    """The problem of a header without a measure, or with one twice."""
    named = [part for parts in terms.values() for part in parts]
    if not set(columns) & set(MEASURES):
        return Problem(
            what="the CSV has no column of a step's time or rate",
            why=f"line 1 names {', '.join(columns)[:100] or 'nothing'}",
            fix=f"name one of {', '.join(MEASURES)}",
            field="columns",
        )
    if set(TIMES) <= set(columns):
        return Problem(
            what="line 1: both step_time_s and step_time_ms",
            why="a step has one time, in one unit",
            fix="keep one of the columns",
            field="step_time_s",
        )
    if twice := sorted({part for part in named if named.count(part) > 1}):
        return Problem(
            what=f"line 1: {', '.join(twice)} in several columns",
            why="each part of the step has one column",
            fix="keep one column for each part",
            field="columns",
        )
    return None


def _parts(column: str) -> tuple[str, ...]:
    """The parts of a step that a column names; empty for another column."""
    parts = tuple(column.removesuffix("_s").split("+"))
    return parts if column.endswith("_s") and set(parts) <= set(PARTS) else ()


READER = LogReader(
    name="csv",
    signature=re.compile(r"^\s*(?:[\w+]+\s*,\s*)*(?:step_time_s|step_time_ms|tokens_per_s_per_device|samples_per_s)\b"),
    header_only=True,
    read=_read,
)
