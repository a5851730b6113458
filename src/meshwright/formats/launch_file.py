"""What a launch file of any framework says: a plan, the model's shape, the workload, and what of it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Problem
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

Dealt = Callable[[int], tuple[int, ...]]
"""Layers of each virtual stage from those of the model; raises InputError where a framework makes none of them."""


def even_stages(layers: int, *, stages: int) -> tuple[int, ...]:
    """Layers of each virtual stage where they are shared evenly, those that are left over one each to the first ones.

    Args:
        layers: the number of layers of the model.
        stages: virtual stages of the pipeline.
    """
    each, more = divmod(layers, stages)
    return tuple(each + (number < more) for number in range(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One value of a plan as it was read."""

    option: str
    """The option or key that says it."""
    value: str
    place: str
    """`train.sh:12`, or empty where the text has no lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch configuration says."""

    row: PlanRow | None
    """The plan as a row; None if the options are contradictory or the number of devices is not said."""
    layout: tuple[int, ...] | None
    """Layers of each virtual stage, where the options say how many layers there are."""
    dealt: Dealt | None = field(default=None, repr=False, compare=False)
    """The framework's own rule for the layers of stages; None where `layout` says them, or plans spread them by
    weight."""
    started: int | None = None
    """Processes that the file itself starts, where it says so beside the plan."""
    multiple: int = 1
    """What divides the devices of the job: the product of the degrees that cut it, as far as they were read."""
    plan: ExecutionPlan | None = None
    """The plan where its layers differ, so that no row says it."""
    model: dict[str, Any] = field(default_factory=dict)
    """The model's shape in the words of `formats.megatron.model_facts`."""
    spec: ModelSpec | None = None
    """The model, where the file holds its whole configuration."""
    workload: dict[str, Any] = field(default_factory=dict)
    """Fields of a `Workload`."""
    unresolved: tuple[str, ...] = ()
    """Variables whose value the file does not say."""
    problems: tuple[Problem, ...] = ()
    """Unknown options, wrong values, and settings that a row cannot hold."""
    questions: tuple[Problem, ...] = ()
    """What only the user can say; then nothing that depends on it was read."""
    said: tuple[Said, ...] = ()
    """The values that were read, with where they are written."""
    spelled: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the program of a script calls options that stand here by their trainer's name."""
    unpriced: tuple[Said, ...] = field(default=(), repr=False)
    """Options that were read and change no price; their values are never shown: keys and tokens are among them."""
    notes: tuple[str, ...] = ()
    """What was taken for granted."""
