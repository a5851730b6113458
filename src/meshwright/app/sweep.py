"""Many searches of the Calculon model into one Parquet file: applications x systems x processors x batches."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.app.answer import Answer
from meshwright.app.requests.calculon import CalculonSweepRequest
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
from meshwright.calculon.sweep_file import SweepFile
from meshwright.calculon.sweep_parts import PartsFolder, left_of
from meshwright.errors import InputError, StoppedError
from meshwright.fields.check import InputCheck
from meshwright.formats.writing import check_file
from meshwright.interruptions import ending_politely, uninterrupted
from meshwright.search.on_cores import run_on_cores

SCHEMA = "meshwright.calculon-sweep/1"
MOST_DESIGNS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a sweep is."""

    designs: int
    """Design points that are complete, those of an earlier run included."""
    of: int
    executions: int
    """Executions in the spaces searched in this run."""
    elapsed_s: float
    before: int
    """Design points that were complete before this run."""

    @property
    def rate(self) -> float:
        """Executions per second."""
        return self.executions / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go, at the pace so far; None before the first design."""
        done = self.designs - self.before
        return self.elapsed_s / done * (self.of - self.designs) if done else None


Told = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonSweep(Answer):
    """What a sweep found, design by design; its rows are in the file."""

    path: Path
    designs: tuple[dict[str, Any], ...]
    """Names, certificate, best sample rate, rows, or why there are none."""
    before: int
    """Designs that an earlier run had completed."""
    redone: int
    """Blocks done again because a Ray worker was lost."""
    elapsed_s: float

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-sweep/1`."""
        return {
            "schema": SCHEMA,
            "output": str(self.path),
            "designs": list(self.designs),
            "rows": sum(design["rows"] for design in self.designs),
            "timing": {"sweep_s": self.elapsed_s, "resumed_designs": self.before, "redone_blocks": self.redone},
        }

    def __repr__(self) -> str:
        return f"CalculonSweep({len(self.designs):,} designs in {self.path})"


def calculon_sweep(request: CalculonSweepRequest, *, told: Told | None = None) -> CalculonSweep:
    """Search every combination, and stream the front and the best of each into a Parquet file.

    The file is valid whenever this ends, complete or stopped. Where it was killed, all but the last seconds stay beside
    the file. `resume` goes on with what is there.

    Args:
        request: applications, systems, processors, batches and spaces, and the file.
        told: called as designs end.

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
    check.attempt(lambda: _check_output(path, resume=request.resume, force=request.force))
    check.done()
    designs = designs_of(apps, systems, counts, sizes, choice.axes)
    if len(designs) > MOST_DESIGNS:
        check.problem(
            f"{len(designs):,} designs", f"a file holds at most {MOST_DESIGNS:,}", "sweep into several files", "designs"
        )
        check.done()
    goal = SearchGoal(top=options.top, stop_microbatch=options.stop_microbatch, fixed=request.options.fixed)
    file = SweepFile(path=path, fingerprint=fingerprint(designs, goal, every=request.every))
    return _run(designs, goal, file, request, told=told)


def _check_output(path: Path, *, resume: bool, force: bool) -> None:
    check_file(path)
    if path.exists() and not path.is_file():
        what, why = f"{str(path)[:200]!r} cannot be written", "it is no file, and a sweep reads again what it wrote"
        raise InputError(what=what, why=why, fix="name a file", field="--output", code="MW208")
    if resume or force:
        return
    left = [folder for folder in left_of(Path(os.path.realpath(path))) if _has_parts(folder)]
    if path.exists() or left:
        what = f"{str(path)[:200]!r} exists" if path.exists() else f"a sweep into {str(path)[:200]!r} was killed"
        fix = "go on with it with --resume, write over it with --force, or name another file"
        raise InputError(what=what, why="a sweep may be long work", fix=fix, field="--output", code="MW208")


def _has_parts(folder: PartsFolder) -> bool:
    """Whether a sweep that was killed left anything; where not, the folder goes."""
    if folder.parts:
        folder.leave()
        return True
    folder.remove()
    return False


def _run(
    designs: list[Design],
    goal: SearchGoal,
    file: SweepFile,
    request: CalculonSweepRequest,
    *,
    told: Told | None,
) -> CalculonSweep:
    ray = request.search.ray
    started = time.perf_counter()
    runner: Any = None

    def tell(**so_far: Any) -> None:
        if told is not None:
            told(Progress(designs=len(file.complete), of=len(designs), **so_far))

    with contextlib.ExitStack() as stack:
        if ray is not None:
            from meshwright.search.on_ray import OnRay

            runner = stack.enter_context(OnRay(ray))
        file.open(resume=request.resume)
        kept = False
        try:
            stack.enter_context(ending_politely())
            complete = {one.design for one in file.complete}
            before = len(complete)
            todo = [design for design in designs if design.number not in complete]
            executions = 0
            found: Iterator[DesignResult] = sweep(
                todo, goal, runner if runner is not None else run_on_cores, executions=TASK_EXECUTIONS
            )
            with contextlib.closing(found):  # type: ignore[type-var]
                for one in found:
                    executions += one.result.certificate.space if one.result else 0
                    with contextlib.nullcontext() if request.every else uninterrupted():
                        _write(file, one, every=request.every, fixed=goal.fixed)
                    tell(executions=executions, elapsed_s=time.perf_counter() - started, before=before)
            file.close()
            kept = True
        except KeyboardInterrupt:
            file.close()
            kept = True
            raise _stopped(file, len(designs)) from None
        finally:
            if not kept:
                file.abandon()
    return CalculonSweep(
        path=file.path,
        designs=tuple({**one.about, "rows": one.rows} for one in sorted(file.complete, key=lambda one: one.design)),
        before=before,
        redone=runner.redone if runner is not None else 0,
        elapsed_s=time.perf_counter() - started,
    )


def _stopped(file: SweepFile, designs: int) -> StoppedError:
    what = f"interrupted after {len(file.complete):,} of {designs:,} designs"
    why = f"{file.path} is valid and holds them"
    return StoppedError(what=what, why=why, fix="the same command with --resume goes on", field="sweep")


def _write(file: SweepFile, found: DesignResult, *, every: bool, fixed: bool) -> None:
    """The rows of one design, and what it came to."""
    design, result = found.design, found.result
    names = design.to_dict()
    best: list[PricedExecution] = list(result.best) if result else []
    rows = 0
    if result is not None:
        rank = {number: place for place, number in enumerate(result.best_numbers, 1)}
        front = frozenset(result.front_numbers)
        for numbers, columns, values in _executions(design, result, every=every, fixed=fixed):
            rows += file.add(names, numbers, columns, values, rank, front)
    about = {
        **names,
        "search": result.certificate.to_dict() if result else None,
        "sample_rate": best[0].sample_rate if best else None,
        "execution": asdict(best[0].execution) if best else None,
        "front": len(result.front) if result else 0,
        "why_not": found.why_not or None,
    }
    file.end(design.number, rows, about)


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
