"""The numbers that a fit to measured runs replaces, with their uncertainty; data, read once.

The file is written by `meshwright calibrate` and comes with the package: library/data/calibration.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

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
    """The packaged calibration, or one without numbers where the package has none."""
    if not PACKAGED.is_file():
        return NOTHING
    return calibration_of(json.loads(PACKAGED.read_text("utf-8")))


def calibration_of(data: dict[str, Any]) -> Calibration:
    """A calibration file's content as a record."""
    return Calibration(
        date=data["date"],
        source=data["source"],
        numbers=tuple((name, Fitted(**number)) for name, number in data["numbers"].items()),
        spread=tuple(data.get("spread", {}).items()),
    )
