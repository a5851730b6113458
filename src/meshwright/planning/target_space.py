"""The part of a search space that a target can run, found by asking it about plain plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.schedules import DEFAULT_SCHEDULES, schedule_named
from meshwright.search.axes import AXES, PREFETCHES, WAY_AXES, recompute_words, searched_values, selective_words
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, recompute_fields
from meshwright.specs.shardings import SHARDINGS, grouped_shardings, plain_shardings, searched_shardings, ungrouped
from meshwright.specs.strategy import HALF_PRODUCTS
from meshwright.specs.workload import Workload

_FIELDS_OF_WAYS = {
    "dispatcher": ("expert.dispatcher",),
    "ep_overlap": ("expert.overlap",),
    "hot_experts": ("expert.shadowed", "expert.placed_by_load"),
    "ep_order": ("expert.prioritised",),
}
"""What a target refuses of a plan for its value of an axis of `WAY_AXES`."""
_PLAIN_INSTEAD: dict[str, tuple[str, tuple[object, ...]]] = {
    "tensor.overlap": ("tp_overlap", ("bulk",)),
    "expert.dispatcher": ("dispatcher", ("alltoall",)),
    "expert.overlap": ("ep_overlap", ("none",)),
    "expert.shadowed": ("hot_experts", ("kept",)),
    "expert.placed_by_load": ("hot_experts", ("kept",)),
    "expert.prioritised": ("ep_order", ("shared",)),
    "block": ("recompute", ("none", "full")),
    "data.prefetch": ("prefetch", ("1",)),
}
"""Settings that no plain plan shows: the axis of the field refused, and its values that are not refused for it."""


def plain_instead(space: Space, refusals: Sequence[tuple[Problem, ...]]) -> Space | None:
    """The space without the setting that a target refuses of plans found; None where that is nothing of a setting.

    Args:
        space: the space that was searched.
        refusals: the refusals of each plan found.
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
    target = _Target(model, cluster, workload, refuses)
    plain, refused = _plain_plan(target)
    narrowed = _Narrowed(target, plain, dict(space.pins))
    narrowed.stages(refused)
    alone = plain if target.has_room_for_twice(plain) else replace(plain, dp=1, sharding="z0")
    if target.has_room_for_twice(alone):  # two devices have two copies, or two ranks of another kind
        beside = replace(narrowed, plain=alone)
        beside.degrees()
        beside.expert_ways()
        beside.contexts()
        beside.halves()
    if plain.pp > 1:
        narrowed.uneven_stages()
        narrowed.chunks()
    narrowed.shardings()
    narrowed.prefetches()
    narrowed.schedules()
    narrowed.recomputes()
    narrowed.offloads()
    return replace(space, pins=tuple(narrowed.pins.items()))


@dataclass(frozen=True)
class _Target:
    """What can be asked of a target: whether it runs a plan of this model on this cluster."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    refuses: Callable[[Job], tuple[Problem, ...]]

    @property
    def can_have_stages(self) -> bool:
        """Whether a plan of two copies of two stages is one of this model and cluster."""
        return self.cluster.devices >= 4 and self.model.most_stages >= 2

    def refused(self, row: PlanRow) -> set[Problem]:
        """What it refuses of a plan."""
        plan, workload = _plan(row, self.model, self.workload.seq_len), _with_batch(self.workload, row.gbs)
        return set(self.refuses(Job(model=self.model, cluster=self.cluster, workload=workload, plan=plan)))

    def refused_however_sharded(self, row: PlanRow) -> set[Problem]:
        """What it refuses of a plan however its states are sharded; nothing where the model cannot be cut so."""
        found = set[Problem]()
        for sharding in dict.fromkeys((row.sharding, "z1", "fsdp")):
            try:
                problems = self.refused(replace(row, sharding=sharding))
            except InputError:
                return set()
            if not problems:
                return set()
            found = found or problems
        return found

    def has_room_for_twice(self, row: PlanRow) -> bool:
        """Whether a degree of two more leaves a plan inside a node, or no wider across nodes than it is."""
        most = max(self.cluster.groups[0].devices_per_node, row.devices)
        return 2 * row.devices <= min(self.cluster.devices, most)


# Trainers are asked about the same plans, one after the other.
_plan = lru_cache(maxsize=256)(expand)
_with_batch = lru_cache(maxsize=16)(Workload.with_batch)


def _plain_plan(target: _Target) -> tuple[PlanRow, set[Problem]]:
    """The plainest plan that a target runs, and what it refuses of the plainest of all.

    Raises:
        UnsupportedError: it runs none of them.
    """
    tried: list[set[Problem]] = []
    for row in _plainest(target):
        problems = target.refused(row)
        if not problems:
            return row, tried[0] if tried else set()
        tried.append(problems)
    # What none of them escapes is the reason; the others are those of one plan.
    shared = set.intersection(*tried) or min(tried, key=len)
    raise UnsupportedError(sorted(shared, key=lambda p: p.what), code="MW420")


@dataclass(frozen=True)
class _Narrowed:
    """The values that each axis keeps, less those that a target refuses beside a plain plan."""

    target: _Target
    plain: PlanRow
    pins: dict[str, tuple[object, ...]]

    def refused(self, **changed: object) -> set[Problem]:
        """What is refused of the plain plan with one thing changed."""
        return self.target.refused(replace(self.plain, **changed))  # type: ignore[arg-type]

    def keep(self, axis: str, values: Iterable[object], reasons: set[Problem]) -> None:
        """Narrow an axis to values that the target runs.

        Raises:
            UnsupportedError: everything that it is pinned to is refused.
        """
        left = tuple(value for value in values if axis not in self.pins or value in self.pins[axis])
        if not left:  # of all that is refused, what was pinned comes first
            raise UnsupportedError(sorted(reasons, key=lambda p: (p.field != axis, p.what)), code="MW420")
        self.pins[axis] = left

    def leave_out(self, axis: str, every: Iterable[object], refused: Mapping[object, set[Problem]]) -> None:
        """Narrow an axis to those of its values that nothing is refused of."""
        if refused:
            left = [value for value in every if value not in refused]
            self.keep(axis, left, set().union(*refused.values()))

    def stages(self, refused: set[Problem]) -> None:
        """Leave out pipelines where the plain plan has none because the target refuses them."""
        if self.plain.pp > 1 or self.target.cluster.devices < 2 or self.target.model.most_stages < 2:
            return
        if not self.target.can_have_stages:  # two stages were not among the plain plans
            refused = self.refused(pp=2, dp=1, gbs=8, sharding="z0")
        if refused:
            self.keep("pp", (1,), refused)

    def degrees(self) -> None:
        """Leave out tensor and expert parallelism where two ranks are refused."""
        for axis in ("tp", "ep", "etp") if self.target.model.is_moe else ("tp",):
            row = replace(self.plain, **{axis: 2})  # type: ignore[arg-type]
            if problems := self.target.refused_however_sharded(row):
                self.keep(axis, (1,), _as_searched(problems))

    def expert_ways(self) -> None:
        """Leave out ways of tokens to experts, and what runs beside them, that are refused for what they are."""
        if not self.target.model.is_moe or self.pins.get("ep") == (1,):
            return
        loads = self.target.workload.expert_load is not None
        searched = dict(zip(WAY_AXES, searched_values(loads=loads), strict=True))
        for axis, fields in _FIELDS_OF_WAYS.items():
            every = self.pins.get(axis) or searched[axis]
            if len(every) == 1:
                continue
            rows = {way: replace(self.plain, ep=2, **_way_field(axis, str(way))) for way in every}
            found = {way: self.target.refused_however_sharded(row) for way, row in rows.items()}
            refused = {way: p for way, p in found.items() if p and all(problem.field in fields for problem in p)}
            self.leave_out(axis, every, refused)

    def contexts(self) -> None:
        """Leave out kinds of context parallelism that are refused, or all of it."""
        plain = AXES["cp_kind"].neutral
        named = [str(kind) for kind in self.pins.get("cp_kind") or (plain, "p2p", "a2a", "ag")]
        asked = [kind for kind in named if kind != plain]
        if not asked:
            return
        rows = {kind: replace(self.plain, cp=((kind, 2),)) for kind in asked}
        refused: dict[object, set[Problem]] = {
            kind: problems for kind, row in rows.items() if (problems := self.target.refused_however_sharded(row))
        }
        if len(refused) == len(asked):
            self.keep("cp", (1,), refused[asked[0]])
        else:
            self.leave_out("cp_kind", named, refused)

    def uneven_stages(self) -> None:
        """Leave out pipelines whose stages cannot hold equally many layers, where one of them is refused."""
        model = self.target.model
        degrees = [pp for pp in divisors(self.target.cluster.devices) if 1 < pp <= model.most_stages]
        odd = next((pp for pp in degrees if model.num_layers % pp), None)
        if odd is None:
            return
        problems = self.refused(pp=odd, dp=1, gbs=4 * odd, sharding="z0")
        if any(problem.field == "layers" for problem in problems):
            self.keep("pp", [1, *(pp for pp in degrees if model.num_layers % pp == 0)], problems)

    def chunks(self) -> None:
        """Leave out chunks where there are none, and schedules of several that are refused for what they are."""
        if self.target.model.num_layers % (2 * self.plain.pp):
            return
        chunks = self.refused(schedule="interleaved", vpp=2)
        if any(problem.field == "vpp" for problem in chunks):
            self.keep("vpp", (1,), chunks)
            return
        every = self._every_schedule()
        found = {name: self.refused(schedule=name, vpp=2) for name in every if _chunked(name, self.plain)}
        refused: dict[object, set[Problem]] = {
            name: problems for name, problems in found.items() if any(one.field == "schedule" for one in problems)
        }
        self.leave_out("schedule", every, refused)

    def shardings(self) -> None:
        """Leave out ways to shard states; one with groups, which no plain plan has, goes with those of its family."""
        every = self.pins.get("sharding") or tuple(searched_shardings())
        asked = plain_shardings(*self.pins.get("sharding", ()))
        refused: dict[object, set[Problem]] = {
            name: problems for name in asked if (problems := self.refused(sharding=name))
        }
        for name in grouped_shardings():
            if refused.keys() >= set(ungrouped(SHARDINGS[name])):
                refused.setdefault(name, set())
        self.leave_out("sharding", every, refused)

    def halves(self) -> None:
        """Leave out halves of micro-batches where tensor ranks that overlap them are refused, of several overlaps."""
        every = self.pins.get("tp_overlap", ())
        if len(every) > 1 and "halves" in every and self.pins.get("tp") != (1,):
            row = replace(self.plain, tp=2, mbs=2, gbs=2 * self.plain.gbs, tp_overlap="halves")
            problems = self.target.refused_however_sharded(row)
            self.leave_out("tp_overlap", every, {"halves": problems} if problems else {})

    def prefetches(self) -> None:
        """Leave out depths of prefetching that are refused, of several that are tried."""
        every = self.pins.get("prefetch", ())
        if len(every) > 1:
            words = [str(depth) for depth in PREFETCHES[1:] if str(depth) in every]
            rows = {word: replace(self.plain, sharding="fsdp", data_words=(f"prefetch{word}",)) for word in words}
            refused: dict[object, set[Problem]] = {
                word: p for word, row in rows.items() if (p := self.target.refused(row))
            }
            self.leave_out("prefetch", every, refused)

    def schedules(self) -> None:
        """Leave out schedules that are refused of one chunk a stage."""
        every = self._every_schedule()
        asked = [name for name in every if not _chunked(name, self.plain)]
        self.leave_out("schedule", every, {name: p for name in asked if (p := self.refused(schedule=name))})

    def recomputes(self) -> None:
        """Leave out ways to recompute that are refused, and look for another selective one."""

        def refused(word: object) -> set[Problem]:
            """Refusals of a way to recompute; layers of a block say nothing of whether blocks are refused."""
            if word != "block":
                return self.refused(**recompute_fields(str(word)))
            problems = self.refused(recompute="block", recompute_layers=1)
            return {problem for problem in problems if problem.field == "block"}

        model, workload = self.target.model, self.target.workload
        every = self.pins.get("recompute") or recompute_words(model, workload)
        reasons = {word: problems for word in every if (problems := refused(word))}
        if not reasons:
            return
        left = [word for word in every if word not in reasons]
        if "recompute" not in self.pins and not any(str(word).startswith("sel") for word in left):
            others = (*selective_words(model, workload.attention_kernel)[1:], f"sel-{HALF_PRODUCTS}")
            left += [word for word in others if not refused(word)][:1]
        self.keep("recompute", left, set().union(*reasons.values()))

    def offloads(self) -> None:
        """Leave out offloads that are refused, of several that are tried."""
        every = self.pins.get("offload", ())
        if len(every) > 1:
            rows = {one: replace(self.plain, offload=str(one)) for one in every if one != "none"}
            refused = {one: p for one, row in rows.items() if (p := self.target.refused_however_sharded(row))}
            self.leave_out("offload", every, refused)

    def _every_schedule(self) -> tuple[str, ...]:
        """Schedules that are searched, and that of the plain plan where none is pinned."""
        pinned = self.pins.get("schedule")
        return tuple(str(name) for name in pinned or dict.fromkeys((*DEFAULT_SCHEDULES, self.plain.schedule)))


def _plainest(target: _Target) -> Iterator[PlanRow]:
    """The plans a target is asked about first: with a pipeline and without, copies of the weights and shards."""
    cluster = target.cluster
    per_node = cluster.groups[0].devices_per_node
    for pp in (2, 1) if target.can_have_stages else (1,):
        dp = 2 if cluster.devices >= 2 * pp else 1
        if pp * dp > per_node and pp * dp % per_node:
            dp = per_node  # whole nodes, as every target wants them
        for schedule in ("1f1b", "gpipe") if pp > 1 else ("1f1b",):
            for sharding in ("z0", "z1", "fsdp"):
                yield PlanRow(pp=pp, dp=dp, gbs=4 * dp * pp, sharding=sharding, schedule=schedule)


def _way_field(axis: str, value: str) -> dict[str, Any]:
    """The field of a row that says a value of an axis of `WAY_AXES`."""
    return {"prioritised": value == "first"} if axis == "ep_order" else {axis: value}


def _as_searched(problems: set[Problem]) -> set[Problem]:
    """Refusals with remedies that a search takes: it cuts sequences wherever it cuts matrices."""
    fix = "leave tp out; estimate --plan prices a plan with nosp"
    return {replace(one, fix=fix) if one.field == "tensor.sequence_parallel" else one for one in problems}


def _chunked(name: str, row: PlanRow) -> bool:
    """Whether it is a usual schedule that needs more chunks than a row has, so that a target cannot be asked so."""
    schedule = schedule_named(name)
    return schedule.searched_by_default and schedule.fewest_chunks(row.pp, row.micro_batches) > row.vpp
