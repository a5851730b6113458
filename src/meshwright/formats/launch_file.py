"""What a launch file of any framework says: a plan, the model's shape, the workload, and what of it is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Problem
from meshwright.specs.row import PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch configuration says."""

    row: PlanRow | None
    """The plan as a row; None if the options are contradictory or the number of devices is not said."""
    layout: tuple[int, ...] | None
    """Layers of each virtual stage, where the options say how many layers there are."""
    model: dict[str, Any] = field(default_factory=dict)
    """The model's shape in the words of `formats.megatron.model_facts`."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Fields of a `Workload`."""
    unresolved: tuple[str, ...] = ()
    """Variables whose value the file does not say."""
    problems: tuple[Problem, ...] = ()
    """Unknown options, wrong values, and settings that a row cannot hold."""
