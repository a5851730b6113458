"""What a search found, and what proves it: every member of a space is priced, or excluded by a rule."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from meshwright.estimate.result import StepEstimate
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How many members a space has, and why the others need not be looked at."""

    space: int
    """Members of the space."""
    priced: int
    """Members whose memory was computed, alone or with others, and where they fit their time."""
    feasible: int
    """Members that fit the memory, of those that were looked at for it."""
    effort: tuple[tuple[str, int], ...] = ()
    """Other work that was done, by name: bounds computed, plans simulated."""
    pruned: tuple[tuple[str, int], ...]
    """Members never priced, by the rule that excludes them; with `priced` they sum to `space`."""
    optimal: bool
    """No member of the space is quicker than the best one."""
    search_s: float
    stopped: str = ""
    """The limit at which the search ended before it had looked at every member; empty for a whole search."""

    def to_dict(self) -> dict[str, object]:
        """As data, without the time."""
        return {
            "space": self.space,
            "priced": self.priced,
            "feasible": self.feasible,
            **dict(self.effort),
            "pruned": dict(self.pruned),
            "optimal": self.optimal,
            **({"stopped": self.stopped} if self.stopped else {}),
        }


@dataclass(slots=True)
class SpaceCounts:
    """What became of the members of a space so far; the counts of its parts add up."""

    space: int = 0
    priced: int = 0
    feasible: int = 0
    effort: Counter[str] = field(default_factory=Counter)
    pruned: Counter[str] = field(default_factory=Counter)
    stopped: str = ""
    """The limit that was reached."""
    unseen_s: float = inf
    """No member that was not looked at takes fewer seconds."""

    def stop(self, limit: str, unseen_s: float) -> None:
        """Note that members were left whose time is at least this."""
        self.stopped = self.stopped or limit
        self.unseen_s = min(self.unseen_s, unseen_s)

    def add(self, other: SpaceCounts) -> None:
        """Take another part in."""
        self.space += other.space
        self.priced += other.priced
        self.feasible += other.feasible
        self.effort.update(other.effort)
        self.pruned.update(other.pruned)
        if other.stopped:
            self.stop(other.stopped, other.unseen_s)

    def certificate(self, *, optimal: bool, started: float) -> Certificate:
        """The certificate of the whole space.

        Args:
            optimal: whether something was found.
            started: reading of `time.perf_counter` when the search began.
        """
        pruned = dict(self.pruned)
        if self.stopped:
            pruned[f"not looked at: {self.stopped}"] = self.space - self.priced - sum(pruned.values())
        return Certificate(
            space=self.space,
            priced=self.priced,
            feasible=self.feasible,
            effort=tuple(self.effort.items()),
            pruned=tuple(sorted((rule, count) for rule, count in pruned.items() if count)),
            optimal=optimal and not self.stopped,
            search_s=time.perf_counter() - started,
            stopped=self.stopped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCertificate(Certificate):
    """A certificate of plans, whose best ones are run through the event simulator."""

    bound_step_time_s: float | None
    """No plan of the space is faster than this; None if none fits."""

    def to_dict(self) -> dict[str, object]:
        """The `search` entry of a plan set, timing apart."""
        return {**Certificate.to_dict(self), "bound_step_time_s": self.bound_step_time_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlan:
    """One plan of the answer."""

    row: PlanRow | None
    """None where the plan needs more than one line."""
    plan: ExecutionPlan
    estimate: StepEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Best plans first, one per layout (tp, cp, ep, etp, pp, dp), each with its best settings."""

    plans: tuple[FoundPlan, ...]
    pareto: tuple[FoundPlan, ...]
    """Plans no other plan beats in time and memory at once."""
    certificate: PlanCertificate
    relaxed: bool
    """Nothing left the usual reserve free, so plans with less than 8% headroom were admitted."""
