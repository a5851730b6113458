"""Rows priced for the verbs that try variants: legal or not, time, memory; nothing is priced twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.errors import Problem
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plans
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.away import update_problems
from meshwright.estimate.rules.legality import row_problems
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, offload_of
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A row with what became of it: problems, or an estimate."""

    row: PlanRow
    problems: tuple[Problem, ...] = ()
    estimate: StepEstimate | None = None

    @property
    def fits(self) -> bool:
        """Legal, and fits the memory, tightly or not."""
        return self.estimate is not None and self.estimate.fits != "no"

    @property
    def time_s(self) -> float:
        """Seconds of a step, infinite where the row is not legal."""
        return float("inf") if self.estimate is None else self.estimate.step_time_s


@dataclass(slots=True)
class Pricer:
    """Prices rows of one model, cluster and workload; rows may change the global batch."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    devices: int
    """Devices that every row must use."""
    _known: dict[PlanRow, Priced] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> Pricer:
        """The pricer of a job's variants."""
        return cls(job.model, job.cluster, job.workload, job.plan.devices)

    def price(self, row: PlanRow) -> Priced:
        """The row's problems, or its estimate.

        Raises:
            UnsupportedError: the row needs something that cannot be priced.
        """
        return self.price_all((row,))[0]

    def price_all(self, rows: Sequence[PlanRow]) -> list[Priced]:
        """The same of several rows; what layers cost is priced for those of one batch together.

        Raises:
            UnsupportedError: a row needs something that cannot be priced.
        """
        legal: dict[int, list[PlanRow]] = {}
        for row in dict.fromkeys(rows):
            if row in self._known:
                continue
            if problems := self._problems(row):
                self._known[row] = Priced(row=row, problems=problems)
            else:
                legal.setdefault(row.gbs, []).append(row)
        for batch, own in legal.items():
            plans = [expand(row, self.model, self.workload.seq_len) for row in own]
            estimates = estimate_plans(plans, self.model, self.cluster, self.workload.with_batch(batch))
            self._known |= {row: Priced(row=row, estimate=one) for row, one in zip(own, estimates, strict=True)}
        return [self._known[row] for row in rows]

    def job(self, row: PlanRow) -> Job:
        """The row as a job."""
        workload = self.workload.with_batch(row.gbs)
        plan = expand(row, self.model, self.workload.seq_len)
        return Job(model=self.model, cluster=self.cluster, workload=workload, plan=plan, name=row.format())

    def _problems(self, row: PlanRow) -> tuple[Problem, ...]:
        problems = row_problems(row, self.model, self.workload.seq_len, self.devices)
        if row.offload:
            problems = (*problems, *update_problems(offload_of(row.offload), self.workload))
        if row.ep > 1 and not problems:
            from meshwright.estimate.rules.experts import expert_problems  # dense models have none

            sides = dict.fromkeys(row.strategy(recomputed=recomputed) for recomputed in (False, True))
            problems = tuple(
                one for side in sides for one in expert_problems(side, self.model, self.workload, "strategies[0]")
            )
        return tuple(problems)
