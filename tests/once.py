"""What several tests read is made once a session: all workers of pytest, and their forks, have it from a file.

Each worker has caches and fixtures of its own, and the tests of one file run in several workers.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = "MADE_ONCE_A_SESSION"
"""Variable with the folder of a session, which its workers inherit."""


def begin() -> None:
    """Make the folder of a session where there is none, and remove it where this process ends."""
    if KEPT in os.environ:
        return
    folder, owner = tempfile.mkdtemp(prefix="made-once-"), os.getpid()
    os.environ[KEPT] = folder

    @atexit.register
    def end() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def printed(*words: str) -> str:
    """What a module of the tests prints in a process of its own, run by the first that asks.

    Args:
        words: `python -m WORDS`.
    """
    command = [sys.executable, "-m", *words]
    return made(
        "\0".join(words), lambda: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    )


def folder(name: str) -> Path | None:
    """A folder of this name that lasts as long as the session, the same for all its workers; none outside of one."""
    if KEPT not in os.environ:
        return None
    kept = Path(os.environ[KEPT]) / name
    kept.mkdir(exist_ok=True)
    return kept


def made(name: str, make: Callable[[], str]) -> str:
    """What a function makes, called by the first that asks for it by its name, and by all outside of a session."""
    if KEPT not in os.environ:
        return make()
    kept = Path(os.environ[KEPT]) / hashlib.sha256(name.encode()).hexdigest()
    with open(kept.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(make())
        return kept.read_text()
