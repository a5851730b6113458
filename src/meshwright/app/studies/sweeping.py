"""What every sweep does: designs searched here, on all cores or on Ray, each written to one file as soon as it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from meshwright.app.answer import Answer
from meshwright.errors import InputError, StoppedError
from meshwright.formats.sweep_file import Complete, SweepFile
from meshwright.formats.sweep_parts import left_of
from meshwright.formats.writing import check_file
from meshwright.interruptions import ending_politely, uninterrupted
from meshwright.search.on_cores import run_on_cores
from meshwright.search.tasks import Runner

MOST_DESIGNS = 1_000_000


class Numbered(Protocol):
    """A design, or what came of one."""

    @property
    def number(self) -> int:
        """Position in the sweep."""
        ...


Design = TypeVar("Design", bound=Numbered)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a sweep is."""

    designs: int
    """Design points that are complete, those of an earlier run included."""
    of: int
    work: int
    """Executions or plans in the spaces searched in this run."""
    noun: str
    """Which of them."""
    elapsed_s: float
    before: int
    """Design points that were complete before this run."""

    @property
    def rate(self) -> float:
        """Executions or plans per second."""
        return self.work / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go, at the pace so far; None before the first design."""
        done = self.designs - self.before
        return self.elapsed_s / done * (self.of - self.designs) if done else None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What a sweep left in its file."""

    complete: tuple[Complete, ...]
    """Complete designs, by the number of the design."""
    before: int
    """Designs that an earlier run had completed."""
    redone: int
    """Tasks done again because a Ray worker was lost."""
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamedSweep(Answer):
    """What a sweep found, combination by combination; its rows are in the file."""

    path: Path
    designs: tuple[dict[str, Any], ...]
    """Values of each combination, what its best plan or execution does, its rows, or why there are none."""
    before: int
    """Combinations that an earlier run had completed."""
    redone: int
    """Tasks done again because a Ray worker was lost."""
    elapsed_s: float

    def written(self, redone: str) -> dict[str, Any]:
        """What any sweep says of its file, as data.

        Args:
            redone: what the number of tasks done again is called.
        """
        return {
            "output": str(self.path),
            "designs": list(self.designs),
            "rows": sum(design["rows"] for design in self.designs),
            "timing": {"sweep_s": self.elapsed_s, "resumed_designs": self.before, redone: self.redone},
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.designs):,} designs in {self.path})"


def check_output(path: Path, *, resume: bool, force: bool) -> None:
    """Whether a sweep may write into a file.

    Raises:
        InputError: it is no file, or holds an earlier sweep that neither is gone on with nor may go.
    """
    check_file(path)
    if path.exists() and not path.is_file():
        what, why = f"{str(path)[:200]!r} cannot be written", "it is no file, and a sweep reads again what it wrote"
        raise InputError(what=what, why=why, fix="name a file", field="--output", code="MW208")
    if resume or force:
        return
    left = [*left_of(Path(os.path.realpath(path)))]
    for folder in left:
        folder.leave()
    if path.exists() or left:
        what = f"{str(path)[:200]!r} exists" if path.exists() else f"a sweep into {str(path)[:200]!r} was killed"
        fix = "go on with it with --resume, write over it with --force, or name another file"
        raise InputError(what=what, why="a sweep may be long work", fix=fix, field="--output", code="MW208")


def check_size(designs: int) -> None:
    """Raise where a sweep has more designs than a file holds."""
    if designs > MOST_DESIGNS:
        what, why = f"{designs:,} designs", f"a file holds at most {MOST_DESIGNS:,}"
        raise InputError(what=what, why=why, fix="sweep into several files", field="designs", code="MW203")


def stream(
    designs: Sequence[Design],
    file: SweepFile,
    search: Callable[[list[Design], Runner], Iterator[Result]],
    write: Callable[[Result], int],
    *,
    noun: str,
    resume: bool,
    ray: str | None,
    on_progress: OnProgress | None,
    at_once: bool = True,
) -> Streamed:
    """Search the designs that a file does not hold yet, and write what comes of each.

    The file is valid whenever this ends, complete or stopped. Where it was killed, all but the last seconds stay beside
    the file.

    Args:
        designs: all of the sweep.
        file: the file where they go.
        search: what comes of designs, with what does their tasks.
        write: puts what came of one into the file; how much was searched for it.
        noun: the noun of that: `executions`, `plans`.
        resume: go on with what is there.
        ray: address of a Ray cluster; None for the cores of this machine.
        on_progress: called as designs end.
        at_once: an interruption waits until a design is written.

    Raises:
        InputError: the file cannot be gone on with.
        UnsupportedError: pyarrow or Ray is not installed.
        StoppedError: interrupted; the file holds the complete designs.
    """
    started = time.perf_counter()
    runner: Any = None
    with contextlib.ExitStack() as stack:
        if ray is not None:
            from meshwright.search.on_ray import OnRay

            runner = stack.enter_context(OnRay(ray))
        file.open(resume=resume)
        kept = False
        try:
            stack.enter_context(ending_politely())
            complete = {one.design for one in file.complete}
            todo, before, work = [one for one in designs if one.number not in complete], len(complete), 0
            found = search(todo, runner if runner is not None else run_on_cores)
            with contextlib.closing(found):  # type: ignore[type-var]
                for one in found:
                    with uninterrupted() if at_once else contextlib.nullcontext():
                        work += write(one)
                    if on_progress is not None:
                        so_far = {"work": work, "elapsed_s": time.perf_counter() - started, "before": before}
                        on_progress(Progress(designs=len(file.complete), of=len(designs), noun=noun, **so_far))  # type: ignore[arg-type]
            file.close()
            kept = True
        except KeyboardInterrupt:
            file.close()
            kept = True
            raise _stopped(file, len(designs)) from None
        finally:
            if not kept:
                file.abandon()
    return Streamed(
        complete=tuple(sorted(file.complete, key=lambda one: one.design)),
        before=before,
        redone=runner.redone if runner is not None else 0,
        elapsed_s=time.perf_counter() - started,
    )


def _stopped(file: SweepFile, designs: int) -> StoppedError:
    what = f"interrupted after {len(file.complete):,} of {designs:,} designs"
    why = f"{file.path} is valid and holds them"
    return StoppedError(what=what, why=why, fix="the same command with --resume goes on", field="sweep")
