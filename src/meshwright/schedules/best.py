"""The fastest order of a step for given times and memory, of all that is known."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.schedules import SCHEDULES, Names, Schedule, schedule_named
from meshwright.schedules.parameters import tried_of
from meshwright.schedules.scheduler import Scheduled, best_among
from meshwright.schedules.simulate import Times
from meshwright.schedules.stage_shares import Caps
from meshwright.schedules.ways import PLACEMENTS


def _plain(schedule: Schedule) -> bool:
    return (
        schedule.exact_semantics
        and schedule.weight_copies == 1
        and schedule.weight_passes == 0
        and schedule.sections() == 1
        and not schedule.not_searched
        and schedule.orders_tried == 1
    )


BEST_OF = Names(lambda name: _plain(SCHEDULES[name]))
"""Schedules among which `best_schedule` chooses unless schedules are named: exact, with one copy of the weights that
stays on its worker, whole sequences, and an order that does not depend on the times (list scheduling covers those)."""


def best_schedule(
    times: Times,
    m: int,
    caps: Caps | None = None,
    *,
    allow: Sequence[str | Schedule] | None = None,
    chunks: Sequence[int] = (1, 2),
    placements: Sequence[str] = PLACEMENTS,
    split: bool = True,
    objective: str = "makespan",
) -> Scheduled:
    """The fastest order of a step for these times within this memory, of named schedules and of list scheduling.

    Args:
        times: seconds of one micro-batch by worker and chunk; with one chunk, of whole worker shares.
        m: micro-batches per step.
        caps: memory of the workers; None for any amount.
        allow: schedules by name, each with the settings that searches try, or with parameters of their own; None:
            `BEST_OF`.
        chunks: the chunks per worker, to try.
        placements: the placements for list scheduling: linear, loop, v, wave; none for named schedules only.
        split: whether list scheduling may part weight gradients from backwards.
        objective: what is to be short: the step from start to end, or the longest span of a worker.

    Raises:
        UnsupportedError: an unknown name.
        InputError: arguments that contradict each other.
        InfeasibleError: nothing fits.
    """
    named: list[Schedule] = []
    for one in BEST_OF if allow is None else allow:
        schedule = schedule_named(one) if isinstance(one, str) else one
        # A bare name leaves the settings open, as in a search over plans.
        named += tried_of(schedule) if one == schedule.name else (schedule,)
    return best_among(named, times, m, caps, chunks=chunks, placements=placements, split=split, objective=objective)
