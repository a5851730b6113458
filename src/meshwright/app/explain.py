"""Why this plan: the ladder from plain data parallelism up to it, what is one change away, and its sensitivity.

Every rung and every neighbour is really priced; nothing here is a rule of thumb.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.app.answer import Answer
from meshwright.app.explain_measured import measured_steps
from meshwright.app.explain_mixed import RIVALS, mixed_steps
from meshwright.app.requests.read import ExplainRequest
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.library.made_with import calibration_of
from meshwright.planning.plan_shape import bare_row
from meshwright.planning.plan_source import PlanLike, named_job, planned_job
from meshwright.planning.pricing import Priced, Pricer
from meshwright.planning.repair.changes import describe, neighbours, with_data_degree
from meshwright.planning.sensitivity import Effect, sensitivities
from meshwright.records import plain
from meshwright.report.words.explanation import Step, effect_line, neighbour_step, not_legal, rung
from meshwright.report.words.prices import price_lines
from meshwright.report.words.titles import planned_title
from meshwright.report.words.verdict import plan_sentence
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.calibration import Calibration
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

RIVAL_SLOWER = 0.15
"""Neighbours at most this much slower are looked at when assumptions move."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Answer):
    """A plan explained."""

    job: PlannedJob
    estimate: StepPrice
    text: str
    """The verdict on the plan itself."""
    ladder: tuple[Step, ...]
    """Steps from plain data parallelism, or from even layers and shares, to the plan, one lever a rung."""
    neighbours: tuple[Step, ...]
    """One change away: quickest that fit first, then what does not fit, then what is not legal."""
    sensitivity: tuple[Effect, ...]
    """Numbers of devices and links, the one that moves the step most first."""
    notes: tuple[str, ...] = ()

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return calibration_of(self.job)

    def data(self) -> dict[str, object]:
        """As data: `meshwright.explanation/1`."""
        return {
            "schema": "meshwright.explanation/1",
            "name": self.job.name,
            "title": planned_title(self.job),
            "text": self.text,
            "estimate": self.estimate.to_dict(),
            "ladder": plain(self.ladder),
            "neighbours": plain(self.neighbours),
            "sensitivity": [effect.to_dict() | {"text": self._line(effect)} for effect in self.sensitivity],
            "notes": list(self.notes),
        }

    def _line(self, effect: Effect) -> str:
        return effect_line(effect, self.estimate.step_time_s)

    def __repr__(self) -> str:
        return f"Explanation({self.job.name}: {len(self.ladder)} steps, {len(self.neighbours)} alternatives)"

    def __str__(self) -> str:
        lines = [self.text, *(f"{step.change}: {step.text}" for step in self.ladder)]
        lines += [f"instead {step.change}: {step.text}" for step in self.neighbours]
        return "\n".join([*lines, *map(self._line, self.sensitivity)])


def explained(request: ExplainRequest) -> Explanation:
    """Why a plan is what it is.

    Raises:
        InputError: the plan cannot be used.
        UnsupportedError: a plan that no model prices, or an unknown name.
    """
    job, warnings = named_job(request.plan, request.job)
    return _explanation(job, warnings)


def explain(plan: PlanLike) -> Explanation:
    """Why a plan is what it is.

    Args:
        plan: a job, an entry of an answer, or a plan file (`plans.json#2`).

    Returns:
        Ladder, neighbours and sensitivity, all priced.

    Raises:
        InputError: the file cannot be used.
        UnsupportedError: a plan that no model prices.
    """
    return _explanation(*planned_job(plan))


def _explanation(job: PlannedJob, warnings: tuple[str, ...]) -> Explanation:
    if isinstance(job, MeasuredJob):
        return _of_measured_layers(job, warnings)
    estimate = estimate_plan(job.plan, job.model, job.cluster, job.workload)
    row = row_of(job.plan, job.model)
    notes = [*warnings, *price_lines(job, estimate)]
    if not job.cluster.homogeneous or (row is None and bare_row(job.plan, job.model) is None):
        return _of_unequal_stages(job, estimate, tuple(notes))
    if row is None:
        row = bare_row(job.plan, job.model)
        assert row is not None
        notes.append("recompute is chosen per layer; ladder and neighbours start from the plan without it")
    pricer = Pricer.of(job)
    ladder = _ladder(row, pricer, job, estimate)
    around = _neighbours(row, pricer, job.model, estimate)
    return Explanation(
        job=job,
        estimate=estimate,
        text=plan_sentence(job, estimate),
        ladder=ladder,
        neighbours=tuple(step for _, step in around),
        sensitivity=sensitivities(job, _rivals(around, pricer, estimate)),
        notes=tuple(notes),
    )


def _of_measured_layers(job: MeasuredJob, warnings: tuple[str, ...]) -> Explanation:
    """A plan of measured layers, by the rule that planned it."""
    found = measured_steps(job)
    return Explanation(
        job=job,
        estimate=found.estimate,
        text=plan_sentence(job, found.estimate),
        ladder=found.ladder,
        neighbours=found.neighbours,
        sensitivity=found.sensitivity,
        notes=(*warnings, *found.notes),
    )


def _of_unequal_stages(job: Job, estimate: StepEstimate, notes: tuple[str, ...]) -> Explanation:
    """A plan that no row says: its own ladder and neighbours."""
    ladder, around, rivals = mixed_steps(job, estimate)
    return Explanation(
        job=job,
        estimate=estimate,
        text=plan_sentence(job, estimate),
        ladder=ladder,
        neighbours=around,
        sensitivity=sensitivities(job, rivals),
        notes=notes,
    )


def _ladder(row: PlanRow, pricer: Pricer, job: Job, chosen: StepEstimate) -> tuple[Step, ...]:
    rungs = list(_rungs(row, pricer.devices))
    prices = pricer.price_all([changed for _, changed in rungs])
    priced = [(label, price) for (label, _), price in zip(rungs, prices, strict=True)]
    own = Priced(row=row, estimate=chosen)
    exact = row_of(job.plan, job.model)
    if exact == rungs[-1][1]:
        # The plan itself may split its layers otherwise than a row would.
        priced[-1] = (priced[-1][0], own)
    elif exact is None:
        priced.append(("choose recompute per layer", own))
    before = [None, *(one.estimate for _, one in priced)]
    return tuple(
        rung(label, one.estimate, last, name=one.row.format())
        if one.estimate is not None
        else not_legal(label, one.row.format(), one.problems)
        for (label, one), last in zip(priced, before, strict=False)
    )


def _rungs(row: PlanRow, devices: int) -> Iterator[tuple[str, PlanRow]]:
    """Rows from plain data parallelism to the plan: sharding, tp, pp, cp, experts, recompute, chunks, the rest."""
    current = with_data_degree(PlanRow(gbs=row.gbs), devices)
    yield "start: plain data parallelism", current
    levers: tuple[tuple[str, ...], ...] = (
        ("sharding", "shard_group"),
        ("tp", "sp"),
        ("pp",),
        ("cp",),
        ("ep", "etp"),
        ("recompute", "recompute_layers", "recompute_modules"),
        ("vpp", "schedule"),
        ("mbs",),
        ("tensor",),
        ("tp_overlap",),
        ("dispatcher",),
        ("ep_overlap",),
        ("hot_experts",),
        ("ep_chunks", "drop_duplicates", "stash_collectives", "prioritised"),
        ("offload",),
        ("dp_overlap",),
    )
    for fields in levers:
        wanted = {name: getattr(row, name) for name in fields}
        if "sharding" in wanted:
            changed = replace(current, **wanted)
        else:
            changed = with_data_degree(replace(current, **wanted), devices)
            # Shard groups that this rung's data degree does not allow make it illegal, and it says so.
            changed = replace(changed, sharding=row.sharding, shard_group=row.shard_group)
        if "vpp" in wanted:
            changed = replace(changed, schedule=row.schedule)
        if changed != current:
            yield f"add {_added(current, changed)}", changed
            current = changed
    if current != row:
        yield describe(current, row), row


def _added(before: PlanRow, after: PlanRow) -> str:
    """New tokens of the one-line form."""
    old = set(before.format().split("."))
    new = [token for token in after.format().split(".") if token not in old and not token.startswith("dp")]
    return ".".join(new) or describe(before, after)


def _neighbours(row: PlanRow, pricer: Pricer, model: ModelSpec, chosen: StepEstimate) -> list[tuple[Priced, Step]]:
    """Fitting neighbours by time, then those too large, then those not legal."""
    found = []
    changes = list(neighbours(row, model, pricer.devices))
    for change, priced in zip(changes, pricer.price_all([change.row for change in changes]), strict=True):
        name = change.row.format()
        if priced.estimate is None:
            found.append((priced, not_legal(change.text, name, priced.problems)))
        else:
            found.append((priced, neighbour_step(change.text, priced.estimate, chosen, name=name)))
    order = {"fits": 0, "tight": 0, "no": 1, "not legal": 2}
    return sorted(found, key=lambda pair: (order[pair[1].outcome], pair[0].time_s))


def _rivals(around: list[tuple[Priced, Step]], pricer: Pricer, chosen: StepEstimate) -> list[tuple[str, ExecutionPlan]]:
    """Fitting neighbours that are slower than the plan, but not by much."""
    slowest = chosen.step_time_s * (1 + RIVAL_SLOWER)
    close = [
        priced for priced, step in around if step.outcome == "fits" and chosen.step_time_s <= priced.time_s <= slowest
    ]
    return [(priced.row.format(), pricer.job(priced.row).plan) for priced in close[:RIVALS]]
