"""`calculon estimate`: one execution under Calculon's model, or a file of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.app.answer import Answer
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, System
from meshwright.calculon.legality import reason
from meshwright.calculon.model import price
from meshwright.calculon.reading import Source, read_application, read_execution, read_system
from meshwright.calculon.statistics import CalculonColumns
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem, UnsupportedError

if TYPE_CHECKING:
    pass

SCHEMA = "meshwright.calculon-estimate/1"
REJECTED = "MW303"
LINES_AT_ONCE = 4096
ROW_KEYS = ("app", "system", "execution")

Value = float | int | None
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalculonEstimate(Answer):
    """One accepted execution."""

    app: Application
    system: System
    execution: Execution
    stats: Mapping[str, Value]
    """Calculon's 96 statistics by name."""
    layers: tuple[Mapping[str, Any], ...] | None
    """The block layer by layer, where asked for."""
    fixed: bool

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.calculon-estimate/1`."""
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "app": self.app.name or None,
            "system": self.system.name or None,
            "execution": asdict(self.execution),
            "fixed": self.fixed,
            "stats": dict(self.stats),
        }
        if self.layers is not None:
            found["layers"] = [dict(layer) for layer in self.layers]
        return found

    def __repr__(self) -> str:
        return (
            f"CalculonEstimate({self.stats['sample_rate']:.6g} samples/s, {self.stats['total_time']:.6g} s per batch)"
        )


def calculon_estimate(
    app: Source | Application,
    execution: Source | Execution,
    system: Source | System,
    *,
    layers: bool = False,
    fixed: bool = False,
) -> CalculonEstimate:
    """One execution of an application on a system.

    Args:
        app: a library name, a path or the content of Calculon's application file.
        execution: a path or the content of its execution file.
        system: a library name, a path or the content of its system file.
        layers: also the block layer by layer.
        fixed: with the model's known errors corrected.

    Returns:
        The 96 statistics.

    Raises:
        InputError: malformed input, all problems of the three files together.
        UnsupportedError: an application or a system that nobody knows, and nothing else is wrong.
        InfeasibleError: a rejected execution; says which field breaks which rule.
    """
    errors: list[MeshwrightError] = []

    def attempt(read: Callable[[], Read]) -> Read | None:
        try:
            return read()
        except (InputError, UnsupportedError) as error:
            errors.append(error)
            return None

    one = attempt(lambda: read_application(app))
    how = attempt(lambda: read_execution(execution))
    where = attempt(lambda: read_system(system))
    if one is None or how is None or where is None:
        malformed = [error for error in errors if isinstance(error, InputError)]
        kind = InputError if malformed else UnsupportedError
        raise kind([problem for error in errors for problem in error.problems], code=(malformed or errors)[0].code)
    priced = price(one, where, ExecutionColumns.from_executions([how]), fixed=fixed)
    if not priced.ok[0]:
        raise InfeasibleError(_why(priced, 0, one, where, how), code=REJECTED)
    listed = None
    if layers:
        from meshwright.calculon.layer_list import layer_list

        listed = tuple(layer_list(one, where, how, fixed=fixed))
    return CalculonEstimate(app=one, system=where, execution=how, stats=priced.stats(0), layers=listed, fixed=fixed)


def _why(priced: CalculonColumns, row: int, app: Application, system: System, execution: Execution) -> Problem:
    return reason(
        app,
        system,
        execution,
        int(priced.reason[row]),
        tier1_bytes=float(priced["proc_mem_tier1_cap_req"][row]),
        tier2_bytes=float(priced["proc_mem_tier2_cap_req"][row]),
    )


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
        fixed: with the model's known errors corrected.

    Yields:
        `{ok, error, stats}` per line, in order; a malformed line is an error of that line only.
    """
    read = _Reader()
    asked = (line for line in lines if line.strip())
    while block := list(islice(asked, LINES_AT_ONCE)):
        yield from _answers([read.row(line) for line in block], fixed=fixed)


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
                answers[place]["error"] = _sentence([_why(priced, number, app, system, execution)])
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
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InputError(Problem(what="the line is not valid JSON", why=why)) from None
        if not isinstance(data, dict) or not set(ROW_KEYS) <= set(data):
            raise InputError(
                Problem(what="the line is no row", why=f"a row is an object with the keys {', '.join(ROW_KEYS)}")
            )
        app_key, system_key = json.dumps(data["app"], sort_keys=True), json.dumps(data["system"], sort_keys=True)
        app = self._input("app", app_key, data["app"])
        system = self._input("system", system_key, data["system"])
        assert isinstance(app, Application)
        assert isinstance(system, System)
        if not isinstance(data["execution"], dict):
            raise InputError(Problem(what="execution is no object", why="it holds Calculon's 23 keys"))
        return _Row(
            app=app, system=system, execution=read_execution(data["execution"]), design=f"{app_key}\n{system_key}"
        )

    def _input(self, kind: str, key: str, value: Any) -> Application | System:
        name = f"{kind} {key}"
        if name not in self.known:
            if not isinstance(value, str | dict):
                raise InputError(Problem(what=f"{kind} is {key[:60]}", why="it is a library name, a path or an object"))
            if len(self.known) >= LINES_AT_ONCE:
                self.known.clear()
            self.known[name] = read_application(value) if kind == "app" else read_system(value)
        return self.known[name]


def _sentence(problems: Iterable[Problem]) -> str:
    return "; ".join(f"{problem.what}: {problem.why}" if problem.why else problem.what for problem in problems)
