"""Commands timed as whole processes, and the lines of the table that they become."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from meshwright.units import rounded

SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """One process, begun and ended."""

    wall_s: float
    processor_s: float
    peak_bytes: float
    output: str
    code: int
    error: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    what: str
    found: float | None
    target: float
    unit: str
    at_least: bool = False
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """As text: what, found, target, found / target, note."""
        target = f"{'at least' if self.at_least else 'at most'} {rounded(self.target)} {self.unit}"
        if self.found is None:
            return self.what, "not measured", target, "-", self.note
        return self.what, f"{rounded(self.found)} {self.unit}", target, f"{self.found / self.target:.2f}", self.note


def run(command: list[str]) -> Run:
    """Run a command to its end; wall time and processor time are the child's, peak memory that of all its processes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=ROOT, env=as_installed()
        )
        together = Peak(child.pid)
        together.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        together.end()
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    # Linux counts in KiB, macOS in bytes.
    scale = 1 if sys.platform == "darwin" else 1024
    processor_s = usage.ru_utime + usage.ru_stime
    peak_bytes = max(usage.ru_maxrss * scale, together.peak_bytes)
    return Run(wall_s, processor_s, peak_bytes, texts[0], child.returncode, texts[1])


def as_installed() -> dict[str, str]:
    """The environment, with compiled modules kept between runs as an installed package has them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Peak(threading.Thread):
    """Watches the memory of a process and all below it, pages that they share counted once; Linux only."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_bytes, self._over = pid, 0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            several = below(self.pid)
            if len(several) > 1:
                self.peak_bytes = max(self.peak_bytes, sum(map(share_bytes, several)))

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        self.join()


def below(pid: int) -> list[int]:
    """A process and those it started, and they in turn."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def share_bytes(pid: int) -> int:
    """A process's memory, with its part of what it shares with others."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def median_run(command: list[str], runs: int) -> Run | None:
    """The run of median wall time, None if any of them failed; one run first to warm the disk's cache."""
    first = run(command)
    if first.code:
        print(f"  {' '.join(command)}: exit {first.code}: {first.error.strip()[:200]}", file=sys.stderr)
        return None
    done = sorted((run(command) for _ in range(runs)), key=lambda found: found.wall_s)
    return done[len(done) // 2]


def meshwright_command() -> list[str]:
    """The installed command, as a user calls it."""
    beside = Path(sys.executable).parent / "meshwright"
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "meshwright.cli"]
