"""The calibration that predictions use unless their job names another; calibration files, read.

The file is written by `meshwright calibrate` and comes with the package: library/data/calibration.json. A user's own
stands in its place: `calibration.json` in the folder that MESHWRIGHT_LIBRARY names, or the file that a job names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_table
from meshwright.specs.calibration import DOUBTS, NOTHING, Calibration, Fitted, MeasuredPlan, Ranges
from meshwright.specs.device import KernelEfficiency
from meshwright.specs.software import Software, SoftwareGeneration

LIBRARY_VARIABLE = "MESHWRIGHT_LIBRARY"
"""Environment variable naming the folder of the user's own devices, models and calibration."""
SCHEMA = "meshwright.calibration/1"
MAX_PROBLEMS = 20
FITTED = ("value", "low", "high", "prior")
TINY, LARGE = 1e-30, 1e30
MOST_WEIGHT = 100.0
"""Largest weight of a doubt: a range e^100 times as wide says no more."""
"""Numbers of a fit are physical: seconds, shares and counts stay far within."""
PACKAGED = Path(__file__).parent / "data" / "calibration.json"


def calibration(given: Calibration | str | os.PathLike[str] | None = None) -> Calibration:
    """The calibration of a job.

    Args:
        given: the record, or the path of a file that `meshwright calibrate` wrote; None for the user's own, else the
            packaged one, else one without numbers.

    Raises:
        InputError: the file is not a calibration.
    """
    if isinstance(given, Calibration):
        return given
    if given is not None:
        return read_calibration(Path(given))
    library = os.environ.get(LIBRARY_VARIABLE)
    own = Path(library) / PACKAGED.name if library else None
    return _read_once(own if own is not None and own.is_file() else PACKAGED)


@lru_cache(maxsize=4)
def _read_once(path: Path) -> Calibration:
    return read_calibration(path) if path.is_file() else NOTHING


def read_calibration(path: Path) -> Calibration:
    """A calibration file.

    Raises:
        InputError: it cannot be read, or is no file that `meshwright calibrate` wrote: everything at once.
    """
    data = read_table(path, "calibration")
    problems = []
    if data.get("schema") != SCHEMA:
        problems = [f"its schema is {str(data['schema'])[:60]!r}" if "schema" in data else "it names no schema"]
    reading = _Reading(problems)
    found = None if problems else _calibration(reading, data)
    if problems or found is None:
        raise InputError(
            [
                Problem(
                    what=f"{str(path)!r} is not a calibration of this version",
                    why=f"{reason}; the schema read here is {SCHEMA}",
                    fix="write it again with `meshwright calibrate`, or remove it",
                    field="calibration",
                )
                for reason in problems[:MAX_PROBLEMS]
            ],
            code="MW215",
        )
    return found


def calibration_record(data: Mapping[str, Any]) -> Calibration:
    """A calibration file's content as a record.

    Raises:
        InputError: it is none.
    """
    problems: list[str] = []
    found = _calibration(_Reading(problems), data)
    if problems:
        why = problems[0]
        raise InputError(what="this is no calibration", why=why, field="calibration", code="MW215")
    return found


@dataclass(frozen=True, slots=True)
class _Reading:
    """Values of a calibration by their places, and what is wrong with them."""

    problems: list[str]

    def text(self, data: Mapping[str, Any], name: str, place: str = "") -> str:
        value = data.get(name)
        if not isinstance(value, str):
            self.problems.append(f"{place}{name} is {_shown(value)}, and must be text")
            return ""
        return value

    def number(
        self, data: Mapping[str, Any], name: str, place: str = "", *, low: float = -LARGE, high: float = LARGE
    ) -> float:
        value = data.get(name)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not low <= value <= high:  # type: ignore[operator]
            rule = "a number" if low < 0 else f"a number of at least {low:g}"
            rule = rule if high == LARGE else f"a number from {low:g} to {high:g}"
            self.problems.append(f"{place}{name} is {_shown(value)}, and must be {rule}")
            return 1.0
        return float(value)  # type: ignore[arg-type]

    def whole(self, data: Mapping[str, Any], name: str, place: str = "") -> int:
        value = data.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGE:
            self.problems.append(f"{place}{name} is {_shown(value)}, and must be a whole number of at least 0")
            return 0
        return value

    def table(self, data: Mapping[str, Any], name: str, place: str = "") -> Mapping[str, Any]:
        value = data.get(name)
        if not isinstance(value, Mapping):
            self.problems.append(f"{place}{name} is {_shown(value)}, and must be a table")
            return {}
        return value


def _calibration(reading: _Reading, data: Mapping[str, Any]) -> Calibration:
    numbers = reading.table(data, "numbers")
    spread = reading.table(data, "spread") if "spread" in data else {}
    return Calibration(
        date=reading.text(data, "date"),
        source=reading.text(data, "source"),
        numbers=tuple((name, _fitted(reading, numbers, name)) for name in numbers),
        spread=tuple((name, reading.number(spread, name, "spread: ", low=0.0)) for name in spread),
        ranges=None if data.get("ranges") is None else _ranges(reading, reading.table(data, "ranges")),
        run=None if data.get("run") is None else _run(reading, reading.table(data, "run")),
    )


def _fitted(reading: _Reading, numbers: Mapping[str, Any], name: str) -> Fitted:
    if not _known(name):
        reading.problems.append(f"numbers: {name[:60]!r} is no number that a fit finds")
    table = reading.table(numbers, name, "numbers: ")
    value, low, high, prior = (reading.number(table, one, f"{name[:60]}: ", low=TINY) for one in FITTED)
    if not low <= value <= high:
        reading.problems.append(f"{name[:60]}: value {value:g} is not between low {low:g} and high {high:g}")
    return Fitted(value=value, low=low, high=high, prior=prior)


def _known(name: str) -> bool:
    """Whether a number belongs to a field of a device's kernels, of a framework, or is the pace of a machine's runs."""
    scope, _, rest = name.partition(".")
    return rest.rpartition(".")[2] in _fields_of(scope)


@lru_cache(maxsize=8)
def _fields_of(scope: str) -> frozenset[str]:
    owners: dict[str, tuple[Any, ...]] = {"device": (KernelEfficiency,), "software": (Software, SoftwareGeneration)}
    found = frozenset(one.name for kind in owners.get(scope, ()) for one in fields(kind) if one.type == "float")
    return found | ({"pace"} if scope == "run" else set())


def _ranges(reading: _Reading, data: Mapping[str, Any]) -> Ranges:
    weights, seen = reading.table(data, "weights", "ranges: "), reading.table(data, "seen", "ranges: ")
    # Files that were written before the last doubt was known lack it: it widens nothing there.
    weights = {"like": 0.0, **weights}
    return Ranges(
        weights=tuple(
            (name, reading.number(weights, name, "ranges: weights: ", low=-MOST_WEIGHT, high=MOST_WEIGHT))
            for name in DOUBTS
        ),
        own=reading.number(data, "own", "ranges: ", low=0.0),
        tie=reading.number(data, "tie", "ranges: ", low=0.0),
        seen=tuple((name, reading.whole(seen, name, "ranges: seen: ")) for name in seen),
        most_devices=reading.whole(data, "most_devices", "ranges: "),
    )


def _run(reading: _Reading, data: Mapping[str, Any]) -> MeasuredPlan:
    texts = {name: reading.text(data, name, "run: ") for name in ("model", "plan", "device", "dtype", "framework")}
    counts = {name: reading.whole(data, name, "run: ") for name in ("devices", "seq_len")}
    numbers = {name: reading.number(data, name, "run: ", low=TINY) for name in ("measured_s", "own", "low", "high")}
    return MeasuredPlan(**texts, **counts, **numbers)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
