"""Steps of data ranks whose sharded weights travel in a way of their own: a file for each, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.catalogue import Catalogue
from meshwright.errors import Problem
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:  # plans are checked before JAX is started with its devices
    from meshwright.runtime.rank_steps.rank_steps import RankStep


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingStep:
    """How one way runs."""

    step: type[RankStep]
    """The optimizer step of a rank."""
    refusals: Callable[[PlanRow, ModelSpec | None, int], Iterator[Problem]]
    """What part of a plan, its model (None for the perceptron) and its number of layers does not run in this way."""


PASSING_STEPS: Catalogue[PassingStep] = Catalogue(
    __name__.rpartition(".")[0],
    {
        "ring": "ring_steps:RING",
    },
)
"""Steps by the names of `strategies.PASSINGS`, `file:ENTRY`; plans of the others are estimated and do not run."""
