"""Pipeline schedules: in which order every worker runs the tasks of a step, what that costs and keeps alive.

A new schedule is one file with a subclass of `Schedule` and one line in `SCHEDULES`, or `register` from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import overload

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.schedules.avgpipe import AvgPipe
from meshwright.schedules.bamboo import Bamboo
from meshwright.schedules.base import Schedule
from meshwright.schedules.bounds import PathBound
from meshwright.schedules.bpipe import BPipe
from meshwright.schedules.breadth_first import BreadthFirst
from meshwright.schedules.chimera import Chimera
from meshwright.schedules.communication import with_communication
from meshwright.schedules.dualpipe import DualPipe
from meshwright.schedules.dualpipev import DualPipeV
from meshwright.schedules.dynapipe import DynaPipe
from meshwright.schedules.ftpipe import FTPipe
from meshwright.schedules.gpipe import GPipe
from meshwright.schedules.hanayo import Hanayo
from meshwright.schedules.interleaved import Interleaved
from meshwright.schedules.interleaved_zb import InterleavedZeroBubble
from meshwright.schedules.links import Links
from meshwright.schedules.memory import Footprint
from meshwright.schedules.mixpipe import MixPipe
from meshwright.schedules.mobius import Mobius
from meshwright.schedules.one_f_one_b import OneFOneB
from meshwright.schedules.parameters import Parameter, read_settings, together
from meshwright.schedules.pipedream import PipeDream
from meshwright.schedules.pipedream_2bw import PipeDream2BW
from meshwright.schedules.pipedream_flush import PipeDreamFlush
from meshwright.schedules.scheduler import Scheduled, best_among
from meshwright.schedules.seq1f1b import Seq1F1B
from meshwright.schedules.simulate import Jitter, Timeline, Times, makespans, simulate
from meshwright.schedules.stage_shares import Caps
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.schedules.v_half import VHalf
from meshwright.schedules.v_min import VMin
from meshwright.schedules.varuna import Varuna
from meshwright.schedules.ways import PLACEMENTS, Candidate
from meshwright.schedules.zb_auto import ZeroBubbleAuto
from meshwright.schedules.zb_h1 import ZeroBubbleH1
from meshwright.schedules.zb_h2 import ZeroBubbleH2
from meshwright.schedules.zb_v import ZeroBubbleV

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(),
    "1f1b": OneFOneB(),
    "interleaved": Interleaved(),
    "zb-h1": ZeroBubbleH1(),
    "zb-h2": ZeroBubbleH2(),
    "zb-v": ZeroBubbleV(),
    "v-half": VHalf(),
    "v-min": VMin(),
    "zb-auto": ZeroBubbleAuto(),
    "interleaved-zb": InterleavedZeroBubble(),
    "dualpipe": DualPipe(),
    "dualpipev": DualPipeV(),
    "seq1f1b": Seq1F1B(),
    "breadth-first": BreadthFirst(),
    "pipedream-flush": PipeDreamFlush(),
    "varuna": Varuna(),
    "chimera": Chimera(),
    "hanayo": Hanayo(),
    "avgpipe": AvgPipe(),
    "mixpipe": MixPipe(),
    "pipedream": PipeDream(),
    "pipedream-2bw": PipeDream2BW(),
    "bpipe": BPipe(),
    "bamboo": Bamboo(),
    "ftpipe": FTPipe(),
    "mobius": Mobius(),
    "dynapipe": DynaPipe(),
}
"""Every schedule by its name."""


class Names(Sequence[str]):
    """Names of the schedules of which something holds, plug-ins among them as soon as they are registered."""

    def __init__(self, holds: Callable[[Schedule], bool]) -> None:
        self.holds = holds

    def _all(self) -> tuple[str, ...]:
        return tuple(name for name, schedule in SCHEDULES.items() if self.holds(schedule))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


PLAN_SCHEDULES = Names(lambda schedule: not schedule.not_in_plans)
"""Those that plans may run."""

DEFAULT_SCHEDULES = Names(lambda schedule: schedule.searched_by_default)
"""Those a search tries unless schedules are named."""

BEST_OF = Names(
    lambda schedule: (
        schedule.exact_semantics
        and schedule.weight_copies == 1
        and schedule.weight_passes == 0
        and schedule.sections() == 1
        and not schedule.not_in_plans
        and schedule.orders_tried == 1
    )
)
"""Those among which `best_schedule` chooses unless schedules are named: exact, with one copy of the weights that stays
on its worker, whole sequences, and an order that does not depend on the times (list scheduling covers those)."""


def register(schedule: Schedule) -> None:
    """Add a schedule of one's own: list, drawings, simulation, estimates, search and command line know it then.

    Args:
        schedule: with a name that no other one has.

    Raises:
        InputError: the name or an alias is taken.
    """
    taken = {*SCHEDULES, *aliases()} & {schedule.name, *schedule.aliases}
    if taken:
        why, fix = "a schedule of that name exists", "choose another name"
        raise InputError(Problem(what=f"schedule {', '.join(sorted(taken))}", why=why, fix=fix, field="schedule"))
    SCHEDULES[schedule.name] = schedule


def aliases() -> dict[str, str]:
    """Other names of schedules, with the name they stand for."""
    return {alias: name for name, schedule in SCHEDULES.items() for alias in schedule.aliases}


def known_names() -> tuple[str, ...]:
    """All names and aliases."""
    return (*SCHEDULES, *aliases())


def parameters() -> tuple[Parameter, ...]:
    """The settings of all schedules, each with the schedules that take it."""
    return together(one for schedule in SCHEDULES.values() for one in schedule.parameters())


def schedule_named(token: str) -> Schedule:
    """The schedule with this name or alias, and the settings that stand behind it.

    Args:
        token: as `schedule list` prints it, or with settings: `hanayo-waves2`.

    Raises:
        UnsupportedError: nobody knows the name; says which ones are close.
        InputError: the schedule has no such setting.
    """
    known = {**SCHEDULES, **{alias: SCHEDULES[name] for alias, name in aliases().items()}}
    if token in known:
        return known[token]
    name = max((name for name in known if token.startswith(f"{name}-")), key=len, default=None)
    if name is None:
        raise UnsupportedError(unknown_name("schedule", token, [*known]))
    schedule = known[name]
    said, unknown = read_settings(schedule, token.removeprefix(f"{name}-"))
    if unknown:
        words = [one.word(one.choices[-1] if one.choices else max(one.low, 2)) for one in schedule.parameters()]
        why = f"its settings are written like {', '.join(words)}" if words else f"{name} has no settings"
        what = f"schedule {token!r}: {', '.join(map(repr, unknown))} is no setting of {name}"
        raise InputError(Problem(what=what, why=why, fix=f"use {'-'.join([name, *words[:1]])}", field="schedule"))
    return replace(schedule, **said)


def best_schedule(
    times: Times,
    m: int,
    caps: Caps | None = None,
    *,
    allow: Sequence[str | Schedule] | None = None,
    chunks: Sequence[int] = (1, 2),
    placements: Sequence[str] = PLACEMENTS,
    split: bool = True,
) -> Scheduled:
    """The fastest order of a step for these times within this memory, of named schedules and of list scheduling.

    Args:
        times: seconds of one micro-batch by worker and chunk; with one chunk, of whole worker shares.
        m: micro-batches per step.
        caps: memory of the workers; None for any amount.
        allow: schedules by name, or with parameters of their own; None: `BEST_OF`.
        chunks: per worker, to try.
        placements: for list scheduling: linear, loop, v, wave; none for named schedules only.
        split: whether list scheduling may part weight gradients from backwards.

    Raises:
        UnsupportedError: an unknown name.
        InputError: arguments that contradict each other.
        InfeasibleError: nothing fits.
    """
    named = [schedule_named(one) if isinstance(one, str) else one for one in (BEST_OF if allow is None else allow)]
    return best_among(named, times, m, caps, chunks=chunks, placements=placements, split=split)


__all__ = [
    "BEST_OF",
    "DEFAULT_SCHEDULES",
    "PLAN_SCHEDULES",
    "SCHEDULES",
    "Candidate",
    "Caps",
    "Footprint",
    "Jitter",
    "Kind",
    "Links",
    "Parameter",
    "PathBound",
    "Placement",
    "Schedule",
    "ScheduleTable",
    "Scheduled",
    "Timeline",
    "Times",
    "aliases",
    "best_schedule",
    "known_names",
    "makespans",
    "parameters",
    "register",
    "schedule_named",
    "simulate",
    "with_communication",
]
