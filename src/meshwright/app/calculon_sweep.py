"""Many searches of the Calculon model into one Parquet file: applications x systems x processors x batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.app.requests.calculon import CalculonSweepRequest
from meshwright.app.studies.sweeping import OnProgress, StreamedSweep, check_output, check_size, stream
from meshwright.calculon.answer import ExecutionAnswer, PricedExecution, SearchGoal
from meshwright.calculon.choice import (
    MOST_BATCH,
    MOST_BEST,
    MOST_PROCESSORS,
    choose_space,
    read_apps,
    read_systems,
)
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.sweep import (
    TASK_EXECUTIONS,
    Design,
    DesignResult,
    designs_of,
    every_execution,
    fingerprint,
    sweep,
)
from meshwright.calculon.sweep_table import arrow_schema, arrow_table
from meshwright.fields.check import InputCheck
from meshwright.formats.sweep_file import SweepFile

SCHEMA = "meshwright.calculon-sweep/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonSweep(StreamedSweep):
    """What a sweep found, design by design; its rows are in the file."""

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-sweep/1`."""
        return {"schema": SCHEMA, **self.written("redone_blocks")}


def calculon_sweep(request: CalculonSweepRequest, *, on_progress: OnProgress | None = None) -> CalculonSweep:
    """Search every combination, and stream the front and the best of each into a Parquet file.

    See `sweeping.stream`, which writes it.

    Args:
        request: applications, systems, processors, batches and spaces, and the file.
        on_progress: called as designs end.

    Returns:
        What each design came to.

    Raises:
        InputError: malformed input, all problems together, or a file that cannot be gone on with.
        UnsupportedError: an unknown name, or pyarrow or Ray missing.
        StoppedError: interrupted; the file holds the complete designs.
    """
    check, options = InputCheck(), request.search
    apps, systems = read_apps(check, request.apps), read_systems(check, request.systems)
    counts, sizes = list(dict.fromkeys(request.procs)), list(dict.fromkeys(request.batches))
    for count in counts:
        check.whole("--procs", count, MOST_PROCESSORS)
    for size in sizes:
        check.whole("--batch", size, MOST_BATCH)
    for name, values in (("APPS", apps), ("SYSTEMS", systems), ("--procs", counts), ("--batch", sizes)):
        if not values and not check.errors:
            check.problem(f"{name} is empty", "a sweep needs at least one", "give a comma list", name)
    check.whole("--top", options.top, MOST_BEST)
    choice = choose_space(check, systems, request.options)
    path = Path(request.output)
    check.attempt(lambda: check_output(path, resume=request.resume, force=request.force))
    check.done()
    designs = designs_of(apps, systems, counts, sizes, choice.axes)
    check.attempt(lambda: check_size(len(designs)))
    check.done()
    goal = SearchGoal(top=options.top, stop_microbatch=options.stop_microbatch, fixed=request.options.fixed)
    digest = fingerprint(designs, goal, every=request.every)
    file = SweepFile(path=path, schema=SCHEMA, columns=arrow_schema, fingerprint=digest)
    done = stream(
        designs,
        file,
        lambda todo, runner: sweep(todo, goal, runner, executions=TASK_EXECUTIONS),
        partial(_write, file, every=request.every, fixed=goal.fixed),
        noun="executions",
        resume=request.resume,
        ray=options.ray,
        on_progress=on_progress,
        at_once=not request.every,
    )
    return CalculonSweep(
        path=file.path,
        designs=tuple({**one.about, "rows": one.rows} for one in done.complete),
        before=done.before,
        redone=done.redone,
        elapsed_s=done.elapsed_s,
    )


def _write(file: SweepFile, found: DesignResult, *, every: bool, fixed: bool) -> int:
    """The rows of one design, and what it came to; executions in its space."""
    design, result = found.design, found.result
    names = design.to_dict()
    best: list[PricedExecution] = list(result.best) if result else []
    rows = 0
    if result is not None:
        rank = {number: place for place, number in enumerate(result.best_numbers, 1)}
        front = frozenset(result.front_numbers)
        for numbers, columns, values in _executions(design, result, every=every, fixed=fixed):
            if len(numbers):
                rows += file.add(arrow_table(names, numbers, columns, values, rank, front))
    about = {
        **names,
        "search": result.certificate.to_dict() if result else None,
        "sample_rate": best[0].sample_rate if best else None,
        "execution": asdict(best[0].execution) if best else None,
        "front": len(result.front) if result else 0,
        "why_not": found.why_not or None,
    }
    file.end(design.number, rows, about)
    return result.certificate.space if result else 0


def _executions(
    design: Design, result: ExecutionAnswer, *, every: bool, fixed: bool
) -> Iterator[tuple[np.ndarray, ExecutionColumns, Mapping[str, Any]]]:
    """Numbers, executions and statistics: of all executions, or of the best and those on the front."""
    if every:
        for numbers, columns, priced in every_execution(design, fixed=fixed):
            yield numbers, columns, priced.values
        return
    kept = dict(zip(result.best_numbers, result.best, strict=True))
    kept |= dict(zip(result.front_numbers, result.front, strict=True))
    numbers = np.array(sorted(kept), dtype=np.int64)
    columns = ExecutionColumns.from_executions(kept[number].execution for number in numbers.tolist())
    yield numbers, columns, _values([kept[n] for n in numbers.tolist()])


def _values(rows: list[PricedExecution]) -> dict[str, np.ndarray]:
    names = rows[0].stats if rows else {}
    return {
        name: np.array([np.nan if row.stats[name] is None else row.stats[name] for row in rows], dtype=np.float64)
        for name in names
    }
