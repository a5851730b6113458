"""What a search answers: executions with their statistics, the front, and the certificate that proves them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.front import Points
from meshwright.calculon.inputs import Execution
from meshwright.calculon.model import price
from meshwright.calculon.space import Space

NETWORKS = "a network is too small for its groups, or not filled"
TIER1 = "needs more memory than tier 1 has"
TIER2 = "needs more memory than tier 2 has"
BOUND = "its bounds of time and memory are beaten"
GROWN = "micro-batch larger than one with which nothing fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What proves an answer: every execution of the space is priced or pruned by a rule."""

    space: int
    priced: int
    feasible: int
    """Executions of the whole space that are legal and fit, counted exactly, priced or not."""
    bounded: int
    """Lower bounds computed, each for several executions."""
    pruned: tuple[tuple[str, int], ...]
    """Executions never priced, by the rule that excludes them."""
    optimal: bool
    search_s: float

    def to_dict(self) -> dict[str, object]:
        """As data, without the time."""
        return {
            "space": self.space,
            "priced": self.priced,
            "feasible": self.feasible,
            "bounded": self.bounded,
            "pruned": dict(self.pruned),
            "optimal": self.optimal,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """An execution with its statistics."""

    execution: Execution
    stats: dict[str, float | int | None]

    @property
    def sample_rate(self) -> float:
        """Samples per second."""
        return float(self.stats["sample_rate"] or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Best executions, front and certificate."""

    best: tuple[Priced, ...]
    """By sample rate, descending."""
    front: tuple[Priced, ...]
    """Executions that none beats in time per sample, tier-1 and tier-2 memory at once; quickest first."""
    best_numbers: tuple[int, ...]
    """Positions in the space."""
    front_numbers: tuple[int, ...]
    certificate: Certificate
    fixed: bool
    """Whether the model's known errors were mended."""


@dataclass(slots=True)
class Partial:
    """What is known of a part of a space; parts merge exactly."""

    best: Points = field(default_factory=Points.none)
    front: Points = field(default_factory=Points.none)
    space: int = 0
    priced: int = 0
    feasible: int = 0
    bounded: int = 0
    pruned: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Partial, top: int) -> None:
        """Take another part in."""
        self.best = self.best.joined(other.best).unique().best(top)
        self.front = self.front.joined(other.front).front()
        self.space += other.space
        self.priced += other.priced
        self.feasible += other.feasible
        self.bounded += other.bounded
        self.pruned.update(other.pruned)


def result_of(space: Space, part: Partial, *, started: float, fixed: bool = False) -> SearchResult:
    """The answer from what is known of the whole space.

    Args:
        space: the space.
        part: of all of it.
        started: reading of `time.perf_counter` when the search began.
        fixed: as it was searched.
    """
    best, front = (_priced(space, points, fixed=fixed) for points in (part.best, part.front))
    pruned = part.pruned + Counter({BOUND: part.feasible - part.priced})
    certificate = Certificate(
        space=part.space,
        priced=part.priced,
        feasible=part.feasible,
        bounded=part.bounded,
        pruned=tuple(sorted((rule, count) for rule, count in pruned.items() if count)),
        optimal=bool(best),
        search_s=time.perf_counter() - started,
    )
    return SearchResult(
        best=best,
        front=front,
        best_numbers=tuple(part.best.number.tolist()),
        front_numbers=tuple(part.front.number.tolist()),
        certificate=certificate,
        fixed=fixed,
    )


def _priced(space: Space, points: Points, *, fixed: bool) -> tuple[Priced, ...]:
    if not points.rows:
        return ()
    columns: ExecutionColumns = space.take(points.number)
    values = price(space.app, space.system, columns, fixed=fixed)
    return tuple(Priced(execution=columns.row(row), stats=values.stats(row)) for row in range(points.rows))
