"""The folder beside a sweep's output that holds what is done so far, so that a sweep that is killed loses little.

    .NAME.RANDOM.parts/    lock         held by the process that writes, and free as soon as that is gone
                           begun        rows that no part holds yet
                           000001 ...   parts: Parquet files that are complete, each with the designs whose rows it has

Parts are never changed. They go when the output holds what they hold.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PART_S, PART_SHARE = 5.0, 0.01
"""A part ends after so many seconds or this share of the run, whichever is longer: parts stay few, losses small."""


_HELD: set[Path] = set()
"""Folders that this process holds: the lock keeps other processes away, and not other threads of this one."""


@dataclass(slots=True)
class PartsFolder:
    """Parts of one process, which holds the folder's lock while it is open."""

    folder: Path
    _lock: int = -1
    _started: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    @classmethod
    def make(cls, output: Path) -> PartsFolder:
        """A new one for this process.

        Args:
            output: the output of the sweep.

        Raises:
            OSError: it cannot be made.
        """
        made = cls(output.with_name(f".{output.name}.{secrets.token_hex(4)}.parts"))
        made.folder.mkdir()
        if not made.hold():
            raise OSError(f"{made.folder.name} cannot be locked")
        return made

    @property
    def begun(self) -> Path:
        """Where rows go until a part is complete."""
        return self.folder / "begun"

    @property
    def parts(self) -> list[Path]:
        """Complete parts, the oldest first."""
        return sorted(path for path in self.folder.iterdir() if path.name.isdigit())

    @property
    def due(self) -> bool:
        """Whether what was begun should become a part now."""
        now = time.monotonic()
        return now - self._last >= max(PART_S, PART_SHARE * (now - self._started))

    def keep(self) -> None:
        """What was begun is complete: make it a part, on the disk before it has the name."""
        with self.begun.open("rb") as stream:
            os.fsync(stream.fileno())
        self.begun.replace(self.folder / f"{len(self.parts) + 1:06}")
        self._last = time.monotonic()

    def hold(self) -> bool:
        """Take the lock; whether nobody else has it. It is of the process alone: its children do not inherit it."""
        if self.folder in _HELD:
            return False
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        _HELD.add(self.folder)
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(self._lock, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Give the lock back, and leave the parts to a later run."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            _HELD.discard(self.folder)

    def remove(self) -> None:
        """The folder is no longer needed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.leave()


def left_of(output: Path) -> Iterator[PartsFolder]:
    """Folders that sweeps into this file left when they were killed, each held; what is written now is not among them.

    Folders without parts hold nothing of use and go.

    Args:
        output: the output of the sweep.
    """
    for folder in sorted(output.parent.glob(f".{glob.escape(output.name)}.????????.parts"), key=_changed):
        found = PartsFolder(folder)
        with contextlib.suppress(OSError):  # not ours to look into, or gone meanwhile
            if found.hold():
                if found.parts:
                    yield found
                else:
                    found.remove()


def _changed(folder: Path) -> float:
    """When something in a folder last got another name; the oldest is gone on with first."""
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0
