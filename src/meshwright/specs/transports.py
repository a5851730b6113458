"""Transports between devices under two collective libraries: whose memory each carries, and by which path."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_FILE = Path(__file__).parent / "data" / "transports.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What a cluster file names as the `transport` of a link."""

    name: str
    vendors: tuple[str, ...]
    """Vendors whose device tensors it carries."""
    path: Literal["devices", "hosts"]
    """Whether it reads device memory, or what was copied to that of the hosts."""
    source: str


@cache
def transports() -> Mapping[str, Transport]:
    """All of them by name."""
    entries = tomllib.loads(_FILE.read_text("utf-8"))
    return {
        name: Transport(name=name, vendors=tuple(one["vendors"]), path=one["path"], source=one["source"])
        for name, one in entries.items()
    }
