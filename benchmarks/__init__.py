"""The pages of the documentation that are measured, not written.

python -m benchmarks             speed               -> docs/benchmarks.md
python -m benchmarks.accuracy    accuracy            -> docs/accuracy.md
python -m benchmarks.kernels     kernels             -> printed, and a section of docs/accuracy.md
python -m benchmarks.schedules   pipeline schedules  -> docs/schedules.md, docs/schedules/
python -m benchmarks.claims      published claims    -> docs/claims.md
python -m benchmarks.planners    other planners      -> docs/planners.md
python -m benchmarks.channels    the runtime         -> docs/channels.md
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import meshwright
from meshwright.report.score_table import markdown_table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def version() -> str:
    """What was measured: the version, and the commit where there is one."""
    number = getattr(meshwright, "__version__", None)
    if number is None:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            number = installed("meshwright")
        except PackageNotFoundError:
            number = "unknown"
    run = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    commit = run.stdout.strip()
    return f"meshwright {number}" + (f" ({commit})" if run.returncode == 0 and commit else "")


def machine() -> str:
    """Processor, cores, interpreter and system."""
    return f"{_processor()}, {_cores()} cores, Python {platform.python_version()}, {platform.system()}"


def load() -> str:
    """What else the machine was doing."""
    try:
        return f"load average {os.getloadavg()[0]:.1f} at the start"
    except (AttributeError, OSError):
        return "load not known"


def today() -> str:
    """The date, as YYYY-MM-DD."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def write_page(name: str, text: str) -> Path:
    """Write one page of the documentation."""
    path = DOCS / name
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


__all__ = ["DOCS", "ROOT", "load", "machine", "markdown_table", "today", "version", "write_page"]
