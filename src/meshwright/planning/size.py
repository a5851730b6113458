"""How many devices are enough: counts from few to many, searched only where their bound leaves the goal open."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from meshwright.budget import spent
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.needed_flop import step_flop
from meshwright.estimate.sequences import tokens_of_step
from meshwright.formats.cluster import node_group
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.count_bound import OutOfLimitsError, least_of_any_count, least_of_count_s
from meshwright.planning.fewer_nodes import is_round
from meshwright.planning.goodput import goodput
from meshwright.planning.one_kind import BestPlans, Search, find_plans
from meshwright.planning.plan_shape import title
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.size_goal import CurvePoint, Goal
from meshwright.planning.whole_run import whole_run
from meshwright.search.block import ROUNDING
from meshwright.search.geometry import check_searched
from meshwright.search.result import SearchResult
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.device import DeviceSpec
from meshwright.units import DAY_S

MOST_DEVICES = 65_536
BEYOND_COUNT = 2.0**53
"""No more devices than this are ever said to be too few: a step of 1e-308 s asks for infinitely many."""
BATCH_DEVICES = 4_096
"""Devices for which a batch that nobody gave is chosen: from 64 to so many it is the same."""
MOST_SEARCHES = 24
"""Counts searched one after the other; from then on the devices are doubled."""
GIVING_UP = 3
"""Counts on either side that it takes to say that more devices no longer help."""
STEP_AT_A_LIMIT = 2
"""Factor between counts tried once a limit is reached: any that is enough will do then."""


class Sizing:
    """Counts of devices from few to many: bounded first, and searched only where the bound leaves the goal open."""

    def __init__(
        self,
        base: JobInputs,
        goal: Goal,
        pin: tuple[str, ...],
        forbid: tuple[str, ...],
        *,
        target: str | None = None,
        most: int = MOST_DEVICES,
        known: CurvePoint | None = None,
    ) -> None:
        """Search nothing yet.

        Args:
            base: the question, on one node.
            goal: what the devices must be enough for.
            pin: axes fixed to values.
            forbid: axes and values left out.
            target: only plans that this framework can run.
            most: devices beyond which nothing is of use.
            known: enough devices, found elsewhere: of no more devices only plans that meet the goal are looked for, of
                as many only quicker ones, so that what is tried without such a plan says nothing of its times.

        Raises:
            UnsupportedError: what is asked is priced of stated plans alone.
        """
        check_searched(base.workload)
        self.known = known
        self.base, self.goal, self.pin, self.forbid = base, goal, pin, forbid
        self.refuses, self.most = target_rule(target), most
        self.group = base.cluster.groups[0]
        self.bounds: dict[int, CurvePoint] = {}
        """What no plan of a count can beat, for every count that was looked at and can hold the model."""
        self.floors: dict[int, CurvePoint] = {}
        """What no plan of a count can beat by what holds of any count, for those beyond a node."""
        self.tried: dict[int, CurvePoint] = {}
        self.considered = 0
        self.skipped = 0
        """Counts left out because too many had been searched already."""
        # Counts that no plan uses whole are searched on the same parts.
        self._searched, self._space = cache(search), cache(self._runnable)
        self._last: dict[int, tuple[JobInputs, BestPlans]] = {}
        """The count that was searched last."""
        self.stopped = ""
        """The limit at which counts were no longer looked at one after the other; empty where it was not reached."""
        self.at_least = 1
        """Fewer devices are not enough, which is proven."""
        self._used: dict[int, int] = {}
        """Devices that the best plan of a count runs on."""
        self.unusable: InputError | UnsupportedError | None = None
        """Why the pins, or the framework, leave a count no plan."""
        usual = self.group.devices_per_node
        within = [n for n in range(1, usual) if usual % n == 0]
        nodes = (n for n in range(1, MOST_DEVICES // usual + 1) if is_round(n))
        self.counts = [n for n in (*within, *(n * usual for n in nodes)) if n <= most]

    def first(self) -> CurvePoint | None:
        """The lowest count that meets the goal, or at a limit the lowest that was found to; None where none does.

        More devices may be slower than fewer, so none is passed over before a limit is reached.
        """
        wait = 0
        self.at_least = self.fewest()
        start = bisect_left(self.counts, self.at_least)
        for place, devices in enumerate(self.counts[start:], start):
            if not (self.stopped or self.skipped):
                self.at_least = devices
            if limit := spent():
                return self._beyond(place, limit)
            self.considered += 1
            try:
                may_meet = self._may_meet(devices)
            except OutOfLimitsError as reached:
                self.considered -= 1
                return self._beyond(place, reached.limit)
            if may_meet is False and self._stalled(devices):
                return None
            if not may_meet:
                continue
            if devices < wait:
                self.skipped += 1
                continue
            point = self._try(devices)
            if point.meets:
                return point
            if limit := self._last_stopped(devices):
                return self._beyond(place, limit)
            if self._stalled(devices):
                return None
            wait = 2 * devices if len(self.tried) >= MOST_SEARCHES else 0
        self._bound_nearest()
        return None

    def _may_meet(self, devices: int) -> bool | None:
        """Whether the bound of a count meets the goal; None where what holds of any count says that it cannot."""
        if self._never_meets(devices):
            return None
        bound = self._bound(devices)
        return bound is not None and self.goal.met(bound)

    def _bound_nearest(self) -> None:
        """Bound the count that comes nearest to the goal, which what holds of any count may have kept from it."""
        nearest = min(self.floors.values(), key=lambda point: point.step_time_s or 0.0, default=None)
        if nearest is not None and nearest.devices not in self.bounds:
            with suppress(OutOfLimitsError):
                self._bound(nearest.devices)

    def _beyond(self, place: int, limit: str) -> CurvePoint | None:
        """Once a limit is reached: the first of quickly growing counts whose first plans meet the goal, if one does.

        Args:
            place: the place of the count that was not looked at whole, the fewest that may be enough.
            limit: the limit that is reached.
        """
        self.stopped = limit
        least = 0
        for devices in self.counts[place:]:
            if devices < least or devices in self.tried:
                continue
            self.considered += 1
            if (point := self._try(devices)).meets:
                # Its plan may leave devices idle: those that it uses may be enough by themselves.
                used = self._used[devices]
                fewer = self._try(used) if used in self.counts and used not in self.tried else point
                return fewer if fewer.meets else point
            least = STEP_AT_A_LIMIT * devices
        return None

    def _try(self, devices: int) -> CurvePoint:
        self.tried[devices] = self._search(devices)
        return self.tried[devices]

    def _last_stopped(self, devices: int) -> str:
        """The limit at which the search of a count stopped."""
        return self._last[devices][1].result.certificate.stopped if devices in self._last else ""

    def found(self, devices: int) -> tuple[JobInputs, BestPlans]:
        """The best plan of a count and its runner-up, with the job they are for."""
        if devices not in self._last:
            inputs = replace(self.base, cluster=self.on(devices))
            # As many as `plan` finds at least: which plans are refined after the search depends on it.
            where = (inputs.model, inputs.cluster, inputs.workload)
            searched = self._within(self._slowest_s(devices))
            plans = find_plans(*where, self._space, top=2, refuses=self.refuses, searched=searched)
            self._last = {devices: (inputs, plans)}
        return self._last[devices]

    def _slowest_s(self, devices: int) -> float:
        """Seconds of a step of which plans of a count are still of use."""
        if self.known is None:
            return math.inf
        limits = [self.goal.step_time_s, self.known.step_time_s if devices == self.known.devices else None]
        return min([math.inf, *(limit for limit in limits if limit is not None)])

    def _within(self, slowest_s: float) -> Search:
        """Searches for plans that take no longer."""

        def searched(*where: Any, beat_s: float = math.inf, **settings: Any) -> SearchResult:
            return self._searched(*where, beat_s=min(beat_s, slowest_s), **settings)

        return searched

    @property
    def ruled_out(self) -> int:
        """Counts whose least time and memory miss the goal."""
        return self.considered - len(self.tried) - self.skipped

    def fewest(self) -> int:
        """Devices that would be enough at peak speed."""
        wanted = self.goal.step_limit_s(self.base.workload)
        if wanted is None:
            return 1
        workload = self.base.workload
        flop = step_flop(self.base.model, replace(workload, training=True))
        peak = max(rate for _, rate in self.group.device.peak_flop_per_s)
        return max(1, math.floor(min(flop / peak / wanted, BEYOND_COUNT)))

    def on(self, devices: int) -> ClusterSpec:
        """The cluster of so many devices: a part of a node, or whole nodes."""
        per_node = min(devices, self.group.devices_per_node)
        where = nodes_of(self.group.device, devices // per_node, per_node)
        priced = replace(
            where.groups[0],
            price_per_device_hour=self.group.price_per_device_hour,
            power_w_per_device=self.group.power_w_per_device,
        )
        return self.base.cluster.part(where.name, (priced,))

    @property
    def runs(self) -> bool:
        """Whether the framework runs a plan of the question on one device or on a node."""
        for devices in dict.fromkeys((1, self.group.devices_per_node)):
            try:
                self._space(self.on(devices))
            except InputError:
                continue  # pins of more devices
            except UnsupportedError as error:
                self.unusable = error
                continue
            return True
        return self.unusable is None

    def _asked(self, part: ClusterSpec) -> Space:
        """The space of the question, whoever runs its plans."""
        return space_of(self.base.model, self.base.workload, part.devices, pin=self.pin, forbid=self.forbid)

    def _runnable(self, part: ClusterSpec) -> Space:
        """What is searched of a part: what the framework can run of the question's space."""
        model, workload, space = self.base.model, self.base.workload, self._asked(part)
        if self.refuses is None:
            return space
        from meshwright.planning.target_space import restricted  # of adapters alone

        return restricted(space, model, part, workload, self.refuses)

    def _bound(self, devices: int) -> CurvePoint | None:
        """A plan as quick as the quickest could be at best; None where nothing can fit."""
        model, workload = self.base.model, self.base.workload
        where = self.on(devices)
        try:
            # What a framework cannot run is no quicker than the bound of all plans, and finding it takes longer.
            space = self._asked(where)
        except InputError as error:
            self.unusable = self.unusable or error
            return None
        time_s = least_of_count_s(model, where.groups[0], workload, space)
        if time_s is None:
            return None
        self.bounds[devices] = self._taking(devices, time_s)
        return self.bounds[devices]

    def _never_meets(self, devices: int) -> bool:
        """Whether no plan of so many devices meets the goal, by what holds of every count beyond one node."""
        if devices <= self.group.devices_per_node:
            return False
        most = self.on(self.counts[-1])
        try:
            pairs = least_of_any_count(self.base.model, most.groups[0], self.base.workload, self._asked(most))
        except InputError:
            return False  # the bound of the count says why
        time_s = min((max(device_s / devices, once_s) for device_s, once_s in pairs), default=0.0)
        self.floors[devices] = self._taking(devices, time_s * (1.0 - ROUNDING))
        return not self.goal.met(self.floors[devices])

    def _taking(self, devices: int, time_s: float) -> CurvePoint:
        """A plan of so many devices that takes so many seconds."""
        workload, days, price = self.base.workload, None, None
        if workload.tokens is not None:
            share = goodput(devices, workload.failures, 0.0, self.group.devices_per_node).share
            days = workload.tokens / tokens_of_step(workload) * time_s / DAY_S / share
            rate = self.group.price_per_hour
            price = None if rate is None else days * 24.0 * devices * rate
        return CurvePoint(devices=devices, step_time_s=time_s, days=days, price=price)

    def _stalled(self, devices: int) -> bool:
        """Whether four times the devices bring a limit that is still missed no nearer."""
        known = (self.bounds, {n: point for n, point in self.tried.items() if point.step_time_s is not None})
        limits: tuple[tuple[float | None, Callable[[CurvePoint], float]], ...] = (
            (self.goal.step_time_s, lambda point: point.step_time_s or 0.0),
            (self.goal.days, lambda point: point.days or 0.0),
            (self.goal.max_price, lambda point: point.price or 0.0),
        )
        for points in known:
            early = [point for n, point in points.items() if 4 * n <= devices]
            late = [point for n, point in points.items() if 4 * n > devices]
            if len(early) < GIVING_UP or len(late) < GIVING_UP:
                continue
            for limit, value in limits:
                if limit is None:
                    continue
                nearest = min(value(point) for point in late)
                if nearest > limit and nearest > 0.98 * min(value(point) for point in early):
                    return True
        return False

    def _search(self, devices: int) -> CurvePoint:
        try:
            inputs, found = self.found(devices)
        except (InputError, UnsupportedError) as error:  # pins of other counts; of plans that fit, none that is run
            self.unusable = self.unusable or error
            return CurvePoint(devices=devices)
        if not found.result.plans:
            return CurvePoint(devices=devices)
        best = found.result.plans[0]
        job = found.job(best, inputs.model, inputs.workload)
        self._used[devices] = job.cluster.devices
        run = whole_run(job, best.estimate)
        point = CurvePoint(
            devices=devices,
            name=title(best.plan, inputs.model, job.name),
            step_time_s=best.estimate.step_time_s,
            mfu=found.result.plans[0].estimate.mfu,
            days=run.days if run else None,
            price=run.price if run else None,
        )
        return replace(point, meets=self.goal.met(point))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What one trainer, or no framework in particular, makes of the counts."""

    sizing: Sizing
    found: CurvePoint | None
    """The fewest devices that meet the goal, or at a limit the fewest found to; None where no number does."""
    trainer: str | None = None
    """None where none is asked for, or none runs what is asked."""
    stopped: str = ""
    """The limit for which not every count was looked at; empty where each was."""
    at_least: int = 1
    """Fewer devices are not enough, which is proven."""

    @classmethod
    def of(cls, sizing: Sizing, trainer: str | None = None) -> Sized:
        """Look at the counts."""
        found = sizing.first()
        return cls(sizing=sizing, found=found, trainer=trainer, stopped=sizing.stopped, at_least=sizing.at_least)


def nodes_of(device: DeviceSpec, nodes: int, per_node: int | None = None) -> ClusterSpec:
    """A cluster of so many nodes of one kind of device, as its vendor builds them by default."""
    usual = device.node.devices_per_node if device.node else 8
    per_node = per_node or usual
    group = node_group(name=device.name, device=device, nodes=nodes, devices_per_node=per_node)
    return ClusterSpec(name=f"{nodes * per_node}x{device.name}", groups=(group,))
