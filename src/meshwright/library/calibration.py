"""The numbers that a fit to measured runs replaces, with their uncertainty; data, read once.

The file is written by `meshwright calibrate` and comes with the package: library/data/calibration.json. One measured
step of a user's own machine makes another one, which stands in its place while `calibrated_by` holds it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import _lru_cache_wrapper, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from meshwright.errors import InputError, Problem
from meshwright.formats.files import read_table

LIBRARY_VARIABLE = "MESHWRIGHT_LIBRARY"
SCHEMA = "meshwright.calibration/1"
Z90 = 1.645
"""Half-width of the central 90 % of a normal distribution."""
WIDEST = math.log(3.0)
"""A step that takes three times the prediction is of another run."""
UNMEASURED_TIE = 0.02
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

    @property
    def log_deviation(self) -> float:
        """Standard deviation of the logarithm; a range cut off by a bound says less than its uncut side."""
        return max(math.log(self.high / self.value), math.log(self.value / self.low)) / Z90


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """The configuration one step was measured on, and how far it alone is from the moved numbers."""

    model: str
    plan: str
    """In its one-line form, the batch with it."""
    device: str
    devices: int
    seq_len: int
    dtype: str
    framework: str
    measured_s: float
    own: float
    """Measured over predicted under the file's numbers: what is this plan's alone."""
    low: float
    """Of the step over the measurement, central 90 %."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Widths of ranges that hold for sources a fit has not seen; every doubt only widens."""

    base: float
    """Logarithm of the half-width of ln(measured / predicted), nothing else being in doubt."""
    host: float
    """What waiting for the host adds to it, per share of the step."""
    experts: float
    new_device: float
    """For a generation without runs in the fit."""
    new_framework: float
    own: float
    """Standard deviation of what one run is off by and others of its source are not."""
    tie: float
    """Relative difference of two plans of one job below which fewer than three of four such pairs were in order."""
    generations: tuple[str, ...]
    """With runs in the fit."""
    frameworks: tuple[str, ...]

    def half_width(self, *, host_share: float, experts: bool, new_device: bool, new_framework: bool) -> float:
        """Of ln(measured / predicted), central 90 %; at most WIDEST."""
        new = math.exp(self.base + self.new_device * new_device + self.new_framework * new_framework)
        return min(new * self.doubt(host_share=host_share, experts=experts), WIDEST)

    def doubt(self, *, host_share: float, experts: bool) -> float:
        """How much further off than plain ones runs of this kind are."""
        return math.exp(self.host * host_share + self.experts * experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What one fit found."""

    date: str
    source: str
    numbers: tuple[tuple[str, Fitted], ...]
    """By name: `device.hopper.gemm_fraction`, `software.megatron-core.vector_passes`."""
    spread: tuple[tuple[str, float], ...] = ()
    """What is left over: the standard deviation of ln(predicted / measured) by kind of run, sources left out."""
    ranges: Ranges | None = None
    run: MeasuredPlan | None = None
    """The run it was measured on, where it comes from one; its framework is what a workload runs under by default."""

    @property
    def tie(self) -> float:
        """Relative difference below which two plans of one job cannot be told apart."""
        return UNMEASURED_TIE if self.ranges is None else self.ranges.tie

    def of(self, scope: str, owner: str) -> dict[str, float]:
        """Field to value of one owner."""
        start = f"{scope}.{owner}."
        return {name.removeprefix(start): found.value for name, found in self.numbers if name.startswith(start)}

    def pace(self, generation: str, framework: str) -> Fitted | None:
        """Speed of one machine's runs over what the other numbers give, where a step was measured there."""
        return dict(self.numbers).get(pace_name(generation, framework))


def pace_name(generation: str, framework: str) -> str:
    """`run.hopper.megatron-core.pace`."""
    return f"run.{generation}.{framework}.pace"


NOTHING = Calibration(date="", source="", numbers=())


T = TypeVar("T")
_held: list[Calibration] = []
_made_of_it: list[Callable[[], None]] = []


def per_calibration(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
    """Keep what a function returns until another calibration takes the place of the present one."""
    kept = lru_cache(maxsize=256)(function)
    _made_of_it.append(kept.cache_clear)
    return kept


@contextmanager
def calibrated_by(path: str | Path | None) -> Iterator[Calibration]:
    """Predict with the numbers of a file; None changes nothing. Names are resolved to devices inside.

    Raises:
        InputError: the file is not a calibration.
    """
    if path is None:
        yield calibration()
        return
    _held.append(read_calibration(Path(path)))
    _forget()
    try:
        yield _held[-1]
    finally:
        _held.pop()
        _forget()


def _forget() -> None:
    for clear in _made_of_it:
        clear()


def calibration() -> Calibration:
    """The one that `calibrated_by` holds, else the user's, else the packaged one, else one without numbers.

    Raises:
        InputError: the user's file is not a calibration.
    """
    return _held[-1] if _held else _kept()


@lru_cache(maxsize=1)
def _kept() -> Calibration:
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
        ranges=_ranges(data.get("ranges")),
        run=None if "run" not in data else MeasuredPlan(**{f.name: data["run"][f.name] for f in fields(MeasuredPlan)}),
    )


def _ranges(data: dict[str, Any] | None) -> Ranges | None:
    if data is None:
        return None
    values: dict[str, Any] = {f.name: data[f.name] for f in fields(Ranges)}
    return Ranges(**values | {name: tuple(data[name]) for name in ("generations", "frameworks")})
