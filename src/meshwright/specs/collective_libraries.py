"""Libraries that devices of a vendor communicate by; devices under two of them share no communicator."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "data" / "collective_libraries.toml"


def collective_library(vendor: str) -> str | None:
    """The library that a vendor's devices communicate by; None where the vendor is not known.

    Args:
        vendor: as a device states it: `NVIDIA`.
    """
    return _by_vendor().get(vendor)


@cache
def _by_vendor() -> dict[str, str]:
    return {entry["vendor"]: name for name, entry in tomllib.loads(_FILE.read_text("utf-8")).items()}
