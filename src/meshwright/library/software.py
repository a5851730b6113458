"""The frameworks known by name, what drives a step under them, and how that changed with time.

A line of frameworks has numbers of its newest generation and dated generations with ratios to them. `NAME` is the
newest, `NAME@2025-06` the one of a month, `NAME@25.04` that of a release named by year and month, and `NAME@0.12` that
of a version the line dates.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, UnsupportedError, unknown_name
from meshwright.library.calibration import calibration as calibration_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.software import DEFAULT_SOFTWARE, Software, SoftwareGeneration
from meshwright.units import GIB, MICRO, MILLI

_FOLDER = Path(__file__).parent / "data" / "software"


def software(name: str = DEFAULT_SOFTWARE, calibration: Calibration | None = None) -> Software:
    """A framework by name.

    Args:
        name: one of `software_names`, of a month or version after `@`.
        calibration: what its numbers were fitted to; the library's own by default.

    Raises:
        UnsupportedError: nobody knows this name.
        InputError: the line did not exist then.
    """
    return _fitted(name, calibration_of(calibration))


@lru_cache(maxsize=64)
def _fitted(name: str, known: Calibration) -> Software:
    line = name.partition("@")[0]
    published = published_software(line)
    like = _like(line)
    fitted = known.of("software", like or line)
    if like:
        fitted = {key: value for key, value in fitted.items() if key not in _own(line)}
    if fitted:
        source = f"{known.origin}; otherwise {published.source}"
        published = replace(published, basis="fitted", source=source, **fitted)  # type: ignore[arg-type]
    return fitted_generation(name, known).of(published)


def fitted_generation(name: str, calibration: Calibration | None = None) -> SoftwareGeneration:
    """The generation that a name means, with the ratios that a fit found.

    Args:
        name: the name as `software` takes it.
        calibration: the calibration as `software` takes it.

    Raises:
        As `generation_of`.
    """
    chosen = generation_of(name)
    line = name.partition("@")[0]
    ratios = calibration_of(calibration).of("software", f"{_like(line) or line}@{chosen.since}")
    return replace(chosen, **ratios)  # type: ignore[arg-type]


def published_software(name: str) -> Software:
    """The newest generation of a line without the fit to measured runs.

    Raises:
        UnsupportedError: nobody knows this name.
    """
    if name not in _table():
        raise UnsupportedError(unknown_name("software", name[:80], tuple(_table())), code="MW403")
    like = _like(name)
    data = {**(_table()[like] if like else {}), **_table()[name]}
    for key in ("like", "generation", "versions"):
        data.pop(key, None)
    for key, field, scale in _SCALED:
        data[field] = data.pop(key, 0.0) * scale
    data["captured"] = tuple(data.get("captured", ()))
    return generation_of(name).of(Software(name=name, **data))


def numbers_name(name: str) -> str:
    """The canonical name of the line, or generation of it, whose fitted numbers a framework runs under.

    Args:
        name: the name as `software` takes it; a line that is like another one shares the numbers of that one.

    Raises:
        As `generation_of`.
    """
    line, at, since = canonical(name).partition("@")
    return f"{_like(line) or line}{at}{since}"


def measured_as(name: str) -> str:
    """The canonical name under which runs like those of a framework are counted.

    A line that differs from the one it is like in when it sums gradients alone is known as well as that one.

    Args:
        name: the name as `software` takes it.

    Raises:
        As `generation_of`.
    """
    line = name.partition("@")[0]
    same = line in _table() and _table()[line].keys() <= {"like", "source", "whole_gradients"}
    return numbers_name(name) if same else canonical(name)


def own_numbers(name: str) -> frozenset[str]:
    """Fields that a line states itself though it is like another one, so that no fit of that one moves them."""
    line = name.partition("@")[0]
    return frozenset(_own(line)) if _like(line) else frozenset()


def software_names() -> tuple[str, ...]:
    """All frameworks, the default first."""
    return tuple(_table())


@lru_cache(maxsize=64)
def generations_of(line: str) -> tuple[SoftwareGeneration, ...]:
    """The dated generations of a line, the oldest first.

    Raises:
        UnsupportedError: nobody knows this name.
    """
    if line not in _table():
        raise UnsupportedError(unknown_name("software", line[:80], tuple(_table())), code="MW403")
    own = _table()[line]
    entries = own.get("generation") or _table()[own["like"]]["generation"]
    found = (SoftwareGeneration(**{**entry, "young": tuple(entry.get("young", ()))}) for entry in entries)
    return tuple(sorted(found, key=lambda one: one.since))


def generation_of(name: str) -> SoftwareGeneration:
    """The generation that a name means: the newest without a time.

    Raises:
        UnsupportedError: nobody knows this line.
        InputError: the time is not understood, or before the line.
    """
    line, _, when = name.partition("@")
    known = generations_of(line)
    if not when:
        return known[-1]
    month = _month(line, when)
    today = f"{date.today():%Y-%m}"
    if month > today and when != today[:4]:
        why, fix = "it is in the future", f"--software {line} for the newest, {line}@{today} for this month"
        raise InputError(what=f"--software {name[:80]}", why=why, fix=fix, field="software")
    then = [one for one in known if one.since <= month]
    if not then:
        raise InputError(
            what=f"{line} of {month}",
            why=f"its first generation in the library is of {known[0].since}",
            fix=f"--software {line}@{known[0].since}, or another framework",
            field="software",
        )
    return then[-1]


def canonical(name: str) -> str:
    """The name under which a generation is known: the line alone for the newest, else with its first month.

    Raises:
        As `generation_of`.
    """
    line = name.partition("@")[0]
    chosen = generation_of(name)
    return line if chosen == generations_of(line)[-1] else f"{line}@{chosen.since}"


def _month(line: str, when: str) -> str:
    """A month from `2025-06`, `2025-06-17`, `2025`, `25.04`, `25.04.01` or a version of the line."""
    if dated := re.fullmatch(r"(20\d\d)(?:-(0[1-9]|1[0-2])(?:-\d\d)?)?", when):
        return f"{dated[1]}-{dated[2] or '12'}"
    if released := re.fullmatch(r"(2\d)\.(0[1-9]|1[0-2])(?:\.\d+)?", when):
        return f"20{released[1]}-{released[2]}"
    versions = _table()[_like(line) or line].get("versions", {})
    short = ".".join(when.removeprefix("v").removeprefix("r").split(".")[:2])
    if short in versions:
        return str(versions[short])
    said = f"; versions {', '.join(versions)}" if versions else ""
    raise InputError(
        what=f"--software {line}@{when[:40]}",
        why="its time is neither a month, a release named by year and month, nor a version with a known date",
        fix=f"for example {line}@2025-06 or {line}@25.04{said}",
        field="software",
    )


_SCALED = (
    ("operator_us", "operator_s", MICRO),
    ("tensor_us", "tensor_s", MICRO),
    ("step_ms", "step_s", MILLI),
    ("engine_gib", "engine_bytes", GIB),
)


def _like(name: str) -> str:
    """The framework whose numbers another one takes where it states none."""
    return str(_table()[name].get("like", ""))


def _own(name: str) -> set[str]:
    """Fields that a framework states itself."""
    named = {key: field for key, field, _ in _SCALED}
    return {named.get(key, key) for key in _table()[name]}


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    found = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.toml"))}
    return {DEFAULT_SOFTWARE: found.pop(DEFAULT_SOFTWARE), **found}
