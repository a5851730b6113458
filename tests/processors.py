"""Which processor this is, by what it can do: code that was compiled for another may not run here."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path


def processor() -> str:
    """A name that two machines share only where their processors have the same instructions."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"
