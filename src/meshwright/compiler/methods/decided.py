"""What is decided elsewhere: by the training step that a function follows, or by a saved plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.compiler.method_plan import MethodPlan, load_plan
from meshwright.compiler.methods.method import Method
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowParallel(Method):
    """Where the state of a training step is, for a function without gradients of parts of it: `mw.FollowParallel(
    train_step)`. Parameters stay where they are; micro-batches go through their meshes as a pipeline."""

    step: Any = field(kw_only=False)
    """What `parallelize` made of the training step."""
    reads: Callable[..., Any] | None = None
    """What the function is given beside its batch, out of arguments like those of the step: `lambda state, batch:
    state.params`; without it, found by structure and shapes."""

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if self.devices is not None:
            raise InputError(
                Problem(
                    what="devices of a function that follows a step",
                    why="it runs where the step's state is",
                    fix="leave devices out",
                    field="devices",
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPlan(Method):
    """What a saved plan says (`train_step.lower(...).plan`), decision by decision."""

    plan: StagesPlan | MethodPlan

    @classmethod
    def load(cls, path: str | Path, devices: Sequence[Any] | None = None) -> FromPlan:
        """The plan in a file.

        Args:
            path: the path that `compiled.plan.save` or `compiled.save` wrote.
            devices: the devices of JAX; all of this process without it.

        Raises:
            InputError: there is no such file, or it holds no plan.
        """
        return cls(plan=load_plan(path), devices=devices)
