"""Measured runs that train adapters beside frozen weights: rows of their own, taken from the files that hold them."""

from __future__ import annotations

from pathlib import Path

from meshwright.formats.measured import read_rows

ADAPTERS = "adapters"
"""Name of the part that holds them."""
_HOLDERS = ("mlperf_v50.csv", "throughput_2.csv")
_COMPLETE = ("LoRA fine-tuning", "LoRA fine-tuning, not full training")
"""Why a row of these files is no full training, and nothing else is wrong with it."""


def tuning_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of adapters whose configuration is known in full, to be scored.

    Args:
        folder: of the measured files.
    """
    found = []
    for name in _HOLDERS:
        if (folder / name).is_file():
            found += [row for row in read_rows(folder / name) if row.get("why_not") in _COMPLETE]
    return [{**row, "usable": "True", "source": _round_of(row.get("source") or "")} for row in found]


def _round_of(source: str) -> str:
    """`MLPerf Training v5.0`, without the submitter; other sources as they are."""
    words = source.split()
    return " ".join(words[:3]) if words[:1] == ["MLPerf"] else source
