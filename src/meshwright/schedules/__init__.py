"""Pipeline schedules: in which order every worker runs the tasks of a step, what that costs and keeps alive.

A new schedule is one file with a subclass of `Schedule` and one line in `SCHEDULES`.
"""

from __future__ import annotations

from meshwright.errors import UnsupportedError, unknown_name
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
from meshwright.schedules.mixpipe import MixPipe
from meshwright.schedules.mobius import Mobius
from meshwright.schedules.one_f_one_b import OneFOneB
from meshwright.schedules.pipedream import PipeDream
from meshwright.schedules.pipedream_2bw import PipeDream2BW
from meshwright.schedules.pipedream_flush import PipeDreamFlush
from meshwright.schedules.seq1f1b import Seq1F1B
from meshwright.schedules.simulate import Timeline, Times, makespans, simulate
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.schedules.v_half import VHalf
from meshwright.schedules.v_min import VMin
from meshwright.schedules.varuna import Varuna
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

PLAN_SCHEDULES: tuple[str, ...] = tuple(name for name, schedule in SCHEDULES.items() if not schedule.not_in_plans)
"""Those that plans may run."""

DEFAULT_SCHEDULES: tuple[str, ...] = ("gpipe", "1f1b", "interleaved")
"""Those a search tries unless told otherwise: exact, and in every framework with pipelines."""

ALIASES: dict[str, str] = {alias: name for name, schedule in SCHEDULES.items() for alias in schedule.aliases}
"""Other names of schedules."""


def schedule_named(name: str) -> Schedule:
    """The schedule with this name or alias.

    Args:
        name: as `schedule list` prints it.

    Raises:
        UnsupportedError: nobody knows the name; says which ones are close.
    """
    found = SCHEDULES.get(ALIASES.get(name, name))
    if found is None:
        raise UnsupportedError(unknown_name("schedule", name, [*SCHEDULES, *ALIASES]))
    return found


__all__ = [
    "ALIASES",
    "DEFAULT_SCHEDULES",
    "PLAN_SCHEDULES",
    "SCHEDULES",
    "Kind",
    "PathBound",
    "Placement",
    "Schedule",
    "ScheduleTable",
    "Timeline",
    "Times",
    "makespans",
    "schedule_named",
    "simulate",
    "with_communication",
]
