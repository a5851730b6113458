"""Tunable spaces read off tables: combinations of values that are legal become axes and the rules between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property

from meshwright.search.tuners.base import Forbidden, Point, Rules, TrialAxis, Value, When

Box = tuple[frozenset[Value], ...]


class TableSpace:
    """Base of tunable dataclasses whose axes and rules are read off tables of legal combinations.

    Only the question travels to other processes; tables are made again where they are needed.
    """

    def __getstate__(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def tables(self) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...]]:
        """All axes, also those with one value or none, parents first, and the rules between them."""
        raise NotImplementedError

    @cached_property
    def _tables(self) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...], Point]:
        axes, rules = self.tables()
        plain = {axis.name: axis.values[0] if len(axis.values) == 1 else axis.default for axis in axes}
        return *without_single(tuple(axis for axis in axes if axis.values), rules), plain

    @property
    def axes(self) -> tuple[TrialAxis, ...]:
        """The axes that have more than one value."""
        return self._tables[0]

    @property
    def forbidden(self) -> tuple[Forbidden, ...]:
        """The rules between axes."""
        return self._tables[1]

    @cached_property
    def rules(self) -> Rules:
        """Axes and rules made quick to look up."""
        return Rules.of(self)  # type: ignore[arg-type]

    def whole(self, point: Point) -> Point:
        """A point with the values of what is no axis because it has one value."""
        return {**self._tables[2], **point}


def numbers_axis(name: str, values: Iterable[Value], when: tuple[When, ...] = ()) -> TrialAxis:
    """An ordered axis of whole numbers."""
    ordered = tuple(sorted({int(value) for value in values}))
    return TrialAxis(name=name, values=ordered, default=ordered[0] if ordered else 0, ordered=True, when=when)


def rules_of(
    legal: Mapping[tuple[str, ...], set[tuple[Value, ...]]], axes: Mapping[str, TrialAxis], why: Mapping[str, str]
) -> list[Forbidden]:
    """Rules that leave exactly some combinations of values.

    Args:
        legal: combinations by the axes that decide together, smaller tables first.
        axes: the axes by name; tables with others are passed over.
        why: sentence of the rules whose last axis this is.
    """
    rules: list[Forbidden] = []
    for names, table in legal.items():
        if len(names) > 1 and all(name in axes for name in names):
            rules += boxes_outside(names, table, axes, rules, why[names[-1]])
    return rules


def boxes_outside(
    names: Sequence[str],
    legal: set[tuple[Value, ...]],
    axes: Mapping[str, TrialAxis],
    known: Sequence[Forbidden],
    why: str,
) -> list[Forbidden]:
    """Rules that leave the last of some axes, wherever the others are legal together, only its legal values.

    Args:
        names: axes, the last one active wherever the others are as they are in `legal`.
        legal: combinations of their values that some legal point has.
        axes: the axes by name.
        known: rules that hold already, so that nothing is said twice.
        why: the sentence of the new rules.

    Returns:
        Boxes, merged where only one axis differs.
    """
    place = {name: number for number, name in enumerate(names)}
    inside = [
        {place[name]: frozenset(values) for name, values in rule.where}
        for rule in known
        if rule.where[-1][0] == names[-1] and all(name in place for name, _ in rule.where)
    ]
    allowed: dict[tuple[Value, ...], set[Value]] = {}
    for combination in legal:
        allowed.setdefault(combination[:-1], set()).add(combination[-1])
    boxes: set[Box] = set()
    for prefix, values in allowed.items():
        out = set(axes[names[-1]].values) - values
        for box in inside:
            if all(prefix[number] in among for number, among in box.items() if number < len(prefix)):
                out -= box[len(prefix)]
        if out:
            boxes.add((*(frozenset([value]) for value in prefix), frozenset(out)))
    return [
        Forbidden(
            where=tuple(
                (name, tuple(value for value in axes[name].values if value in values))
                for name, values in zip(names, box, strict=True)
            ),
            why=why,
        )
        for box in _merged(boxes)
    ]


def _merged(boxes: set[Box]) -> list[Box]:
    """Boxes that differ on one axis only, joined, until none are left."""
    before = -1
    while len(boxes) != before:
        before = len(boxes)
        for number in range(len(next(iter(boxes), ()))):
            groups: dict[tuple[Box, Box], set[Value]] = {}
            for box in boxes:
                groups.setdefault((box[:number], box[number + 1 :]), set()).update(box[number])
            boxes = {(*left, frozenset(values), *right) for (left, right), values in groups.items()}
    return sorted(boxes, key=lambda box: [sorted(map(str, values)) for values in box])


def without_single(
    axes: tuple[TrialAxis, ...], rules: tuple[Forbidden, ...]
) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...]]:
    """The same space without axes that have one value or never matter."""
    fixed: dict[str, Value] = {}
    idle: set[str] = set()
    kept = []
    for axis in axes:
        if any(w.axis in idle or (w.axis in fixed and fixed[w.axis] not in w.values) for w in axis.when):
            idle.add(axis.name)
            continue
        when = tuple(condition for condition in axis.when if condition.axis not in fixed)
        if len(axis.values) == 1:
            # An axis with one value that matters only sometimes is at that value always.
            fixed[axis.name] = axis.values[0]
        else:
            kept.append(TrialAxis(**{**{f: getattr(axis, f) for f in axis.__slots__}, "when": when}))
    left = []
    for rule in rules:
        if any(name in idle or (name in fixed and fixed[name] not in values) for name, values in rule.where):
            continue
        where = tuple((name, values) for name, values in rule.where if name not in fixed)
        if where:
            left.append(Forbidden(where=where, why=rule.why))
    return tuple(kept), tuple(left)
