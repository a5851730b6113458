"""Files of executions, one JSON object a line: read as they are needed, priced together, answered line by line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, System
from meshwright.calculon.model import price
from meshwright.calculon.reading import read_application, read_execution, read_system
from meshwright.calculon.rejections import rejection
from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.formats.files import opened

LINES_AT_ONCE = 4096
MOST_CHARACTERS = 2**16
"""Most characters of a line: application, system and execution in full take a tenth of it. The rest of a longer one is
passed over."""
MOST_PASSED_OVER = 2**28
"""Characters of that rest: a stream that has no end of line is no file of rows."""
ROW_KEYS = ("app", "system", "execution")


@contextmanager
def row_lines(path: str) -> Iterator[Iterable[str]]:
    """The lines of a file, or of standard input for `-`; bytes that are no UTF-8 spoil their line only.

    Raises:
        InputError: the file cannot be read.
    """
    if path == "-":
        if sys.stdin is None:
            fix = "pipe rows in, or name a file of JSON lines"
            raise InputError(
                Problem(what="standard input is closed", why="--batch - reads it", fix=fix, field="--batch"),
                code="MW201",
            )
        yield _bounded(sys.stdin)
        return
    try:
        stream = io.TextIOWrapper(opened(Path(path).expanduser()), encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        problem = Problem(
            what=f"row file {path!r} cannot be read", why=why, fix="name a file of JSON lines", field="--batch"
        )
        raise InputError(problem, code="MW201") from None
    with stream:
        yield _bounded(stream)


def _bounded(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, each cut off behind the first character too many.

    Raises:
        InputError: a line has no end.
    """
    while line := stream.readline(MOST_CHARACTERS + 1):
        yield line
        passed_over = 0
        while line and not line.endswith("\n"):
            line = stream.readline(MOST_CHARACTERS + 1)
            passed_over += len(line)
            if passed_over > MOST_PASSED_OVER:
                why = f"it is not over after {MOST_PASSED_OVER:,} characters; a row is one object a line"
                fix = "end every row with a line feed"
                raise InputError(Problem(what="a line has no end", why=why, fix=fix, field="--batch"), code="MW201")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line of a batch: what it asks, or what is wrong with it."""

    app: Application | None = None
    system: System | None = None
    execution: Execution | None = None
    error: str | None = None
    design: str = ""
    """Rows of one application and system have the same."""


def calculon_batch(lines: Iterable[str], *, fixed: bool = False) -> Iterator[dict[str, Any]]:
    """Many executions, one JSON object `{app, system, execution}` a line.

    Args:
        lines: application and system as library names, paths or objects; blank lines are skipped.
        fixed: whether the model's known errors are corrected.

    Yields:
        `{ok, error, stats}` per line, in order; a malformed line is an error of that line only.

    Raises:
        InputError: a line has no end; those before it are answered.
    """
    read = _Reader()
    for block in _blocks(line for line in lines if line.strip()):
        yield from _answers([read.row(line) for line in block], fixed=fixed)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Blocks of as many lines as are priced together; those before a line that cannot be read, too."""
    block: list[str] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == LINES_AT_ONCE:
                yield block
                block = []
    except InputError:
        if block:
            yield block
        raise
    if block:
        yield block


def _answers(rows: list[_Row], *, fixed: bool) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = [{"ok": False, "error": row.error, "stats": None} for row in rows]
    designs: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.error is None:
            designs.setdefault(row.design, []).append(place)
    for places in designs.values():
        app, system = rows[places[0]].app, rows[places[0]].system
        executions = [execution for place in places if (execution := rows[place].execution) is not None]
        assert app is not None
        assert system is not None
        priced = price(app, system, ExecutionColumns.from_executions(executions), fixed=fixed)
        for number, (place, execution) in enumerate(zip(places, executions, strict=True)):
            if priced.ok[number]:
                answers[place] = {"ok": True, "error": None, "stats": priced.stats(number)}
            else:
                answers[place]["error"] = _sentence([rejection(priced, number, app, system, execution)])
    return answers


class _Reader:
    """Reads lines; applications and systems that were read before are not read again."""

    def __init__(self) -> None:
        self.known: dict[str, Application | System] = {}

    def row(self, line: str) -> _Row:
        try:
            return self._row(line)
        except MeshwrightError as error:
            return _Row(error=_sentence(error.problems))

    def _row(self, line: str) -> _Row:
        if len(line) > MOST_CHARACTERS:
            why = f"a row is one object of at most {MOST_CHARACTERS:,} characters"
            raise InputError(what="the line is too long", why=why)
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InputError(what="the line is not valid JSON", why=why) from None
        if not isinstance(data, dict) or not set(ROW_KEYS) <= set(data):
            raise InputError(what="the line is no row", why=f"a row is an object with the keys {', '.join(ROW_KEYS)}")
        app_key, system_key = json.dumps(data["app"], sort_keys=True), json.dumps(data["system"], sort_keys=True)
        app = self._input("app", app_key, data["app"])
        system = self._input("system", system_key, data["system"])
        assert isinstance(app, Application)
        assert isinstance(system, System)
        if not isinstance(data["execution"], dict):
            raise InputError(what="execution is no object", why="it holds Calculon's 23 keys")
        return _Row(
            app=app, system=system, execution=read_execution(data["execution"]), design=f"{app_key}\n{system_key}"
        )

    def _input(self, kind: str, key: str, value: Any) -> Application | System:
        name = f"{kind} {key}"
        if name not in self.known:
            if not isinstance(value, str | dict):
                raise InputError(what=f"{kind} is {key[:60]}", why="it is a library name, a path or an object")
            if len(self.known) >= LINES_AT_ONCE:
                self.known.clear()
            self.known[name] = read_application(value) if kind == "app" else read_system(value)
        return self.known[name]


def _sentence(problems: Iterable[Problem]) -> str:
    return "; ".join(f"{problem.what}: {problem.why}" if problem.why else problem.what for problem in problems)
