"""The best plan of a measured model on a cluster of several kinds of device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import InfeasibleError, InputError, Problem, UnsupportedError, unknown_name
from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PLAN_SET_SCHEMA, job_document, write_job
from meshwright.formats.profiles import ProfileSet, read_profiles
from meshwright.planning.compose.costing import Offer
from meshwright.planning.compose.sources.profiles.bounds import compute_bound_s
from meshwright.planning.compose.sources.profiles.cluster import measured_cluster, measured_kinds
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.execution import execution_plan
from meshwright.planning.compose.sources.profiles.job import measured_job, pipeline_shapes
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.planning.compose.sources.profiles.price import PacedPipeline, paced_pipelines, price_job
from meshwright.planning.compose.sources.profiles.search import Composed, Composer
from meshwright.planning.compose.sources.profiles.set_price import CompositionPricer
from meshwright.planning.compose.sources.profiles.shares import shares
from meshwright.planning.mixed_rent import composed_offer, priced_cluster, rented_part
from meshwright.planning.objectives import Aim, Duration, admitted, aim_of, require_prices
from meshwright.report.words.measured import measured_title
from meshwright.report.words.prices import price_said, traffic_lines
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.plan import ExecutionPlan
from meshwright.units import gib, seconds, usd

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """The best plan on a part of the cluster."""

    said: str
    step_time_s: float | None
    """None where nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MixedPlan:
    """The best plan found, who holds what, and what mixing is worth."""

    model: str
    cluster: ClusterSpec
    global_batch: int
    profiles: ProfileSet
    pricer: CompositionPricer
    composed: Composed
    job: MeasuredJob
    """The plan, with what it uses of the profiles."""
    estimate: StepPrice
    paced: tuple[PacedPipeline, ...]
    """Every pipeline with its micro-batches."""
    bound_s: float
    alone: tuple[Subset, ...]
    """Each kind without the others."""
    without: tuple[Subset, ...]
    """All kinds but one."""
    shapes_bound_s: float
    """No composition of the shapes looked at takes less."""
    aim: Aim
    offer: Offer[Composed]
    """The composition with its price; 0 where a price is not known."""
    quickest: Offer[Composed]
    """Of the whole cluster."""

    @property
    def priced(self) -> bool:
        """Whether every group has a price."""
        return all(group.price_per_hour is not None for group in self.cluster.groups)

    @property
    def part(self) -> bool:
        """Whether it was chosen for its price among plans on parts of the cluster."""
        return self.aim.rents

    @property
    def plan(self) -> ExecutionPlan:
        """The pipelines."""
        return self.job.plan

    @property
    def step_time_s(self) -> float:
        """The step."""
        return self.estimate.step_time_s

    @property
    def best_alone(self) -> Subset | None:
        """The quickest kind by itself."""
        able = [subset for subset in self.alone if subset.step_time_s is not None]
        return min(able, key=lambda one: one.step_time_s or 0.0, default=None)

    def verdict(self) -> list[str]:
        """What mixing is worth, the slowest stage, and the devices left out."""
        lines = [self._headline()]
        for subset in self.without if len(self.alone) > 2 and not self.part else ():
            if subset.step_time_s is not None:
                loss = subset.step_time_s / self.step_time_s - 1
                lines.append(f"{subset.said}: {seconds(subset.step_time_s)}, {loss:.1%} slower")
        lines.append(self._slowest_stage())
        why = "no plan found that uses them is quicker"
        if self.part:
            why = "not rented, since no plan found that uses them is better for its price"
        for kind in self.pricer.costs.kinds.values():
            idle = kind.count - self.composed.composition.devices(kind.name)
            if idle:
                lines.append(f"{idle} of {kind.count} {kind.name} stay idle: {why}")
        lines += self._price()
        lines.append(f"no plan can take less than {seconds(self.bound_s)}: compute alone, shared out in any fractions")
        lines.append(f"with transfers and gradients, no composition of the shapes looked at {self._least()}")
        return lines

    def _price(self) -> Iterator[str]:
        """The limits that are kept, what a step costs, and what the quickest one would."""
        if self.aim.limited:
            yield f"it is the {self.aim.rule()}"
        if self.priced:
            names = self.pricer.costs.kinds
            used = Counter({name: n for name in names if (n := self.composed.composition.devices(name))})
            yield price_said(self.offer.price_per_step, self.step_time_s, used, self.cluster)
            if self.offer.price_per_step < self.quickest.price_per_step * (1 - 1e-9):
                time_s, price = self.quickest.step_time_s, self.quickest.price_per_step
                yield f"the quickest plan takes {seconds(time_s)} for {usd(price)}"
        yield from traffic_lines(self.estimate.traffic, self.cluster)

    def _headline(self) -> str:
        if self.part:
            return f"{usd(self.offer.price_per_step)} per step of {seconds(self.step_time_s)}, on {self.offer.on}"
        return _worth(self.step_time_s, self.best_alone)

    def _least(self) -> str:
        return f"takes less than {seconds(self.shapes_bound_s)}"

    def _slowest_stage(self) -> str:
        """The bottleneck of the pipelines that end last, against the mean of their stages."""
        time = self.composed.time
        _, number, pace = max(
            (self.pricer.rests(part.shape).time_s(count), index, one)
            for index, (part, count) in enumerate(zip(self.composed.composition.parts, time.sequences, strict=True))
            if (one := self.pricer.pace(part.shape)) is not None and count
        )
        slowest = max(range(len(pace.stage_s)), key=lambda i: pace.stage_s[i])
        stage = self.composed.composition.parts[number].shape.stages[slowest]
        above = pace.slowest_s / (sum(pace.stage_s) / len(pace.stage_s)) - 1
        return (
            f"slowest stage: stage {slowest} on {stage.devices} {stage.device}, {seconds(pace.slowest_s)} per "
            f"micro-batch, {above:.1%} above the mean of its pipeline"
        )

    def stages(self) -> Iterator[dict[str, Any]]:
        """One row per stage of each pipeline, as `estimate.stages` has them, with its micro-batches."""
        for stage in self.estimate.stages:
            one = self.paced[stage.pipeline]
            yield {
                **stage.to_dict(),
                "micro_batches": len(one.sizes),
                "sequences": sum(one.sizes),
                "micro_batch_s": one.pace.stage_s[stage.stage],
                "compute_s": one.pace.compute_s[stage.stage],
            }

    def fits(self) -> str:
        """`yes`, or `tight` where a device has little headroom."""
        return self.estimate.fits

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan file."""
        target = Path(path)
        target.write_text(write_job(self.job), encoding="utf-8")
        return target

    def to_dict(self) -> dict[str, Any]:
        """A plan set of one plan."""
        points = self.pricer.costs.profile.interpolated
        return {
            "schema": PLAN_SET_SCHEMA,
            "inputs": {
                "model": self.job.profile.describe(),
                "cluster": self.cluster.describe(),
                "workload": {"global_batch": self.global_batch, "dtype": "fp32", "sequence": "as profiled"},
                "objective": self.aim.objective,
                "limits": self.aim.to_dict(),
                "assumptions": [
                    {"name": "layer times", "value": f"profiles of {self.profiles.source}", "basis": "measured"},
                    {"name": "interpolated points", "value": str(len(points)), "basis": "extrapolated"},
                ],
            },
            "search": {
                "space": "pipelines of unequal shape over measured profiles",
                "shapes": self.composed.columns,
                "priced": self.composed.priced,
                "pruned": self.composed.pruned,
                "optimal": False,
                "bound_step_time_s": self.bound_s,
                "shapes_bound_step_time_s": self.shapes_bound_s,
            },
            "verdict": {
                "text": self._headline(),
                "why": self.verdict()[1:],
                "alone": [{"devices": one.said, "step_time_s": one.step_time_s} for one in self.alone],
                "without": [{"devices": one.said, "step_time_s": one.step_time_s} for one in self.without],
            },
            "plans": [
                {
                    "rank": 1,
                    "name": None,
                    "title": measured_title(self.job),
                    "plan": job_document(self.job),
                    "estimate": self.estimate.to_dict() | {"stages": list(self.stages())},
                }
            ],
        }

    def __repr__(self) -> str:
        return f"MixedPlan({self.model} on {self.cluster.name}: {seconds(self.step_time_s)})"

    def __rich__(self) -> RenderableType:
        from meshwright.report.mixed_tables import render_mixed

        return render_mixed(self.to_dict())


def plan_measured(
    model: str,
    *,
    profiles: str | os.PathLike[str],
    global_batch: int,
    cluster: str | os.PathLike[str] | None = None,
    gpus: str | None = None,
    interpolate: bool = True,
    objective: str | None = None,
    price: float | None = None,
    max_step_time: Duration | None = None,
    max_price_per_step: float | None = None,
) -> MixedPlan:
    """The best plan of a model of a folder of profiles.

    Args:
        model: a name of the profiles: `OPT-350`.
        profiles: the folder.
        global_batch: sequences per step, of the profiled length.
        cluster: path of a cluster file.
        gpus: `8xA100-40,8xV100-16`, instead of `cluster`.
        interpolate: fill micro-batches missing between two measured ones.
        objective: time, the quickest step, or cost, the cheapest one on any part of the cluster; without it time, or
            cost where only the time is limited.
        price: of one device and hour, instead of each group's.
        max_step_time: that a step may take, in seconds or as `40s`.
        max_price_per_step: USD that a step may cost.

    Raises:
        InputError: any input cannot be used; all problems together.
        UnsupportedError: the profiles know the model or a device not.
        InfeasibleError: nothing fits, or nothing keeps to the limits.
    """
    aim = aim_of(objective, max_step_time=max_step_time, max_price_per_step=max_price_per_step)
    if aim.objective == "memory":
        why = "plans of measured profiles are compared by their time or their cost"
        raise InputError(Problem(what="objective is 'memory'", why=why, fix="time or cost", field="objective"))
    found = read_profiles(os.fspath(profiles), interpolate=interpolate)
    spec = priced_cluster(measured_cluster(cluster, gpus, found), price)
    if aim.rents:
        require_prices(group.name for group in spec.groups if group.price_per_hour is None)
    if model not in found.models:
        raise UnsupportedError(unknown_name("model of the profiles", model, found.models), code="MW401")
    kinds = measured_kinds(spec, found, model)
    costs = ProfileCosts(found, model, kinds)
    composer = Composer(costs, global_batch)
    composed, alone, without = composed_with_parts(composer)
    quickest = composed_offer(composer, composed, spec)
    offers = rented_part(composer, spec, aim, quickest) if aim.rents else [quickest]
    offer = admitted(aim, offers, f"{model} on {spec.name}")
    composed = offer.plan
    counts = shares(composed.composition, composed.time, composer.pricer)
    first = dict(zip((kind.name for kind in kinds), accumulate((k.count for k in kinds), initial=0), strict=False))
    plan = execution_plan(composed.composition, counts, first)
    job = measured_job(found, costs, spec, global_batch, plan)
    return MixedPlan(
        model=model,
        cluster=spec,
        global_batch=global_batch,
        profiles=found,
        pricer=composer.pricer,
        composed=composed,
        job=job,
        estimate=price_job(job),
        paced=tuple(paced_pipelines(pipeline_shapes(job), costs)),
        bound_s=compute_bound_s(costs, global_batch),
        alone=alone,
        without=without,
        shapes_bound_s=composer.bound_s(),
        aim=aim,
        offer=offer,
        quickest=quickest,
    )


def composed_with_parts(composer: Composer) -> tuple[Composed, tuple[Subset, ...], tuple[Subset, ...]]:
    """The best composition of all kinds or of fewer, each kind alone, and all kinds but each one."""
    kinds = list(composer.costs.kinds.values())

    def of(chosen: list[DeviceKind]) -> tuple[str, Composed | None]:
        said = " + ".join(f"{kind.count} {kind.name}" for kind in chosen)
        return said, composer.best({kind.name: kind.count for kind in chosen})

    alone = [of([kind]) for kind in kinds]
    without = [of([k for k in kinds if k is not kind]) for kind in kinds] if len(kinds) > 2 else []
    every = [composer.best() if len(kinds) > 1 else None]
    able = [one for one in (*every, *(one for _, one in (*without, *alone))) if one is not None]
    if not able:
        raise InfeasibleError(_nothing_fits(composer.costs))
    best = min(able, key=lambda one: one.time.step_time_s)

    def subsets(pairs: list[tuple[str, Composed | None]]) -> tuple[Subset, ...]:
        return tuple(Subset(said=said, step_time_s=one.time.step_time_s if one else None) for said, one in pairs)

    return best, subsets(alone), subsets(without)


def _nothing_fits(costs: ProfileCosts) -> Problem:
    sizes = ", ".join(f"{kind.count} x {kind.name} of {gib(kind.memory_bytes)}" for kind in costs.kinds.values())
    return Problem(
        what=f"{costs.profile.name} does not fit {sizes}",
        why="no profiled tensor degree and micro-batch leaves room for the layers of a stage",
        fix="add devices, or devices with more memory",
        field="cluster",
    )


def _worth(step_time_s: float, alone: Subset | None) -> str:
    if alone is None or alone.step_time_s is None:
        return f"{seconds(step_time_s)} per step; no kind of device can train the model by itself"
    gain = 1 - step_time_s / alone.step_time_s
    if gain < 1e-6:
        return f"{seconds(step_time_s)} per step on {alone.said}: mixing does not pay"
    return f"{seconds(step_time_s)} per step: mixing pays, {gain:.1%} less than {alone.said} by themselves"
