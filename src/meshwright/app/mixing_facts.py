"""What there is to say about a plan over several kinds of device: who holds what, what it waits for and rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StageEstimate, StepEstimate
from meshwright.formats.cluster import default_links
from meshwright.planning.exporters import EXPORTERS
from meshwright.planning.mixing import Mixing, Place, Subset
from meshwright.planning.sensitivity import numbers
from meshwright.report.words.titles import shortened, strategy_text
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.job import Job
from meshwright.units import percent, seconds

LINK_CHANGE = 2.0
"""By which a link between groups is made slower: few users know theirs better."""
NUMBER_CHANGE = 0.8


def mixing_of(
    job: Job,
    estimate: StepEstimate,
    *,
    alone: tuple[Subset, ...],
    without: tuple[tuple[str, Subset], ...],
    counts: Mapping[str, int],
    rented: bool,
    bound_s: float | None = None,
) -> Mixing:
    """What there is to say about the best plan.

    Args:
        job: the plan.
        estimate: of it.
        alone: each kind of device without the others.
        without: all kinds but one, by the name of that one.
        counts: what the search looked at, by rule.
        rented: whether fewer devices were looked for because they cost less.
        bound_s: that no plan's step undercuts, where somebody knows.
    """
    return Mixing(
        step_time_s=estimate.step_time_s,
        used=len({stage.group for stage in estimate.stages}),
        alone=alone,
        without=without,
        held=tuple(_held(job, estimate)),
        slowest=_slowest(estimate),
        sensitive=_sensitive(job, estimate),
        frameworks=tuple(_frameworks(job, estimate)),
        idle=tuple(_idle(job, estimate, rented=rented)),
        places=tuple(_places(job, estimate)),
        counts=counts,
        per_step=estimate.price_per_step if rented else None,
        bound_s=bound_s,
    )


def runs_of_stages(estimate: StepEstimate) -> Iterator[tuple[StageEstimate, ...]]:
    """Neighbouring stages of a pipeline on one group."""
    run: list[StageEstimate] = []
    for stage in estimate.stages:
        if run and (run[-1].pipeline, run[-1].group) != (stage.pipeline, stage.group):
            yield tuple(run)
            run = []
        run.append(stage)
    if run:
        yield tuple(run)


def _held(job: Job, estimate: StepEstimate) -> Iterator[str]:
    """Who holds which layers."""
    for run in runs_of_stages(estimate):
        pipeline = job.plan.pipelines[run[0].pipeline]
        worker = pipeline.workers[run[0].stage]
        strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
        layers = [sum(last - first + 1 for first, last in stage.layers) for stage in run]
        stages = "1 stage" if len(run) == 1 else f"{len(run)} stages"
        yield (
            f"pipeline {run[0].pipeline}: {sum(layers)} layers ({shortened(layers)}) on {stages} of {run[0].devices} "
            f"{run[0].group}, {strategy_text(strategy)}, {pipeline.num_micro_batches} x mbs{run[0].mbs}"
        )


def _places(job: Job, estimate: StepEstimate) -> Iterator[Place]:
    """The nodes of every run of stages."""
    starts = dict(
        zip(
            (group.name for group in job.cluster.groups),
            accumulate((group.devices for group in job.cluster.groups), initial=0),
            strict=False,
        )
    )
    per_node = {group.name: group.devices_per_node for group in job.cluster.groups}
    for run in runs_of_stages(estimate):
        group, workers = run[0].group, job.plan.pipelines[run[0].pipeline].workers
        devices = [device for stage in run for pair in workers[stage.stage].devices for device in pair]
        first, last = ((end - starts[group]) // per_node[group] for end in (min(devices), max(devices)))
        yield Place(
            group=group,
            pipeline=run[0].pipeline,
            stages=(run[0].stage, run[-1].stage),
            nodes=(first, last),
            layers=sum(last - first + 1 for stage in run for first, last in stage.layers),
        )


def _slowest(estimate: StepEstimate) -> str:
    """The bottleneck against the mean of the stages."""
    busiest = max(estimate.stages, key=lambda stage: stage.busy_s)
    own = [stage.busy_s for stage in estimate.stages if stage.pipeline == busiest.pipeline]
    above = busiest.busy_s / (sum(own) / len(own)) - 1.0
    return (
        f"slowest stage: stage {busiest.stage} of pipeline {busiest.pipeline} on {busiest.group}, busy "
        f"{seconds(busiest.busy_s)} of the step, {percent(above)} above the mean of its pipeline"
    )


def _sensitive(job: Job, estimate: StepEstimate) -> str:
    """The number whose doubt moves the step the most: links between groups halved, others a fifth lower."""
    used = {stage.group for stage in estimate.stages}
    effects = []
    for said, cluster in _doubted(job, used):
        changed = estimate_plan(job.plan, job.model, cluster, job.workload)
        effects.append((changed.step_time_s / estimate.step_time_s - 1.0, said))
    if not effects:
        return ""
    effect, said = max(effects)
    links = [f"; {s} -> step +{percent(max(e, 0.0))}" for e, s in effects if s.startswith("link") and s != said]
    more = links[0] if len(links) == 1 else ""
    return f"sensitivity: {said} -> step +{percent(max(effect, 0.0))}{more}"


def _weighty(group: NodeGroup, job: Job) -> tuple[str, str]:
    """The two numbers of a group that usually weigh the most: its large products and its outermost links."""
    wide = {"fp8": "fp8", "fp32": "fp32"}.get(job.workload.precision.name, "16-bit")
    return f"{wide} GEMM speed", f"{group.domains[-1].name} bandwidth"


def _doubted(job: Job, used: set[str]) -> Iterator[tuple[str, ClusterSpec]]:
    cluster = job.cluster
    links = cluster.links or tuple(default_links(cluster.groups))
    for number, link in enumerate(links):
        if set(link.between) <= used:
            slower = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / LINK_CHANGE)
            said = f"link {link.between[0]} - {link.between[1]} bandwidth -50% [{link.basis}]"
            yield said, replace(cluster, links=(*links[:number], slower, *links[number + 1 :]))
    for number, group in enumerate(cluster.groups):
        if group.name in used:
            for name, basis, make in (one for one in numbers(group) if one[0] in _weighty(group, job)):
                groups = (*cluster.groups[:number], make(NUMBER_CHANGE), *cluster.groups[number + 1 :])
                yield f"{group.name} {name} -20% [{basis}]", replace(cluster, groups=groups)


def _frameworks(job: Job, estimate: StepEstimate) -> Iterator[str]:
    """Which frameworks can run the plan, and why others cannot."""
    for name, exporter in EXPORTERS.items():
        # That devices are numbered otherwise follows from any unlike stage, and says the least.
        reasons = [problem.why or problem.what for problem in exporter.refused(job)]
        if reasons:
            yield f"{name} cannot run it: {next((r for r in reasons if 'numbered' not in r), reasons[0])}"
        else:
            yield f"{name} can run it: export --to {name}"


def _idle(job: Job, estimate: StepEstimate, *, rented: bool) -> Iterator[str]:
    for group in job.cluster.groups:
        used = sum(stage.devices for stage in estimate.stages if stage.group == group.name)
        if used < group.devices:
            why = "no plan found that uses them is quicker"
            if rented:
                why = "not rented, since no plan found that uses them is better for its price"
            yield f"{group.devices - used} of {group.devices} {group.name} stay idle: {why}"
