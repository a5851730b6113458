"""What a search answers: executions with their statistics, the front, and the certificate that proves them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from meshwright.calculon.inputs import Execution
from meshwright.calculon.model import price
from meshwright.calculon.space import ExecutionSpace
from meshwright.search.incumbents import SearchedPart
from meshwright.search.points import Points
from meshwright.search.result import Certificate

NETWORKS = "a network is smaller than its groups, or only partly used"
TIER1 = "exceeds the memory of tier 1"
TIER2 = "exceeds the memory of tier 2"
BOUND = "lower bounds of time and memory exceed a known execution"
BOUNDED = "bounded"
"""Effort of a certificate: lower bounds computed, each for several executions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGoal:
    """What a search is asked for."""

    top: int = 10
    """How many of the best."""
    front: bool = True
    """Whether the front of time per sample and memory of both tiers is found, too."""
    stop_microbatch: bool = False
    """Leave out micro-batches larger than one with which nothing fits, as Calculon's `-m` does."""
    fixed: bool = False
    """Whether the model runs without its known errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedExecution:
    """An execution with its statistics."""

    execution: Execution
    stats: dict[str, float | int | None]

    @property
    def sample_rate(self) -> float:
        """Samples per second."""
        return float(self.stats["sample_rate"] or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionAnswer:
    """Best executions, front and certificate."""

    best: tuple[PricedExecution, ...]
    """Best executions by sample rate, descending."""
    front: tuple[PricedExecution, ...]
    """Executions that none beats in time per sample, tier-1 and tier-2 memory at once; quickest first."""
    best_numbers: tuple[int, ...]
    """Positions in the space."""
    front_numbers: tuple[int, ...]
    certificate: Certificate


def space_answer(space: ExecutionSpace, part: SearchedPart, *, started: float, fixed: bool) -> ExecutionAnswer:
    """The answer from what is known of the whole space.

    Args:
        space: the space.
        part: the part of all of it.
        started: reading of `time.perf_counter` when the search began.
        fixed: whether the known errors were corrected in the search.
    """
    best, front = (_priced(space, points, fixed=fixed) for points in (part.best, part.front))
    counts = part.counts
    pruned = counts.pruned + Counter({BOUND: counts.feasible - counts.priced})
    if counts.stopped:
        counts = replace(counts, space=space.size)
    return ExecutionAnswer(
        best=best,
        front=front,
        best_numbers=tuple(part.best.number.tolist()),
        front_numbers=tuple(part.front.number.tolist()),
        certificate=replace(counts, pruned=pruned).certificate(optimal=bool(best), started=started),
    )


def _priced(space: ExecutionSpace, points: Points, *, fixed: bool) -> tuple[PricedExecution, ...]:
    if not points.rows:
        return ()
    columns = space.take(points.number)
    values = price(space.app, space.system, columns, fixed=fixed)
    return tuple(PricedExecution(execution=columns.row(row), stats=values.stats(row)) for row in range(points.rows))
