"""A parallelizer in a process of its own: one question on its standard input, one answer on its standard output.

Its dependencies, its crashes and its memory stay there; one that takes too long is ended with all it started, and so is
one whose asker was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshwright.errors import LostError
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload
from meshwright.units import seconds

MOST_SHOWN = 300
"""Characters of the last line it printed on its standard error."""

WATCH = 'read -r _; kill -s KILL -- "-$1"'
"""Command of a watching shell: its standard input ends when the process that writes to it does, whatever ended that."""

Request = Callable[[ModelSlice, Island, Workload, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProcess:
    """Runs a command for each question; see `formats.partial_plans_json` for what is said."""

    name: str
    command: Sequence[str]
    time_limit_s: float = 30.0
    environment: Mapping[str, str] | None = None
    """Environment of the process; by default that of this one."""
    question: Request | None = None
    """What is asked; `partial_plans_json.request` by default."""
    every_size: bool = False
    """Whether its answer for an island holds those for every smaller part of it, so that it is asked once."""
    slow: bool = False
    """Whether a question takes it seconds, so that it is asked few."""

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """The answer of the command; arguments as `Parallelizer.plan`.

        Raises:
            LostError: it could not be started, ended with an error, took too long or printed no JSON.
            InputError: its answer has keys or values that cannot be.
        """
        from meshwright.formats.partial_plans_json import partial_plans, request  # with pydantic

        asked = (self.question or request)(part, island, workload, micro_batch)
        answer = self._run(json.dumps(asked, allow_nan=False))
        try:
            data = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise self._lost(f"printed no JSON: {answer[:60]!r}", str(error)) from None
        if not isinstance(data, dict):
            raise self._lost(f"printed a {type(data).__name__}", "an answer is an object with plans")
        return partial_plans(data, part, island, micro_batch)

    def _run(self, text: str) -> str:
        try:
            # A session of its own, so that what it starts ends with it.
            process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=None if self.environment is None else dict(self.environment),
                start_new_session=True,
            )
        except OSError as error:
            raise self._lost("could not be started", f"{self.command[0]}: {error.strerror or error}") from None
        with process, _ended_with_this(process.pid):
            try:
                out, err = process.communicate(text, timeout=self.time_limit_s)
            except subprocess.TimeoutExpired:
                _end(process)
                raise self._lost(f"gave no answer within {seconds(self.time_limit_s)}", "it was ended") from None
            except BaseException:
                _end(process)
                raise
        if process.returncode:
            ended = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
            last = err.strip().rpartition("\n")[2]
            raise self._lost(f"ended with {ended}", last[-MOST_SHOWN:])
        return out

    def _lost(self, what: str, why: str) -> LostError:
        return LostError(what=f"parallelizer {self.name} {what}", why=why, code="MW151")


@contextmanager
def _ended_with_this(group: int) -> Iterator[None]:
    """Kill a group of processes when this process ends within the body: a foreign program looks for no parent.

    Whatever is forked meanwhile holds the pipe to the watching shell, too; it ends within a second by itself.

    Args:
        group: number of a process group.
    """
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "watch", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no shell, or no room for one more process: it is watched no less than before
        yield
        return
    try:
        yield
    finally:
        watcher.kill()  # before its standard input is closed
        watcher.communicate()


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
