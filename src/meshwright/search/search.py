"""The best plans of a homogeneous cluster: its spaces searched one after the other, each with a time to beat.

A space is the plans of one tensor strategy and one choice of offload. Where no plan leaves the usual reserve of memory
free, spaces are searched again for those that leave less; recompute of the best is chosen anew layer by layer.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np

from meshwright.budget import spent
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import row_of
from meshwright.search.away import joined_answers, narrow_space, offload_spaces, schedule_spaces, tensor_spaces
from meshwright.search.legal_rows import build_grid
from meshwright.search.one_space import PlainRows, SpaceSearch, fastest_s
from meshwright.search.queue import EQUAL
from meshwright.search.result import FoundPlan, PlanCertificate, SearchResult, SpaceCounts
from meshwright.search.space import Space
from meshwright.search.watching import each_a_part, part
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.lengths import DYNAMIC
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

OPENED_SHARE = 0.1
"""Share of a search beyond the default space that is that space: 2 of 20 s for 70B on 256 H100 (2026-11)."""
REFINED_GAIN = 0.005
"""A plan with recompute chosen per layer is worth showing if it is this much quicker."""


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space: Space | None = None,
    *,
    top: int = 5,
    pareto: bool = False,
    refine: bool = True,
    beat_s: float = np.inf,
) -> SearchResult:
    """The best plans of a homogeneous cluster, with a certificate.

    Args:
        model: the model.
        cluster: one group of equal nodes; every device is used.
        workload: the step.
        space: axes to hold; the whole default space if not given.
        top: how many layouts to return, each with its best settings.
        pareto: whether to find the front of time and memory, to plans 10% slower than the best.
        refine: choose the recompute of every layer anew where the best plans recompute.
        beat_s: seconds of a plan known elsewhere; plans that take longer are none of the answer.

    Returns:
        Plans, front and certificate; no plans if nothing fits, or nothing beats what is known.

    Raises:
        InputError: what is to be kept away needs more than the host states.
        UnsupportedError: the device cannot compute in the workload's precision.
    """
    space = space or Space()
    spaces = [
        one
        for own in tensor_spaces(space)
        for scheduled in schedule_spaces(own, model)
        for one in offload_spaces(scheduled, cluster, workload)
    ]
    in_series = _Series(model, cluster, workload, top, pareto=pareto, refine=refine, known_s=beat_s, near=space.near)
    # What a search finds by default is a time to beat for all that is opened beyond.
    first = None
    if space.opened:
        with part(OPENED_SHARE):
            first = in_series.searched(narrow_space(space))
    # What is away seldom pays: plans that keep everything on their devices are a time to beat for those that do not.
    spaces.sort(key=lambda one: one.pinned("offload") not in (None, ("none",)))
    with part(1.0):
        found = [in_series.searched(one) for one in each_a_part(spaces)]
    if first is not None and not any(one.certificate.space for one in found):
        # A limit left no more than what is searched by default: that is the space of the answer.
        found, first, spaces = [first, *found], None, [narrow_space(space), *spaces]
    if (
        not space.tight
        and np.isinf(beat_s)
        and not any(result.plans for result in (*found, first) if result is not None)
    ):
        # Nothing leaves the usual reserve free: better a tight plan that says so than none.
        found = [in_series.relaxed(one, result) for one, result in zip(spaces, found, strict=True)]
    answer = found[0] if len(found) == 1 and first is None else joined_answers(found, top, first)
    if answer.plans and space.near < np.inf:
        last_s = answer.plans[0].estimate.step_time_s * space.near
        answer = replace(answer, plans=tuple(plan for plan in answer.plans if plan.estimate.step_time_s <= last_s))
    if np.isinf(beat_s):
        return answer
    # Of plans that take longer some were dropped, so that the first of those left need not be the best of them.
    quick = tuple(plan for plan in answer.plans if plan.estimate.step_time_s <= beat_s * (1.0 + EQUAL))
    proven = replace(answer.certificate, optimal=answer.certificate.optimal and bool(quick))
    return replace(answer, plans=quick, certificate=proven)


class _Series:
    """Searches of disjoint spaces, one after the other: what one has found is to be beaten in the next."""

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        workload: Workload,
        top: int,
        *,
        pareto: bool,
        refine: bool,
        known_s: float,
        near: float,
    ) -> None:
        self.known_s, self.near = known_s, near
        """Seconds of a plan of no space, which any has to beat; and how many times the quickest's one may take."""
        self.model, self.cluster, self.workload, self.top, self.pareto = model, cluster, workload, top, pareto
        self.refine = refine and workload.packing != DYNAMIC
        """Whether the recompute of every layer is chosen anew."""
        self.quickest: dict[tuple[int, ...], float] = {}
        """Seconds of the best plan found of each layout."""
        self.plain: dict[object, PlainRows] = {}
        """Rows and their bounds where nothing is away, by what else their space is held to."""
        self.may_fit_tightly: dict[Space, bool] = {}
        self.stopped = ""
        """The limit that a space was not searched whole for."""
        self.fastest_s = np.inf
        """No plan takes fewer seconds; known as soon as one is found."""

    @property
    def beat_s(self) -> float:
        """A plan above this is none of the answer, whatever space it is of; the front may want any."""
        times = sorted(self.quickest.values())
        wanted = self.pareto or self.workload.packing == DYNAMIC
        found_s = min([np.inf, *times[self.top - 1 : self.top], *(time_s * self.near for time_s in times[:1])])
        return np.inf if wanted else min(found_s, self.known_s) * (1.0 + EQUAL)

    def searched(self, space: Space) -> SearchResult:
        """The best plans of a space; those that are none of the answer, for others have been found, may be missing."""
        return self._searched(space, refine=self.refine)

    def _searched(self, space: Space, *, refine: bool) -> SearchResult:
        if self.fastest_s < np.inf and (limit := spent() or self.stopped):
            return unseen(limit, self.fastest_s)
        started, here = time.perf_counter(), frozenset(pin for pin in space.pins if pin[0] != "offload")
        run = SpaceSearch(self.model, self.cluster, self.workload, space, self.top, pareto=self.pareto)
        run.beat_s, run.plain = self.beat_s, self.plain.get(here)
        result = run.run(started)
        self.may_fit_tightly[space] = run.may_fit_tightly
        if refine and result.plans and not spent() and space.pinned("recompute") is None:
            plans = _refined(result.plans, self.model, self.cluster, self.workload)[: self.top]
            # A plan whose layers recompute one by one lies outside the space; nothing inside is quicker than it either.
            bound_s = min(result.certificate.bound_step_time_s or np.inf, plans[0].estimate.step_time_s)
            result = replace(result, plans=plans, certificate=replace(result.certificate, bound_step_time_s=bound_s))
        self.stopped = self.stopped or result.certificate.stopped
        for plan in result.plans:
            self.fastest_s = min(self.fastest_s, fastest_s(plan.estimate))
            if plan.row is not None:
                known_s = self.quickest.get(plan.row.layout, np.inf)
                self.quickest[plan.row.layout] = min(known_s, plan.estimate.step_time_s)
        if run.plain is not None:
            self.plain[here] = run.plain.within(self.beat_s)
        return result

    def relaxed(self, space: Space, result: SearchResult) -> SearchResult:
        """The best plans that leave less than the usual reserve; what was found, nothing, where there are none."""
        if result.certificate.stopped or not self.may_fit_tightly[space]:
            return result
        tight = self._searched(replace(space, tight=True), refine=False)
        return replace(tight, relaxed=bool(tight.plans))


def _refined(
    plans: tuple[FoundPlan, ...], model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> tuple[FoundPlan, ...]:
    """The plans, and before them those that choosing recompute layer by layer makes quicker; quickest first."""
    found = list(plans)
    recomputing = {
        plan.row: plan
        for plan in plans
        if plan.row and plan.row.recompute != "none" and schedule_named(plan.row.schedule).bound_by_formula
    }
    if recomputing:
        from meshwright.search.recompute import refine_recompute  # many plans have room for everything

        refined = refine_recompute([*recomputing], model, cluster, workload)
        for plan, better in zip(recomputing.values(), refined, strict=True):
            if better is None or better[1].fits != "yes":
                continue
            execution, estimate = better
            if estimate.step_time_s < plan.estimate.step_time_s * (1.0 - REFINED_GAIN):
                found.append(FoundPlan(row=row_of(execution, model), plan=execution, estimate=estimate))
    return tuple(sorted(found, key=lambda plan: plan.estimate.step_time_s))


def unseen(limit: str, least_s: float) -> SearchResult:
    """The answer of a space that was not looked at.

    Args:
        limit: why.
        least_s: no plan takes fewer seconds.
    """
    counts = SpaceCounts()
    counts.stop(limit, least_s)
    proven = counts.certificate(optimal=False, started=time.perf_counter())
    certificate = PlanCertificate(
        **{field.name: getattr(proven, field.name) for field in fields(proven)}, bound_step_time_s=least_s
    )
    return SearchResult(plans=(), pareto=(), certificate=certificate, relaxed=False)


def price_all(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space | None = None, *, rows: int | None = None
) -> tuple[int, float]:
    """Price a space without pruning, for measuring: every plan's time bound and memory.

    Args:
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.
        space: the whole default space if not given.
        rows: only this many rows, evenly spread over the space.

    Returns:
        Plans priced and seconds taken.
    """
    run = SpaceSearch(model, cluster, workload, space or Space(tight=True), 1, pareto=False)
    started = time.perf_counter()
    grid = build_grid(model, workload, cluster.devices, run.space)
    if rows is not None and rows < grid.rows:
        grid = grid.take(np.linspace(0, grid.rows - 1, rows).astype(np.int64))
    for block in (run.whole_block(rows) for rows in run.rows(grid)):
        if block is None:
            continue
        _, priced, _ = block.price(block.allowed, np.inf, spare=False)
        run.counts.priced += priced
    return run.counts.priced, time.perf_counter() - started
