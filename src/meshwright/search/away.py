"""Spaces of several offloads, tensor strategies and kinds of schedule: what each holds, and their answers joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from meshwright.errors import InputError
from meshwright.estimate.rules.away import host_problems, update_problems
from meshwright.schedules import DEFAULT_SCHEDULES, schedule_named
from meshwright.search.axes import AXES, PREFETCHES, WAY_AXES, searched_values
from meshwright.search.result import FoundPlan, SearchResult
from meshwright.search.space import Space, usual_overlaps
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import offload_of
from meshwright.specs.shardings import searched_shardings
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS


def offload_spaces(space: Space, cluster: ClusterSpec, workload: Workload) -> list[Space]:
    """Spaces of one value of the axis each; those whose host cannot take it are left out where there are several.

    Raises:
        InputError: the one that is asked for needs what the host does not have.
    """
    values = space.pinned("offload")
    if values is None:
        return [space]
    found, problems = [], []
    for value in map(str, values):
        wrong = []
        if value != "none":
            away = offload_of(value)
            wrong = [*host_problems(away, cluster.groups[0]), *update_problems(away, workload)]
        problems += wrong
        if not wrong:
            found.append(pinned_to(space, offload=(value,)))
    if not found:
        raise InputError(tuple(dict.fromkeys(problems)), code="MW205")
    return found


def tensor_spaces(space: Space) -> list[Space]:
    """Spaces of one tensor strategy each: bounds of a row are those of its strategy.

    Args:
        space: the space that may name several.
    """
    values = space.pinned("tensor") or ("1d",)
    if len(values) == 1:
        return [space]
    return [pinned_to(space, tensor=(value,)) for value in values]


def schedule_spaces(space: Space, model: ModelSpec) -> list[Space]:
    """Spaces of schedules whose bounds are formulas, and of those that are sketched first, where the axis is opened.

    Args:
        space: the space that may name schedules of both kinds.
        model: one worker runs its micro-batches one after the other, whatever the schedule is called.
    """
    if "schedule" not in space.opened:
        return [space]
    names = tuple(map(str, space.pinned("schedule") or ()))
    formulas = tuple(name for name in names if schedule_named(name).bound_by_formula)
    sketched = tuple(name for name in names if name not in formulas)
    if not formulas or not sketched:
        return [space]
    workers = tuple(pp for pp in space.pinned("pp") or range(2, model.most_stages + 1) if pp != 1)
    return [pinned_to(space, schedule=formulas), pinned_to(space, schedule=sketched, pp=workers)]


def narrow_space(space: Space) -> Space:
    """What a search goes through by default of a space with opened axes, as far as it may."""
    usual: dict[str, Sequence[str]] = {
        "schedule": DEFAULT_SCHEDULES,
        **dict(zip(WAY_AXES, searched_values(), strict=True)),
        "offload": ("none",),
        "tensor": ("1d",),
        "sharding": searched_shardings(),
        "tp_overlap": usual_overlaps("1d"),
        "prefetch": (str(PREFETCHES[0]),),
        "cp_kind": tuple(kind for kind in AXES["cp_kind"].values() if _tried(kind)),
    }
    narrow: dict[str, tuple[object, ...]] = {}
    for axis in space.opened:
        values = space.pinned(axis) or ()
        both = tuple(value for value in values if value in usual[axis])
        if len(both) < len(usual[axis]):
            narrow[axis] = both or values[:1]
    kept = tuple((axis, values) for axis, values in space.pins if axis not in space.opened)
    return replace(space, pins=(*kept, *narrow.items()), opened=())


def _tried(kind: str) -> bool:
    """Whether a search tries a kind of context, or the inner of two, unasked."""
    inner, _, _ = kind.partition("+")
    return inner not in CONTEXTS or CONTEXTS[inner].searched


def pinned_to(space: Space, **pins: tuple[object, ...]) -> Space:
    """A space whose axes are held to these values instead."""
    return replace(space, pins=tuple((dict(space.pins) | pins).items()))


def joined_answers(results: Sequence[SearchResult], top: int, first: SearchResult | None = None) -> SearchResult:
    """The answers of disjoint spaces as one: the best plan of each layout, counts added up.

    Args:
        results: the results, at least one; those that leave the usual memory reserve free go before others.
        top: how many layouts.
        first: the result of a part of these spaces, where one was searched before: nothing else counts its members.
    """
    able = [one for one in (*results, first) if one is not None and one.plans]
    free = [one for one in able if not one.relaxed] or able
    plans: dict[object, FoundPlan] = {}
    for plan in sorted((plan for one in free for plan in one.plans), key=lambda plan: plan.estimate.step_time_s):
        plans.setdefault(plan.row.layout if plan.row else plan.plan, plan)
    unseen = [one for one in results if not one.plans and one.certificate.stopped]
    bounds = [one.certificate.bound_step_time_s for one in (*free, *unseen)]
    certificate = replace(
        results[0].certificate,
        space=sum(one.certificate.space for one in results),
        priced=sum(one.certificate.priced for one in results),
        feasible=sum(one.certificate.feasible for one in results),
        effort=_summed([one.certificate.effort for one in results]),
        pruned=_summed([one.certificate.pruned for one in results]),
        optimal=bool(free) and not unseen and all(one.certificate.optimal for one in free if one is not first),
        bound_step_time_s=min((bound for bound in bounds if bound is not None), default=None),
        search_s=sum(one.certificate.search_s for one in (*results, first) if one is not None),
        stopped=next((one.certificate.stopped for one in results if one.certificate.stopped), ""),
    )
    return SearchResult(
        plans=tuple(plans.values())[:top],
        pareto=_front([plan for one in free for plan in one.pareto]),
        certificate=certificate,
        relaxed=bool(free) and free[0].relaxed,
    )


def _summed(parts: Sequence[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    total = Counter[str]()
    for part in parts:
        total.update(dict(part))
    return tuple(sorted(total.items()))


def _front(plans: Sequence[FoundPlan]) -> tuple[FoundPlan, ...]:
    """Plans that no other beats in time and memory at once."""
    found: list[FoundPlan] = []
    for plan in sorted(plans, key=lambda one: (one.estimate.step_time_s, one.estimate.peak_memory_bytes)):
        if not found or plan.estimate.peak_memory_bytes < found[-1].estimate.peak_memory_bytes:
            found.append(plan)
    return tuple(found)
