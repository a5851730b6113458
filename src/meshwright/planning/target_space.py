"""The part of a search space that a target can run, found by asking it about plain plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.schedules import DEFAULT_SCHEDULES, schedule_named
from meshwright.search.axes import recompute_words, selective_words
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, recompute_fields
from meshwright.specs.shardings import SHARDINGS, grouped_shardings, plain_shardings, searched_shardings, ungrouped
from meshwright.specs.strategy import HALF_PRODUCTS
from meshwright.specs.workload import Workload

_PLAIN_INSTEAD: dict[str, tuple[str, tuple[object, ...]]] = {
    "tensor.overlap": ("tp_overlap", ("bulk",)),
    "expert.dispatcher": ("dispatcher", ("alltoall",)),
    "expert.overlap": ("ep_overlap", ("none",)),
    "expert.shadowed": ("hot_experts", ("kept",)),
    "expert.placed_by_load": ("hot_experts", ("kept",)),
    "expert.prioritised": ("ep_order", ("shared",)),
    "block": ("recompute", ("none", "full")),
}
"""Settings that no plain plan shows: the axis of the field refused, and its values that are not refused for it."""


def plain_instead(space: Space, refusals: Sequence[tuple[Problem, ...]]) -> Space | None:
    """The space without the setting that a target refuses of plans found; None where that is nothing of a setting.

    Args:
        space: that was searched.
        refusals: of each plan found.
    """
    fields = {problem.field for problems in refusals for problem in problems}
    pins = dict(space.pins)
    narrowed = dict(pins)
    for field, (axis, plain) in _PLAIN_INSTEAD.items():
        left = tuple(value for value in pins.get(axis, plain) if value in plain)
        if field in fields and left:
            narrowed[axis] = left
    return None if narrowed == pins else replace(space, pins=tuple(narrowed.items()))


def restricted(
    space: Space,
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    refuses: Callable[[Job], tuple[Problem, ...]],
) -> Space:
    """A space without the settings a target refuses whatever the degrees are.

    Args:
        space: the space.
        model: the model.
        cluster: its first devices hold the plans that are tried.
        workload: the step.
        refuses: what the target refuses of a job.

    Raises:
        UnsupportedError: the target refuses the plainest plan, so that it cannot run this model at all, or everything
            that an axis is pinned to.
    """
    per_node = cluster.groups[0].devices_per_node

    def refused_of(row: PlanRow) -> set[Problem]:
        plan = expand(row, model, workload.seq_len)
        job = Job(model=model, cluster=cluster, workload=workload.with_batch(row.gbs), plan=plan)
        return set(refuses(job))

    plain: PlanRow | None = None
    tried: list[set[Problem]] = []
    for row in _plainest(cluster, model):
        problems = refused_of(row)
        if not problems:
            plain = row
            break
        tried.append(problems)
    if plain is None:
        # What none of them escapes is the reason; the others are those of one plan.
        shared = set.intersection(*tried) or min(tried, key=len)
        raise UnsupportedError(sorted(shared, key=lambda p: p.what), code="MW420")
    pins = dict(space.pins)
    if plain.pp == 1 and cluster.devices >= 4 and model.most_stages >= 2:
        _keep(pins, "pp", (1,), tried[0])
    elif plain.pp == 1 and 2 <= cluster.devices < 4 and model.most_stages >= 2:
        two = replace(plain, pp=2, dp=1, gbs=8, sharding="z0")
        if problems := refused_of(two):
            _keep(pins, "pp", (1,), problems)
    room = cluster.devices // plain.devices >= 2 and plain.devices * 2 <= max(per_node, plain.devices)
    for axis, value in (("tp", 2), ("ep", 2), ("etp", 2)) if room else ():
        if (axis == "tp" or model.is_moe) and (problems := _asked(refused_of, replace(plain, **{axis: value}))):  # type: ignore[arg-type]
            _keep(pins, axis, (1,), _as_searched(problems))
    choices: list[tuple[str, Sequence[object]]] = [
        ("sharding", plain_shardings(*pins.get("sharding", ()))),
        ("schedule", [name for name in pins.get("schedule") or _EVERY["schedule"] if not _chunked(str(name), plain)]),
    ]
    if room:
        asked = [str(kind) for kind in pins.get("cp_kind") or ("p2p", "a2a", "ag")]
        kinds = {kind: _asked(refused_of, replace(plain, cp=((kind, 2),))) for kind in asked}
        if all(kinds.values()):
            _keep(pins, "cp", (1,), kinds[asked[0]])
        elif refusing := set().union(*kinds.values()):
            _keep(pins, "cp_kind", [kind for kind, problems in kinds.items() if not problems], refusing)
    if plain.pp > 1:
        _even_stages(pins, model, cluster, plain, refused_of)
        _chunks_too(pins, model, plain, refused_of)
    for axis, values in choices:
        reasons = {value: refused_of(replace(plain, **{axis: value})) for value in values}  # type: ignore[arg-type]
        refused = {value for value, problems in reasons.items() if problems}
        # A kind with groups is no plain plan: it goes with those of its family.
        refused |= {name for name in grouped_shardings() if refused.issuperset(ungrouped(SHARDINGS[name]))}
        if refused:
            every = dict.fromkeys((*_EVERY[axis], *([plain.schedule] if axis == "schedule" else [])))
            left = [value for value in pins.get(axis) or every if value not in refused]
            _keep(pins, axis, left, set().union(*(reasons.get(value, set()) for value in refused)))
    _recomputes(pins, model, workload, plain, refused_of)
    _offloads(pins, plain, refused_of)
    return replace(space, pins=tuple(pins.items()))


def _recomputes(
    pins: dict[str, tuple[object, ...]],
    model: ModelSpec,
    workload: Workload,
    plain: PlanRow,
    refused_of: Callable[[PlanRow], set[Problem]],
) -> None:
    """Leave out ways to recompute that the target refuses, and look for another selective one that it has."""

    def refused(word: object) -> set[Problem]:
        return refused_of(replace(plain, **recompute_fields(str(word)))) if word != "block" else set()

    every = pins.get("recompute") or recompute_words(model, workload)
    reasons = {word: problems for word in every if (problems := refused(word))}
    if not reasons:
        return
    left = [word for word in every if word not in reasons]
    if "recompute" not in pins and not any(str(word).startswith("sel") for word in left):
        others = (*selective_words(model, workload.attention_kernel)[1:], f"sel-{HALF_PRODUCTS}")
        left += [word for word in others if not refused(word)][:1]
    _keep(pins, "recompute", left, set().union(*reasons.values()))


def _offloads(
    pins: dict[str, tuple[object, ...]], plain: PlanRow, refused_of: Callable[[PlanRow], set[Problem]]
) -> None:
    """Leave out offloads that the target refuses, of several that are tried."""
    tried = {
        one: _asked(refused_of, replace(plain, offload=str(one))) for one in pins.get("offload", ()) if one != "none"
    }
    if len(pins.get("offload", ())) > 1 and any(tried.values()):
        _keep(pins, "offload", [one for one in pins["offload"] if not tried.get(one)], set().union(*tried.values()))


def _even_stages(
    pins: dict[str, tuple[object, ...]],
    model: ModelSpec,
    cluster: ClusterSpec,
    plain: PlanRow,
    refused_of: Callable[[PlanRow], set[Problem]],
) -> None:
    """Leave out pipelines whose stages cannot hold equally many layers, where the target refuses one of them."""
    degrees = [pp for pp in divisors(cluster.devices) if 1 < pp <= model.most_stages]
    odd = next((pp for pp in degrees if model.num_layers % pp), None)
    if odd is None:
        return
    problems = refused_of(replace(plain, pp=odd, dp=1, gbs=4 * odd, sharding="z0"))
    if any(problem.field == "layers" for problem in problems):
        _keep(pins, "pp", [1, *(pp for pp in degrees if model.num_layers % pp == 0)], problems)


def _chunks_too(
    pins: dict[str, tuple[object, ...]],
    model: ModelSpec,
    plain: PlanRow,
    refused_of: Callable[[PlanRow], set[Problem]],
) -> None:
    """Leave out chunks that the target has none of, and schedules of several that it refuses for what they are."""
    if model.num_layers % (2 * plain.pp):
        return
    chunks = refused_of(replace(plain, schedule="interleaved", vpp=2))
    if any(problem.field == "vpp" for problem in chunks):
        _keep(pins, "vpp", (1,), chunks)
        return
    every = pins.get("schedule") or tuple(dict.fromkeys((*_EVERY["schedule"], plain.schedule)))
    found = {
        name: refused_of(replace(plain, schedule=str(name), vpp=2)) for name in every if _chunked(str(name), plain)
    }
    refused = {name: problems for name, problems in found.items() if any(one.field == "schedule" for one in problems)}
    if refused:
        _keep(pins, "schedule", [name for name in every if name not in refused], set().union(*refused.values()))


def _plainest(cluster: ClusterSpec, model: ModelSpec) -> Iterator[PlanRow]:
    """The plans a target is asked about first: with a pipeline and without, copies of the weights and shards."""
    per_node = cluster.groups[0].devices_per_node
    for pp in (2, 1) if cluster.devices >= 4 and model.most_stages >= 2 else (1,):
        dp = 2 if cluster.devices >= 2 * pp else 1
        if pp * dp > per_node and pp * dp % per_node:
            dp = per_node  # whole nodes, as every target wants them
        for schedule in ("1f1b", "gpipe") if pp > 1 else ("1f1b",):
            for sharding in ("z0", "z1", "fsdp"):
                yield PlanRow(pp=pp, dp=dp, gbs=4 * dp * pp, sharding=sharding, schedule=schedule)


def _asked(refused_of: Callable[[PlanRow], set[Problem]], row: PlanRow) -> set[Problem]:
    """What a target refuses of a plan however its states are sharded; nothing where the model cannot be cut so."""
    found = set[Problem]()
    for sharding in dict.fromkeys((row.sharding, "z1", "fsdp")):
        try:
            problems = refused_of(replace(row, sharding=sharding))
        except InputError:
            return set()
        if not problems:
            return set()
        found = found or problems
    return found


def _as_searched(problems: set[Problem]) -> set[Problem]:
    """Refusals with remedies that a search takes: it cuts sequences wherever it cuts matrices."""
    fix = "leave tp out; estimate --plan prices a plan with nosp"
    return {replace(one, fix=fix) if one.field == "tensor.sequence_parallel" else one for one in problems}


def _keep(pins: dict[str, tuple[object, ...]], axis: str, values: Sequence[object], reasons: set[Problem]) -> None:
    """Narrow an axis to values that a target runs.

    Raises:
        UnsupportedError: everything that it is pinned to is refused.
    """
    left = tuple(value for value in values if axis not in pins or value in pins[axis])
    if not left:  # of all that is refused, what was pinned comes first
        raise UnsupportedError(sorted(reasons, key=lambda p: (p.field != axis, p.what)), code="MW420")
    pins[axis] = left


def _chunked(name: str, row: PlanRow) -> bool:
    """Whether it is a usual schedule that needs more chunks than a row has, so that a target cannot be asked so."""
    schedule = schedule_named(name)
    return schedule.searched_by_default and schedule.fewest_chunks(row.pp, row.micro_batches) > row.vpp


_EVERY: dict[str, Sequence[object]] = {
    "sharding": searched_shardings(),
    "schedule": DEFAULT_SCHEDULES,
}
