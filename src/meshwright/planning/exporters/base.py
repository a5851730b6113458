"""What writes a plan as the files of one framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.estimate.result import StepEstimate
from meshwright.specs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFiles:
    """A job in the words of one target."""

    files: tuple[tuple[str, str], ...]
    """Name and content."""
    notes: tuple[str, ...]
    """What the target does a little differently."""
    start: str
    """The command that starts the run, inside the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One target: a file of this folder, and a line of `EXPORTERS`."""

    name: str
    """`export --to NAME`, `plan --target NAME`."""
    files: Callable[[Job, StepEstimate], TargetFiles]
    """Raises UnsupportedError with all that the target cannot run of the plan."""
    refused: Callable[[Job], tuple[Problem, ...]]
    """What the target cannot run of a plan."""
