"""What a tuner needs to know of a space, and what it gives back: axes and rules as data, a point in, a row out.

point    one value per axis; an axis whose condition does not hold keeps its default
rule     a box of values that no legal point lies in, with the sentence that says why
trial    {number, status, value, reason, point, ...}: a row, whatever happened
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

Value = int | str | bool
Point = dict[str, Value]
Status = Literal["ok", "infeasible", "illegal", "stopped", "error"]
STATUSES: tuple[Status, ...] = ("ok", "infeasible", "illegal", "stopped", "error")

PENALTY = 10.0
"""A tuner without constraints is told so many times the value of a point that does not fit."""
MOST_DRAWS = 100_000
"""Draws of the plain sampler before it looks for a legal point in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """A condition: the axis has one of these values."""

    axis: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAxis:
    """One choice of a space."""

    name: str
    values: tuple[Value, ...]
    """All it may take, in order where `ordered`."""
    default: Value
    """What it is where a condition does not hold."""
    ordered: bool = False
    """Near values cost nearly the same."""
    when: tuple[When, ...] = ()
    """The axis matters only where all of these hold; they name earlier axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """No legal point has, on every one of these axes, one of these values."""

    where: tuple[tuple[str, tuple[Value, ...]], ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one point."""

    status: Status
    value: float | None = None
    """The objective, smaller is better; for an infeasible point what it would be if it fitted, if that is known."""
    reason: str = ""
    """Why it is not ok; empty if it is."""
    excess: float = 0.0
    """Relative amount by which an infeasible point misses the limit."""
    name: str = ""
    """The point in the words of its field, such as `tp8.pp4.dp2.z1.mbs1.gbs1024`."""

    @property
    def penalised(self) -> float | None:
        """The objective for a tuner that knows no constraints; None where nothing is known."""
        if self.value is None or self.status == "ok":
            return self.value
        return self.value * PENALTY * (1.0 + self.excess) if self.status == "infeasible" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One row of a study."""

    number: int
    point: Point
    outcome: Outcome
    took_s: float
    """Seconds of the estimate itself."""
    at_s: float
    """Seconds of study so far when it ended, over all its runs."""

    def to_dict(self) -> dict[str, object]:
        """The row as data, its times apart."""
        return {
            "trial": self.number,
            "status": self.outcome.status,
            "value": self.outcome.value,
            "reason": self.outcome.reason or None,
            "name": self.outcome.name or None,
            "point": dict(self.point),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best of the exact search: the best there is, unless it stopped at a limit."""

    value: float
    name: str
    space: int
    """Legal points of the space."""
    search_s: float
    stopped: str = ""
    """The limit at which the search stopped, so that better may be left; empty where all was searched."""


@runtime_checkable
class TunableSpace(Protocol):
    """A space any tuner can drive. Objects can be pickled, since trials may run in other processes."""

    @property
    def name(self) -> str:
        """What is tuned, in a few words; the study is called after it."""

    @property
    def objective(self) -> str:
        """Name of the value, with its unit, such as `step_time_s`."""

    @property
    def axes(self) -> tuple[TrialAxis, ...]:
        """All axes, each after those its conditions name."""

    @property
    def forbidden(self) -> tuple[Forbidden, ...]:
        """All rules that hold between axes."""

    def sample(self, generator: random.Random) -> Point:
        """A legal point, every one as likely as any other."""

    def evaluate(self, point: Point) -> Outcome:
        """Price a legal point."""

    def bound(self, point: Point) -> float | None:
        """A value the point cannot be below, found sooner than the value itself; None if there is none."""

    def optimum(self) -> Optimum | None:
        """The exact optimum by exhaustive search; None if nothing fits."""


def signature(space: TunableSpace) -> str:
    """Name of the space that changes with its axes, rules or question, so that no study goes on in another space."""
    text = json.dumps(
        [
            space.name,
            space.objective,
            [[axis.name, axis.values, [[when.axis, when.values] for when in axis.when]] for axis in space.axes],
            [rule.where for rule in space.forbidden],
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Axes and forbidden boxes made quick to look up."""

    axes: tuple[TrialAxis, ...]
    by_last: dict[str, tuple[tuple[dict[str, frozenset[Value]], str], ...]] = field(repr=False)
    """Boxes by the last of their axes, so that a point is checked axis by axis."""

    @classmethod
    def of(cls, space: TunableSpace) -> Rules:
        """The rules of a space."""
        place = {axis.name: number for number, axis in enumerate(space.axes)}
        found: dict[str, list[tuple[dict[str, frozenset[Value]], str]]] = {}
        for rule in space.forbidden:
            last = max((name for name, _ in rule.where), key=place.__getitem__)
            found.setdefault(last, []).append(({name: frozenset(values) for name, values in rule.where}, rule.why))
        return cls(tuple(space.axes), {name: tuple(boxes) for name, boxes in found.items()})

    def active(
        self, axis: TrialAxis, point: Mapping[str, Value], inactive: frozenset[str] | set[str] = frozenset()
    ) -> bool:
        """Whether an axis matters at this point."""
        return all(when.axis not in inactive and point[when.axis] in when.values for when in axis.when)

    def active_axes(self, point: Mapping[str, Value]) -> list[str]:
        """Axes that matter at a point."""
        inactive: set[str] = set()
        for axis in self.axes:
            if not self.active(axis, point, inactive):
                inactive.add(axis.name)
        return [axis.name for axis in self.axes if axis.name not in inactive]

    def completed(self, given: Mapping[str, Value]) -> Point:
        """The point with axes that do not matter at their defaults."""
        point: Point = {}
        inactive: set[str] = set()
        for axis in self.axes:
            if self.active(axis, point, inactive):
                point[axis.name] = given.get(axis.name, axis.default)
            else:
                point[axis.name] = axis.default
                inactive.add(axis.name)
        return point

    def broken(self, point: Mapping[str, Value]) -> str:
        """Why a point is illegal, empty if it is legal."""
        active = set(self.active_axes(point))
        for axis in self.axes:
            if axis.name not in active:
                continue
            if point[axis.name] not in axis.values:
                return f"{axis.name} {point[axis.name]} is no value of the axis"
            why = self._breaks(axis.name, point, active)
            if why:
                return why
        return ""

    def _breaks(self, last: str, point: Mapping[str, Value], active: set[str]) -> str:
        for box, why in self.by_last.get(last, ()):
            if all(name in active and point[name] in values for name, values in box.items()):
                return why
        return ""

    def nearest_legal(self, wanted: Mapping[str, Value]) -> Point | None:
        """The legal point nearest to a wish: axis after axis the nearest value that still leaves a legal rest.

        Args:
            wanted: values by axis; axes left out take what is nearest to their defaults.

        Returns:
            The point, the wish itself if it is legal; None if no point is legal.
        """
        return self._nearest_legal(0, {}, set(), wanted)

    def _nearest_legal(self, number: int, point: Point, active: set[str], wanted: Mapping[str, Value]) -> Point | None:
        if number == len(self.axes):
            return dict(point)
        axis = self.axes[number]
        inactive = set(point) - active
        if not self.active(axis, point, inactive):
            point[axis.name] = axis.default
            found = self._nearest_legal(number + 1, point, active, wanted)
            del point[axis.name]
            return found
        active.add(axis.name)
        for value in by_nearness(axis, wanted.get(axis.name, axis.default)):
            point[axis.name] = value
            if not self._breaks(axis.name, point, active):
                found = self._nearest_legal(number + 1, point, active, wanted)
                if found is not None:
                    active.discard(axis.name)
                    del point[axis.name]
                    return found
            del point[axis.name]
        active.discard(axis.name)
        return None

    def points(self) -> Iterator[Point]:
        """Every legal point, each once."""
        yield from self._points(0, {}, set())

    def _points(self, number: int, point: Point, active: set[str]) -> Iterator[Point]:
        if number == len(self.axes):
            yield dict(point)
            return
        axis = self.axes[number]
        if not self.active(axis, point, set(point) - active):
            point[axis.name] = axis.default
            yield from self._points(number + 1, point, active)
            del point[axis.name]
            return
        active.add(axis.name)
        for value in axis.values:
            point[axis.name] = value
            if not self._breaks(axis.name, point, active):
                yield from self._points(number + 1, point, active)
        del point[axis.name]
        active.discard(axis.name)


def by_nearness(axis: TrialAxis, wish: Value) -> Sequence[Value]:
    """Values of an axis, the nearest to a wish first."""
    if wish not in axis.values:
        return axis.values
    place = axis.values.index(wish)
    if not axis.ordered:
        return (wish, *axis.values[place + 1 :], *axis.values[:place])
    return sorted(axis.values, key=lambda value: abs(axis.values.index(value) - place))


def sample_by_drawing(rules: Rules, generator: random.Random) -> Point:
    """A legal point by drawing every axis until no rule is broken; uniform, for spaces without their own sampler."""
    wish: Point = {}
    for _ in range(MOST_DRAWS):
        wish = {axis.name: generator.choice(axis.values) for axis in rules.axes}
        point = rules.completed(wish)
        # Points with idle axes are drawn once for every value of those: keep one of them.
        if point == wish and not rules.broken(point):
            return point
    return rules.nearest_legal(wish) or rules.completed({})
