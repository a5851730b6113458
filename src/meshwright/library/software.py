"""The frameworks known by name, and what drives a step under them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import UnsupportedError, unknown_name
from meshwright.library.calibration import calibration as calibration_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.software import DEFAULT_SOFTWARE, Software
from meshwright.units import GIB, MICRO, MILLI

_FILE = Path(__file__).parent / "data" / "software.toml"


def software(name: str = DEFAULT_SOFTWARE, calibration: Calibration | None = None) -> Software:
    """A framework by name.

    Args:
        name: one of `software_names`.
        calibration: what its numbers were fitted to; the library's own by default.

    Raises:
        UnsupportedError: nobody knows this name.
    """
    return _fitted(name, calibration_of(calibration))


@lru_cache(maxsize=64)
def _fitted(name: str, known: Calibration) -> Software:
    published = published_software(name)
    like = _like(name)
    fitted = known.of("software", like or name)
    if like:
        fitted = {key: value for key, value in fitted.items() if key not in _own(name)}
    if not fitted:
        return published
    source = f"{known.origin}; otherwise {published.source}"
    return replace(published, basis="fitted", source=source, **fitted)  # type: ignore[arg-type]


def published_software(name: str) -> Software:
    """The same without the fit to measured runs.

    Raises:
        UnsupportedError: nobody knows this name.
    """
    if name not in _table():
        raise UnsupportedError(unknown_name("software", name[:80], tuple(_table())), code="MW403")
    like = _like(name)
    data = {**(_table()[like] if like else {}), **_table()[name]}
    data.pop("like", None)
    for key, field, scale in _SCALED:
        data[field] = data.pop(key) * scale
    return Software(name=name, **data)


def software_names() -> tuple[str, ...]:
    """All frameworks, the default first."""
    return tuple(_table())


_SCALED = (("operator_us", "operator_s", MICRO), ("step_ms", "step_s", MILLI), ("engine_gib", "engine_bytes", GIB))


def _like(name: str) -> str:
    """The framework whose numbers another one takes where it states none."""
    return str(_table()[name].get("like", ""))


def _own(name: str) -> set[str]:
    """Fields that a framework states itself."""
    named = {key: field for key, field, _ in _SCALED}
    return {named.get(key, key) for key in _table()[name]}


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text("utf-8"))
