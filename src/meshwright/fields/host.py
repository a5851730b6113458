"""Kinds of values that state the host of a node: its memory, its drives, its slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.fields.kinds import FieldKind

UNITS = "GB/s are gigabytes, Gb/s gigabits, and gb/s could be either"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySize(FieldKind):
    """Bytes, or a size with its unit: `128GB`, `120GiB`, `1.5TB`."""

    metavar: str = "SIZE"
    annotation: str = "float | str"

    def read(self, name: str, value: Any) -> float:
        """Memory in bytes."""
        from meshwright.units import size_bytes

        found = size_bytes(value) if isinstance(value, str) else _number(value)
        if not found or found < 1:
            raise self.wrong(
                name, value, "must be a size in bytes with its unit; Gb are gigabits", f"for example {name} 128GB"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeDrives(FieldKind):
    """Speed of a host's NVMe drives together, and their size: `7GB/s`, `2TB@7GB/s`."""

    metavar: str = "RATE"
    annotation: str = "str"

    def read(self, name: str, value: Any) -> Any:
        """Drives."""
        from meshwright.formats.host import Disks, disks_of

        found = value if isinstance(value, Disks) else disks_of(value) if isinstance(value, str) else None
        if found is None or found.bytes_per_s < 1:
            why = f"must be the speed of the drives, their size before it where it is known; {UNITS}"
            raise self.wrong(name, value, why, f"for example {name} 7GB/s or {name} 2TB@7GB/s")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieSlot(FieldKind):
    """Generation and lanes between a device and its host, or the speed of copies: `4x16`, `12GB/s`."""

    metavar: str = "SLOT"
    annotation: str = "float | str"

    def read(self, name: str, value: Any) -> float:
        """Bandwidth in bytes per second and direction."""
        from meshwright.formats.host import slot_bytes_per_s

        found = slot_bytes_per_s(value) if isinstance(value, str) else _number(value)
        if not found or found < 1:
            why = f"must be a generation from 1 to 6 and 1 to 16 lanes, or the speed of copies; {UNITS}"
            raise self.wrong(name, value, why, f"for example {name} 4x16 or {name} 24GB/s")
        return found


def _number(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18
    return float(value) if good else None  # type: ignore[arg-type]
