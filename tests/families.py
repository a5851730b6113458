"""Processes that a command started: whether all of them end when the command itself is killed.

A process of the family is known by a word in its environment, which its children inherit wherever they go.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "MESHWRIGHT_TEST_FAMILY"
LIMIT_S = 20.0
"""For those that look for their parent once a second, on a busy machine."""


class Family:
    """A command and all the processes that come from it."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the command.

        Args:
            words: behind `meshwright`.
            folder: where it runs, and for its temporary files.
            environment: beside that of this process.
        """
        self._word = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = self._word.partition("=")
        with (folder / "family.log").open("ab") as log:
            self.first = subprocess.Popen(
                [sys.executable, "-P", "-m", "meshwright", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {}), "TMPDIR": str(folder), name: value},
            )

    def living(self) -> dict[int, str]:
        """Command lines of those that live, by process."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                inherited = (folder / "environ").read_bytes().split(b"\0")
                if self._word.encode() in inherited:
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command.strip()
        return {number: command for number, command in found.items() if command}

    def until(self, met: Callable[[dict[int, str]], bool], limit_s: float = LIMIT_S) -> bool:
        """Wait until something holds of those that live; whether it did within a time."""
        end = time.monotonic() + limit_s
        while not (holds := met(self.living())) and time.monotonic() < end:
            time.sleep(0.05)
        return holds

    def kill(self, limit_s: float = LIMIT_S) -> dict[int, str]:
        """SIGKILL the command alone; those that still live after the time they have, which are ended then."""
        self.first.kill()
        self.first.wait()
        self.until(lambda living: not living, limit_s)
        left = self.living()
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, 9)
        return left
