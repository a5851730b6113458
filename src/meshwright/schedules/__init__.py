"""Pipeline schedules: in which order every worker runs the tasks of a step, what that costs and keeps alive.

A new schedule is one file in `named/` with a subclass of `Schedule`, and one line in `SCHEDULES`; or `register` it.
A schedule's file is read when the schedule is first asked for: a plan of 1F1B does not load the other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from meshwright.catalogue import Catalogue
from meshwright.errors import InputError, UnsupportedError, unknown_name
from meshwright.schedules.base import Schedule
from meshwright.schedules.parameters import ScheduleParameter, read_settings, together
from meshwright.schedules.simulate import Jitter, Times, makespans, simulate
from meshwright.schedules.table import Kind, Placement, ScheduleTable

if TYPE_CHECKING:
    from meshwright.schedules.best import BEST_OF, best_schedule
    from meshwright.schedules.bounds import PathBound
    from meshwright.schedules.communication import with_communication
    from meshwright.schedules.links import Links
    from meshwright.schedules.memory import Footprint
    from meshwright.schedules.scheduler import Scheduled
    from meshwright.schedules.stage_shares import Caps
    from meshwright.schedules.timeline import Timeline
    from meshwright.schedules.ways import Candidate

_LATER = {
    "BEST_OF": "best",
    "Candidate": "ways",
    "Caps": "stage_shares",
    "Footprint": "memory",
    "Links": "links",
    "PathBound": "bounds",
    "Scheduled": "scheduler",
    "Timeline": "timeline",
    "best_schedule": "best",
    "with_communication": "communication",
}
"""What this room offers besides, and the file it is read from when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


SCHEDULES: Catalogue[Schedule] = Catalogue(
    f"{__name__}.named",
    {
        "gpipe": "gpipe:GPipe",
        "1f1b": "one_f_one_b:OneFOneB",
        "interleaved": "interleaved:Interleaved",
        "zb-h1": "zb_h1:ZeroBubbleH1",
        "zb-h2": "zb_h2:ZeroBubbleH2",
        "zb-v": "zb_v:ZeroBubbleV",
        "v-half": "v_half:VHalf",
        "v-min": "v_min:VMin",
        "v-1f1b": "v_1f1b:VOneFOneB",
        "zb-auto": "zb_auto:ZeroBubbleAuto",
        "interleaved-zb": "interleaved_zb:InterleavedZeroBubble",
        "dualpipe": "dualpipe:DualPipe",
        "dualpipev": "dualpipev:DualPipeV",
        "seq1f1b": "seq1f1b:Seq1F1B",
        "terapipe": "terapipe:TeraPipe",
        "slimpipe": "slimpipe:SlimPipe",
        "breadth-first": "breadth_first:BreadthFirst",
        "pipedream-flush": "pipedream_flush:PipeDreamFlush",
        "varuna": "varuna:Varuna",
        "mario": "mario:Mario",
        "chimera": "chimera:Chimera",
        "hanayo": "hanayo:Hanayo",
        "avgpipe": "avgpipe:AvgPipe",
        "mixpipe": "mixpipe:MixPipe",
        "pipedream": "pipedream:PipeDream",
        "pipedream-2bw": "pipedream_2bw:PipeDream2BW",
        "bpipe": "bpipe:BPipe",
        "bamboo": "bamboo:Bamboo",
        "ftpipe": "ftpipe:FTPipe",
        "ftpipe-flush": "ftpipe_flush:FTPipeFlush",
        "mobius": "mobius:Mobius",
        "dynapipe": "dynapipe:DynaPipe",
    },
)
"""Every schedule by its name."""

_OURS = frozenset(SCHEDULES)
_SEARCHED = ("gpipe", "1f1b", "interleaved")
"""Our schedules that a search tries unless schedules are named."""


class Names(Sequence[str]):
    """Names of the schedules of which something holds, plug-ins among them as soon as they are registered."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self.holds = holds

    def _all(self) -> tuple[str, ...]:
        return tuple(name for name in SCHEDULES if self.holds(name))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._all()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


PLAN_SCHEDULES = Names(lambda name: not SCHEDULES[name].not_searched)
"""Schedules that searches of plans may try."""

DEFAULT_SCHEDULES = Names(lambda name: name in _SEARCHED or (name not in _OURS and SCHEDULES[name].searched_by_default))
"""Schedules that a search tries unless schedules are named."""


def register(schedule: Schedule) -> None:
    """Add a schedule of one's own: list, drawings, simulation, estimates, search and command line know it then.

    Args:
        schedule: the schedule with a name that no other one has.

    Raises:
        InputError: the name or an alias is taken.
    """
    taken = {*SCHEDULES, *aliases()} & {schedule.name, *schedule.aliases}
    if taken:
        why, fix = "a schedule of that name exists", "choose another name"
        raise InputError(what=f"schedule {', '.join(sorted(taken))}", why=why, fix=fix, field="schedule")
    SCHEDULES[schedule.name] = schedule


def aliases() -> dict[str, str]:
    """Other names of schedules, with the name they stand for."""
    return {alias: name for name, schedule in SCHEDULES.items() for alias in schedule.aliases}


def known_names() -> tuple[str, ...]:
    """All names and aliases."""
    return (*SCHEDULES, *aliases())


def parameters() -> tuple[ScheduleParameter, ...]:
    """The settings of all schedules, each with the schedules that take it."""
    return together(one for schedule in SCHEDULES.values() for one in schedule.parameters())


def schedule_named(token: str) -> Schedule:
    """The schedule with this name or alias, and the settings that stand behind it.

    Args:
        token: the token as `schedule list` prints it, or with settings: `hanayo-waves2`.

    Raises:
        UnsupportedError: nobody knows the name; says which ones are close.
        InputError: the schedule has no such setting.
    """
    if token in SCHEDULES:
        return SCHEDULES[token]
    known = {**SCHEDULES, **{alias: SCHEDULES[name] for alias, name in aliases().items()}}
    if token in known:
        return known[token]
    name = max((name for name in known if token.startswith(f"{name}-")), key=len, default=None)
    if name is None:
        raise UnsupportedError(unknown_name("schedule", token, [*known]))
    schedule = known[name]
    said, unknown = read_settings(schedule, token.removeprefix(f"{name}-"))
    if unknown:
        words = [one.word(one.example) for one in schedule.parameters()]
        why = f"its settings are written like {', '.join(words)}" if words else f"{name} has no settings"
        what = f"schedule {token!r}: {', '.join(map(repr, unknown))} is no setting of {name}"
        raise InputError(what=what, why=why, fix=f"use {'-'.join([name, *words[:1]])}", field="schedule")
    return replace(schedule, **said)


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
    "PathBound",
    "Placement",
    "Schedule",
    "ScheduleParameter",
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
