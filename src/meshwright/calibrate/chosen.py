"""A measured run's plan: the likeliest of those its row may mean, ready to be priced under any numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.formats.measured import MeasuredRun, PossiblePlan
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.specs.strategy import LayerStrategy, Recompute

DOUBT = 0.10
"""Share of the memory that a prediction may be too high by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPlan:
    """The plan a run is taken to have run, and its estimate under the library's numbers."""

    run: MeasuredRun
    row: PlanRow
    plan: ExecutionPlan
    estimate: StepEstimate

    def step_time_s(self, hardware: Hardware) -> float:
        """Seconds of a step under other numbers."""
        run = self.run
        pricer = PlanPricer(run.model, run.cluster, run.workload, hardware, transfers_apart=False)
        return pricer.step_time_s(self.plan)


def choose_plan(run: MeasuredRun) -> ChosenPlan | str:
    """The first of the run's plans that is legal and fits, the first legal one if none fits, or why none is legal.

    A run that ran fitted, so of what a row leaves open the likeliest that fits is meant. Memory is predicted to a tenth
    or so: a plan that lacks less than that is not given up for one that recomputes.
    """
    refused: list[str] = []
    chosen: ChosenPlan | None = None
    for possible in run.plans:
        # A split that leaves the embedding or the head a chunk of its own has more chunks than layers.
        row = replace(possible.row, vpp=1, schedule=default_schedule(1)) if 0 in run.split else possible.row
        problems = row_problems(row, run.model, run.workload.seq_len, run.cluster.devices)
        if problems:
            refused += [problem.what for problem in problems]
            continue
        plan = plan_of_run(run, possible)
        estimate = estimate_plan(plan, run.model, run.cluster, run.workload)
        alone = sum(other.row.recompute == possible.row.recompute for other in run.plans) == 1
        # Of what is recomputed in steps, a step more is what users take where memory is short.
        alone = alone and (possible.row.recompute != "block" or len(run.plans) == 1)
        fits = estimate.fits != "no" or (alone and _lacks_little(estimate))
        if chosen is None or fits:
            chosen = ChosenPlan(run=run, row=possible.row, plan=plan, estimate=estimate)
        if fits:
            break
    return chosen if chosen is not None else "; ".join(dict.fromkeys(refused))


def _lacks_little(estimate: StepEstimate) -> bool:
    return all(stage.peak_memory_bytes <= (1 + DOUBT) * stage.capacity_bytes for stage in estimate.stages)


def plan_of_run(run: MeasuredRun, possible: PossiblePlan) -> ExecutionPlan:
    """The row as a plan, with what a row of degrees cannot say: modules that are recomputed, capacity, offload."""
    row, model = possible.row, run.model
    plan = plan_of(row, run.split) if run.split else expand(row, model, run.workload.seq_len)

    def detailed(strategy: LayerStrategy) -> LayerStrategy:
        if possible.modules and strategy.recompute.kind == "selective":
            strategy = replace(strategy, recompute=Recompute(kind="selective", modules=possible.modules))
        if run.capacity is not None:
            strategy = replace(strategy, expert=replace(strategy.expert, capacity_factor=run.capacity))
        if run.deduplicates and strategy.expert.ep > 1:
            strategy = replace(strategy, expert=replace(strategy.expert, dispatcher="deduplicated"))
        if run.overlap != "none" and strategy.expert.ep > 1:
            strategy = replace(strategy, expert=replace(strategy.expert, overlap=run.overlap))
        if run.offloaded_activations:
            strategy = replace(strategy, offload=replace(strategy.offload, activations=run.offloaded_activations))
        return strategy

    return replace(plan, strategies=tuple(detailed(strategy) for strategy in plan.strategies))
