"""Rules between axes: what is legal, what is the nearest legal point, and rules read off a table."""

from __future__ import annotations

import itertools
import random

import hypothesis.strategies as st
from hypothesis import given

from meshwright.search.tuners.base import Forbidden, Outcome, Rules, TrialAxis, sample_by_drawing, signature
from meshwright.search.tuners.tables import boxes_outside, without_single
from tests.search.tuners.toy import DEPTHS, KINDS, WIDTHS, Toy

TOY = Toy()
RULES = Rules.of(TOY)


def legal(width: int, depth: int, kind: str, overlap: bool) -> bool:
    """The toy's rules, said again."""
    if (width == 1 and kind != "plain") or (overlap and kind != "ring"):
        return False
    return width * depth <= 32 and not (width > 1 and kind == "tree" and depth == 1)


def every() -> set[tuple]:
    product = itertools.product(WIDTHS, DEPTHS, KINDS, (False, True))
    return {values for values in product if legal(*values)}


def test_the_points_are_exactly_the_legal_ones() -> None:
    points = [tuple(point.values()) for point in RULES.points()]
    assert len(points) == len(set(points))
    assert set(points) == every()


wishes = st.fixed_dictionaries(
    {
        "width": st.sampled_from(WIDTHS),
        "depth": st.sampled_from(DEPTHS),
        "kind": st.sampled_from(KINDS),
        "overlap": st.booleans(),
    }
)


@given(wishes)
def test_a_wish_is_mended_to_a_legal_point_and_kept_where_it_is_one(wish: dict) -> None:
    point = RULES.nearest_legal(wish)
    assert point is not None
    assert not RULES.broken(point)
    assert tuple(point.values()) in every()
    if RULES.completed(wish) == wish and not RULES.broken(wish):
        assert point == wish


def test_the_nearest_value_is_taken_and_the_rule_that_forbids_is_named() -> None:
    wish = {"width": 16, "depth": 6, "kind": "ring", "overlap": True}
    assert RULES.broken(wish) == "width x depth is at most 32"
    assert RULES.nearest_legal(wish) == wish | {"depth": 2}
    assert "no value" in RULES.broken(wish | {"width": 3})


def test_a_rule_says_nothing_of_an_axis_that_does_not_matter() -> None:
    assert not RULES.broken({"width": 1, "depth": 1, "kind": "tree", "overlap": False})


def test_drawing_gives_every_point_equally_often() -> None:
    generator = random.Random(1)
    seen: dict[tuple, int] = {}
    for _ in range(60 * len(every())):
        point = tuple(sample_by_drawing(RULES, generator).values())
        seen[point] = seen.get(point, 0) + 1
    assert set(seen) == every()
    assert max(seen.values()) < 2.2 * min(seen.values())


@given(st.sets(st.tuples(st.sampled_from((1, 2, 4)), st.sampled_from((1, 3, 9)), st.sampled_from("ab")), min_size=1))
def test_rules_read_off_a_table_leave_exactly_the_table(table: set[tuple]) -> None:
    columns = list(zip(*table, strict=True))
    found = {
        name: TrialAxis(name=name, values=tuple(sorted(set(column))), default=sorted(set(column))[0])
        for name, column in zip("xyz", columns, strict=True)
    }
    rules: list[Forbidden] = []
    for length in (2, 3):
        rules += boxes_outside("xyz"[:length], {row[:length] for row in table}, found, rules, "not in the table")

    class Table(Toy):
        axes = tuple(found.values())
        forbidden = tuple(rules)

    assert {tuple(point.values()) for point in Rules.of(Table()).points()} == table

    kept, left = without_single(Table.axes, Table.forbidden)
    assert all(len(axis.values) > 1 for axis in kept)

    class Smaller(Toy):
        axes = kept
        forbidden = left

    assert sum(1 for _ in Rules.of(Smaller()).points()) == len(table)


def test_another_rule_is_another_signature() -> None:
    class Freer(Toy):
        forbidden = ()

    assert signature(TOY) == signature(Toy())
    assert len({signature(TOY), signature(Freer()), signature(Toy(name="other"))}) == 3


def test_what_does_not_fit_is_told_as_worse_the_more_it_misses() -> None:
    told = [Outcome(status="infeasible", value=2.0, excess=excess).penalised for excess in (0.0, 0.5, 2.0)]
    assert told == [20.0, 30.0, 60.0]
    assert Outcome(status="ok", value=2.0).penalised == 2.0
    assert Outcome(status="error", value=2.0).penalised is None
    assert Outcome(status="infeasible").penalised is None
