"""Sources whose stages have plans of their own: how they are asked for plans of one group."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.source import PricedPlan, StagesOfOwnPlans
from meshwright.planning.objectives import Aim


class Asked(StagesOfOwnPlans):
    """A source that finds nothing and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[IslandPart], bool]] = []

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        self.asked.append((list(parts), thorough))
        return []


@pytest.mark.parametrize("exhaustive", [False, True])
def test_plans_of_one_group_are_asked_for_quickly_and_never_twice(exhaustive: bool) -> None:
    source, part = Asked(), IslandPart(0, 8)
    assert source.alone(part, exhaustive=exhaustive) == []
    assert source.asked == ([] if exhaustive else [([part], False)])


def test_plans_to_rent_are_those_of_all_parts_found_as_quickly() -> None:
    source, parts = Asked(), [IslandPart(0, 8), IslandPart(1, 4)]
    assert source.rented(parts, Aim(objective="cost")) == []
    assert source.asked == [(parts, False)]
