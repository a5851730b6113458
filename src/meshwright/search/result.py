"""What a search found and what it can prove about it."""

from __future__ import annotations

from meshwright.dataclass import dataclass
from meshwright.estimate.result import StepEstimate
from meshwright.search.certificate import Certificate
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow


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
