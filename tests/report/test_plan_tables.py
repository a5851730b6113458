"""What stands under the table of plans."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from meshwright.report.plan_tables import tie_lines


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([], ""),
        ([1, 2], "plans 1 and 2 tie: within 1.0% of plan 1"),
        ([1, 2, 3], "plans 1 to 3 tie"),
        ([1, 3, 5], "plans 1, 3 and 5 tie"),
    ],
)
def test_a_tie_names_exactly_the_plans_in_it(ranks: list[int], said: str) -> None:
    out = StringIO()
    Console(file=out, width=120).print(*tie_lines({"ranks": ranks, "within": 0.01}))
    assert said in out.getvalue()
    assert bool(out.getvalue().strip()) == bool(ranks)
