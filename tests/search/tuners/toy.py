"""A space with everything a tuner may stumble over: a condition, rules, points that do not fit, points that raise."""

from __future__ import annotations

import random
from dataclasses import dataclass

from meshwright.search.tuners.base import Forbidden, Optimum, Outcome, Point, Rules, TrialAxis, When, sample_by_drawing

WIDTHS, DEPTHS, KINDS = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6), ("plain", "ring", "tree")
BEST = 7.0


@dataclass(frozen=True)
class Toy:
    """width x depth <= 32; a kind where width > 1; depth 6 raises; width 16 does not fit."""

    name: str = "toy"
    raises: bool = True

    @property
    def objective(self) -> str:
        return "toy_s"

    @property
    def axes(self) -> tuple[TrialAxis, ...]:
        return (
            TrialAxis(name="width", values=WIDTHS, default=1, ordered=True),
            TrialAxis(name="depth", values=DEPTHS, default=1, ordered=True),
            TrialAxis(name="kind", values=KINDS, default="plain", when=(When(axis="width", values=WIDTHS[1:]),)),
            TrialAxis(name="overlap", values=(False, True), default=False, when=(When(axis="kind", values=("ring",)),)),
        )

    @property
    def forbidden(self) -> tuple[Forbidden, ...]:
        product = "width x depth is at most 32"
        return (
            Forbidden(where=(("width", (8,)), ("depth", (5, 6))), why=product),
            Forbidden(where=(("width", (16,)), ("depth", (3, 4, 5, 6))), why=product),
            Forbidden(where=(("depth", (1,)), ("kind", ("tree",))), why="a tree needs depth"),
        )

    def sample(self, generator: random.Random) -> Point:
        return sample_by_drawing(Rules.of(self), generator)

    def evaluate(self, point: Point) -> Outcome:
        width, depth = int(point["width"]), int(point["depth"])
        if depth == 6 and self.raises:
            raise RuntimeError("depth 6 always breaks\nwith a second line")
        value = BEST + abs(width - 4) + abs(depth - 3)
        if width > 1:
            value += {"plain": 2.0, "ring": 1.0 - bool(point["overlap"]), "tree": 1.5}[str(point["kind"])]
        name = f"w{width} d{depth}"
        if width == 16:
            return Outcome(status="infeasible", value=value, reason="memory: 16 of 8 GiB", excess=1.0, name=name)
        return Outcome(status="ok", value=value, name=name)

    def bound(self, point: Point) -> float | None:
        return BEST + abs(int(point["width"]) - 4)

    def optimum(self) -> Optimum | None:
        return Optimum(value=BEST, name="w4 d3", space=len(list(Rules.of(self).points())), search_s=0.001)


def check_rows(space: Toy, trials: tuple, count: int) -> None:
    """What holds of every study, whichever tuner made it."""
    rules = Rules.of(space)
    assert [trial.number for trial in trials] == list(range(count))
    assert [trial.at_s for trial in trials] == sorted(trial.at_s for trial in trials)
    for trial in trials:
        outcome = trial.outcome
        if outcome.status == "stopped":
            continue
        assert not rules.broken(trial.point), trial
        assert bool(outcome.reason) == (outcome.status != "ok")
        if int(trial.point["depth"]) == 6 and space.raises:
            assert outcome.status == "error"
            assert outcome.reason == "RuntimeError: depth 6 always breaks"
        elif trial.point["width"] == 16:
            assert outcome.status == "infeasible"
        else:
            assert outcome == space.evaluate(trial.point)
