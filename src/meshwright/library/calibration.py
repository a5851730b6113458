"""The numbers that a fit to measured runs replaces, with their uncertainty; data, read once.

The file is written by `meshwright calibrate` and comes with the package: library/data/calibration.json.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_table

LIBRARY_VARIABLE = "MESHWRIGHT_LIBRARY"
SCHEMA = "meshwright.calibration/1"
PACKAGED = Path(__file__).parent / "data" / "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One fitted number."""

    value: float
    low: float
    """Of the central 90 %."""
    high: float
    prior: float
    """Without the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What one fit found."""

    date: str
    source: str
    numbers: tuple[tuple[str, Fitted], ...]
    """By name: `device.hopper.gemm_fraction`, `software.megatron-core.vector_passes`."""
    spread: tuple[tuple[str, float], ...] = ()
    """What is left over: the standard deviation of ln(predicted / measured) by kind of run, sources left out."""

    def of(self, scope: str, owner: str) -> dict[str, float]:
        """Field to value of one owner."""
        start = f"{scope}.{owner}."
        return {name.removeprefix(start): found.value for name, found in self.numbers if name.startswith(start)}


NOTHING = Calibration(date="", source="", numbers=())


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """The user's calibration, else the packaged one, else one without numbers.

    Raises:
        InputError: the user's file is not a calibration.
    """
    library = os.environ.get(LIBRARY_VARIABLE)
    own = Path(library) / PACKAGED.name if library else None
    if own is not None and own.is_file():
        return read_calibration(own)
    return read_calibration(PACKAGED) if PACKAGED.is_file() else NOTHING


def read_calibration(path: Path) -> Calibration:
    """A calibration file.

    Raises:
        InputError: it cannot be read, or is no file that `meshwright calibrate` wrote.
    """
    data = read_table(path, "calibration")
    try:
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        return calibration_of(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            Problem(
                what=f"{str(path)!r} is not a calibration of this version",
                why=f"{type(error).__name__}: {error}; the schema read here is {SCHEMA}",
                fix="write it again with `meshwright calibrate`, or remove it",
                field="calibration",
            ),
            code="MW215",
        ) from None


def calibration_of(data: dict[str, Any]) -> Calibration:
    """A calibration file's content as a record."""
    return Calibration(
        date=data["date"],
        source=data["source"],
        numbers=tuple((name, Fitted(**number)) for name, number in data["numbers"].items()),
        spread=tuple(data.get("spread", {}).items()),
    )
