"""Pipeline schedules: in which order every worker runs the tasks of a step, what that costs and keeps alive.

A new schedule is one file with a subclass of `Schedule` and one line in `SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from meshwright.schedules.links import Links
from meshwright.schedules.memory import Footprint
from meshwright.schedules.mixpipe import MixPipe
from meshwright.schedules.mobius import Mobius
from meshwright.schedules.one_f_one_b import OneFOneB
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


BEST_OF: tuple[str, ...] = tuple(
    name
    for name, schedule in SCHEDULES.items()
    if schedule.exact_semantics
    and schedule.weight_copies == 1
    and schedule.weight_passes == 0
    and schedule.sections() == 1
    and name not in {"mobius", "zb-auto"}
)
"""Those that compete unless told otherwise: exact, with one copy of the weights that stays on its worker and whole
sequences. `zb-auto` is the scheduler itself on one chunk per worker."""


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
    "ALIASES",
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
    "ScheduleTable",
    "Scheduled",
    "Timeline",
    "Times",
    "best_schedule",
    "makespans",
    "schedule_named",
    "simulate",
    "with_communication",
]
