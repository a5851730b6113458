"""Plans composed of what chosen parallelizers answer for slices, each priced in full by `estimate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwright.app.mixing_facts import mixing_of
from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import space_of
from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named
from meshwright.planning.composed_search import Composed, ComposedSearch
from meshwright.planning.composition import MOST_SKIPS, Composition, PlannedSlice
from meshwright.planning.island_search import IslandSearch
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.mixing import Mixing, Subset
from meshwright.planning.one_kind import find_plans
from meshwright.planning.plan_shape import title
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.titles import strategy_text
from meshwright.report.words.verdict import RunnerUp, Verdict, against, reasons, sentence
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.seam import Parallelizer

PRICED = 16
"""Compositions that fit and are priced in full for an answer."""
ALONE = 4
"""Likewise for each kind of device by itself."""
OWN_COMPOSED = 4
"""Compositions of our own search that an answer over several kinds of device is compared with."""

Names = str | Parallelizer | Iterable[str | Parallelizer]


def check_composed(**options: object) -> None:
    """Refuse options that a chosen parallelizer cannot be held to.

    Args:
        options: by the name of the command line, those that were not given None, empty or False.

    Raises:
        InputError: any was given; all of them together.
    """
    problems = [
        Problem(
            what=f"--{name.replace('_', '-')} with --parallelizer",
            why="each parallelizer chooses the degrees of its slices itself, and the composition is by time under 1F1B",
            fix=f"leave --{name.replace('_', '-')} or --parallelizer out",
            field=name,
        )
        for name, value in options.items()
        if value
    ]
    if problems:
        raise InputError(problems, code="MW219")


def plan_composed(inputs: JobInputs, parallelizers: Names, *, top: int = 5) -> PlanSet:
    """The best plans that parallelizers' partial plans make.

    Args:
        inputs: model, cluster and workload.
        parallelizers: `native,calculon`, `module:Class`, or objects.
        top: how many plans.

    Returns:
        The plans, best first by `estimate`, with who planned what and what was skipped.

    Raises:
        InputError: what is named is no parallelizer.
        UnsupportedError: unknown names, or packages that are missing.
        InfeasibleError: no parallelizer answered anything that fits.
    """
    asked = parallelizers_named(parallelizers)
    search = ComposedSearch(inputs, asked)
    found = search.best(range(len(inputs.cluster.groups)), PRICED)
    if not found:
        raise _nothing(search)
    return _answer(search, found, top)


def _answer(search: ComposedSearch, found: Sequence[Composed], top: int) -> PlanSet:
    inputs = search.inputs
    plans = tuple(
        RankedPlan(rank=rank, job=_job(inputs, one), row=one.row, estimate=one.estimate)
        for rank, one in enumerate(found[: max(top, 2)], start=1)
    )
    best = plans[0]
    own = _own_search(inputs)
    composition = Composition(
        parallelizers=search.names,
        step_time_s=best.estimate.step_time_s,
        claimed_s=tuple(one.claimed_s for one in found[:top]),
        slices=_slices(inputs.cluster, found[0]),
        skips=search.skips(),
        counts=dict(search.counts),
        own=own[0] if own else "",
        own_s=own[1] if own else None,
        tight=best.estimate.fits != "yes",
    )
    mixing = None if inputs.cluster.homogeneous else _mixing(search, best)
    worth = (composition.searched(),) if mixing is None else replace(mixing, held=()).lines()
    warnings = ["no plan leaves 8% of the memory free; these leave less"] if best.estimate.fits != "yes" else []
    warnings += mixing.idle if mixing is not None else ()
    if mixing is None and best.plan.devices < inputs.cluster.devices:
        idle = inputs.cluster.devices - best.plan.devices
        warnings.append(
            f"{idle} of {inputs.cluster.devices} devices stay idle: no plan found that uses them is quicker"
        )
    return PlanSet(
        model=inputs.model,
        cluster=inputs.cluster,
        workload=inputs.workload,
        assumptions=(
            *inputs.assumptions,
            Assumption(name="parallelizers", value=", ".join(composition.parallelizers), basis="assumed"),
        ),
        verdict=Verdict(
            text=" ".join([sentence(best.job, best.estimate), *([mixing.worth()] if mixing else [])]),
            why=(
                *(f"it is: {line}" for line in best.identities()[:1]),
                *reasons(best.job, best.estimate, None, "time"),
                *composition.lines(),
                *worth,
            ),
            runner_up=_runner_up(plans),
        ),
        plans=plans[:top],
        warnings=tuple(warnings),
        run=whole_run(best.job, best.estimate),
        mixing=mixing,
        composition=composition,
    )


def _mixing(search: ComposedSearch, best: RankedPlan) -> Mixing:
    """What several kinds of device are worth together, by the same parallelizers."""
    alone = []
    for number, group in enumerate(search.inputs.cluster.groups):
        found = search.best([number], ALONE)
        step_time_s = found[0].estimate.step_time_s if found else None
        alone.append(Subset(said=f"{group.devices} {group.name}", step_time_s=step_time_s))
    return mixing_of(best.job, best.estimate, alone=tuple(alone), without=(), counts=dict(search.counts), rented=False)


def _job(inputs: JobInputs, one: Composed) -> Job:
    name = one.row.format() if one.row else None
    return Job(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, plan=one.plan, name=name)


def _runner_up(plans: Sequence[RankedPlan]) -> RunnerUp | None:
    if len(plans) < 2:
        return None
    best, other = plans[0], plans[1]
    return RunnerUp(
        name=other.name,
        title=other.title,
        step_time_s=other.estimate.step_time_s,
        loses_because=against(best.estimate, other.estimate),
    )


def _slices(cluster: ClusterSpec, one: Composed) -> tuple[PlannedSlice, ...]:
    """Every stage with its planner's word and ours."""
    priced = {(stage.pipeline, stage.stage): stage for stage in one.estimate.stages}
    found = []
    for number, pipeline in enumerate(one.blend.pipelines):
        for place, stage in enumerate(pipeline.stages):
            own = priced[number, place]
            runs = [(run.layers, strategy_text(stage.plan.strategies[run.strategy])) for run in stage.plan.runs]
            found.append(
                PlannedSlice(
                    pipeline=number,
                    stage=place,
                    layers=(stage.first, stage.last),
                    group=cluster.groups[stage.group].name,
                    devices=stage.plan.devices,
                    parallelizer=stage.parallelizer,
                    strategies=tuple(f"{layers} x {text}" if len(runs) > 1 else text for layers, text in runs),
                    claimed_s=stage.micro_batch_s,
                    priced_s=own.busy_s / one.plan.pipelines[number].num_micro_batches,
                )
            )
    return tuple(found)


def _own_search(inputs: JobInputs) -> tuple[str, float] | None:
    """Title and step of the best plan of our own search; None where it finds none."""
    model, cluster, workload = inputs.model, inputs.cluster, inputs.workload

    def space_for(part: ClusterSpec) -> Space:
        return space_of(model, workload, part.devices)

    try:
        if cluster.homogeneous:
            plans = find_plans(model, cluster, workload, space_for, top=1).result.plans
            if not plans:
                return None
            name = plans[0].row.format() if plans[0].row else None
            return title(plans[0].plan, model, name), plans[0].estimate.step_time_s
        run = IslandSearch(inputs, space_for)
        every = range(len(cluster.groups))
        able = [*run.composed(every, OWN_COMPOSED), *(one for g in every if (one := run.alone(g)) is not None)]
    except MeshwrightError:
        return None
    if not able:
        return None
    best = min(able, key=lambda one: one.step_time_s)
    job = Job(model=model, cluster=cluster, workload=workload, plan=best.plan)
    return RankedPlan(rank=1, job=job, row=best.row, estimate=best.estimate).title, best.step_time_s


def _nothing(search: ComposedSearch) -> InfeasibleError:
    """Nobody answered anything that fits, and why."""
    model, cluster, counts = search.inputs.model, search.inputs.cluster, search.counts
    said = f"{counts['partial plans']:,} partial plans answered to {counts['questions']:,} questions"
    first = Problem(
        what=f"no plan of {model.name} on {cluster.name} was found with {', '.join(search.names)}",
        why=f"no pipeline of the {said} fits",
        fix="name another parallelizer beside: --parallelizer native",
        field="parallelizer",
    )
    skips = [Problem(what=f"skipped: {line}", field="parallelizer") for line in search.skips()[:MOST_SKIPS]]
    return InfeasibleError([first, *skips])
