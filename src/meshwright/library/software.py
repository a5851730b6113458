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
    fitted = known.of("software", name)
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
    data = dict(_table()[name])
    for key, field, scale in (
        ("operator_us", "operator_s", MICRO),
        ("step_ms", "step_s", MILLI),
        ("engine_gib", "engine_bytes", GIB),
    ):
        data[field] = data.pop(key) * scale
    return Software(name=name, **data)


def software_names() -> tuple[str, ...]:
    """All frameworks, the default first."""
    return tuple(_table())


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text("utf-8"))
