"""What schedules with a split backward share."""

from __future__ import annotations

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound
from meshwright.schedules.critical_paths import generic_path_bound
from meshwright.schedules.lists import Task, v_placement
from meshwright.schedules.table import Kind, Placement

SPLIT = frozenset({Kind.F, Kind.I, Kind.W})
"""Kinds of tasks where every backward is split."""


class ListedSchedule(Schedule):
    """A schedule whose bound comes from the critical paths of its own table."""

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """The split closed form with input and weight gradient of half the backward each."""
        return self.split_closed_form_s(p, m, v, forward_s, backward_s / 2, backward_s / 2)

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """None: no closed form is known."""
        return None

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        return generic_path_bound(self.table(p, m, v))


class TwoChunkV(ListedSchedule):
    """A schedule on the V placement: two chunks per worker, the chain turns at the last worker."""

    kinds = SPLIT
    only_chunks = 2
    traffic = "twice the boundaries of one chunk per worker; the turn at the last worker stays there"

    def placement(self, p: int, v: int = 2) -> Placement:
        """Virtual stages r and 2p - 1 - r on worker r."""
        return v_placement(p)

    def tasks_per_share(self, v: int) -> int:
        """Two chunks."""
        return 2


def few_micro_batches(name: str, m: int, least: int, rule: str) -> list[Problem]:
    """The constraint of schedules that need enough micro-batches to fill the pipeline.

    Args:
        name: the name of the schedule.
        m: micro-batches asked for.
        least: the fewest that are legal.
        rule: why, with the formula.
    """
    if m >= least:
        return []
    return [Problem(what=f"{name}: m = {m}", why=rule, fix=f"m = {least} or more", field="m")]


def split_alternating(
    stage_of: tuple[list[int], list[int]],
    units: tuple[list[int], list[int]],
    warmup: int,
    behind: int,
) -> list[Task]:
    """Warm-up forwards, then one forward and one input gradient in turn, each weight gradient a while later.

    The weight gradient of the k-th input gradient follows input gradient k + behind; what is left runs at the end.

    Args:
        stage_of: virtual stages of the forwards and of the input gradients, in order.
        units: their micro-batches.
        warmup: forwards before the first pair, at most all.
        behind: input gradients by which the weight gradients lag.
    """
    forward = [Task(Kind.F, stage, unit) for stage, unit in zip(stage_of[0], units[0], strict=True)]
    gradient = list(zip(stage_of[1], units[1], strict=True))
    tasks = forward[:warmup]
    for k, (stage, unit) in enumerate(gradient):
        tasks += forward[warmup + k : warmup + k + 1]
        tasks.append(Task(Kind.I, stage, unit))
        if k >= behind:
            tasks.append(Task(Kind.W, *gradient[k - behind]))
    tasks += [Task(Kind.W, *pair) for pair in gradient[max(0, len(gradient) - behind) :]]
    return tasks
