"""The calibration that predictions use unless their job names another; calibration files, read.

The file is written by `meshwright calibrate` and comes with the package: library/data/calibration.json. A user's own
stands in its place: `calibration.json` in the folder that MESHWRIGHT_LIBRARY names, or the file that a job names.
"""

from __future__ import annotations

import os
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_table
from meshwright.specs.calibration import DOUBTS, NOTHING, Calibration, Fitted, MeasuredPlan, Ranges

LIBRARY_VARIABLE = "MESHWRIGHT_LIBRARY"
SCHEMA = "meshwright.calibration/1"
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
        InputError: it cannot be read, or is no file that `meshwright calibrate` wrote.
    """
    data = read_table(path, "calibration")
    try:
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}" if "schema" in data else "it names no schema")
        return calibration_record(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(
            Problem(
                what=f"{str(path)!r} is not a calibration of this version",
                why=f"{reason}; the schema read here is {SCHEMA}",
                fix="write it again with `meshwright calibrate`, or remove it",
                field="calibration",
            ),
            code="MW215",
        ) from None


def calibration_record(data: dict[str, Any]) -> Calibration:
    """A calibration file's content as a record."""
    return Calibration(
        date=data["date"],
        source=data["source"],
        numbers=tuple((name, Fitted(**number)) for name, number in data["numbers"].items()),
        spread=tuple(data.get("spread", {}).items()),
        ranges=_ranges(data.get("ranges")),
        run=None if "run" not in data else MeasuredPlan(**{f.name: data["run"][f.name] for f in fields(MeasuredPlan)}),
    )


def _ranges(data: dict[str, Any] | None) -> Ranges | None:
    if data is None:
        return None
    return Ranges(
        weights=tuple((name, float(data["weights"][name])) for name in DOUBTS),
        own=data["own"],
        tie=data["tie"],
        seen=tuple(data["seen"].items()),
        most_devices=data["most_devices"],
    )
