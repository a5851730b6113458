"""Plain CSV: a header of `step`, one of the times or rates, and what else is known.

`step_time_s` or `step_time_ms` (never both), `tokens_per_s_per_device`, `samples_per_s`, `global_batch`, `seq_len`,
`memory_gib`.
"""

from __future__ import annotations

import csv
import re

from meshwright.errors import Problem
from meshwright.formats.logs.record import LoggedStep, LogReader, LogReading
from meshwright.units import GIB

TIMES = {"step_time_s": 1.0, "step_time_ms": 1e-3}
MEASURES = (*TIMES, "tokens_per_s_per_device", "samples_per_s")


def _read(reading: LogReading, lines: list[str]) -> None:
    """One step a row."""
    rows = csv.DictReader(lines, skipinitialspace=True)
    columns = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = columns
    if not set(columns) & set(MEASURES):
        reading.problems.append(
            Problem(
                what="the CSV has no column of a step's time or rate",
                why=f"line 1 names {', '.join(columns)[:100] or 'nothing'}",
                fix=f"name one of {', '.join(MEASURES)}",
                field="columns",
            )
        )
        return
    if set(TIMES) <= set(columns):
        reading.problems.append(
            Problem(
                what="line 1: both step_time_s and step_time_ms",
                why="a step has one time, in one unit",
                fix="keep one of the columns",
                field="step_time_s",
            )
        )
        return
    for row_number, row in enumerate(rows):
        at = rows.line_num

        def value(name: str, row: dict[str, str | None] = row, at: int = at) -> float | None:
            text = row.get(name)
            return reading.positive(at, name, text) if text and text.strip() else None

        times = [found * scale for name, scale in TIMES.items() if (found := value(name)) is not None]
        batch, seq_len, memory, step = (value(name) for name in ("global_batch", "seq_len", "memory_gib", "step"))
        if seq_len is not None:
            reading.state("seq_len", at, str(seq_len))
        reading.step(
            LoggedStep(
                line=at,
                iteration=int(step) if step is not None else row_number + 1,
                step_time_s=times[0] if times else None,
                tokens_per_s_per_device=value("tokens_per_s_per_device"),
                samples_per_s=value("samples_per_s"),
                global_batch=int(batch) if batch is not None else None,
                memory_bytes=memory * GIB if memory is not None else None,
            )
        )


READER = LogReader(
    name="csv",
    signature=re.compile(r"^\s*(?:\w+\s*,\s*)*(?:step_time_s|step_time_ms|tokens_per_s_per_device|samples_per_s)\b"),
    header_only=True,
    read=_read,
)
