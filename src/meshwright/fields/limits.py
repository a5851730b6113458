"""The fields that say how long a search may take, and how much memory it may use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from meshwright.budget import within
from meshwright.errors import InfeasibleError
from meshwright.fields.field import ask
from meshwright.fields.host import MemorySize
from meshwright.fields.kinds import Duration
from meshwright.units import GIB, seconds

TIME_LIMIT_S = 120.0
MEMORY_LIMIT_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFields:
    """What a search may use; at a limit it answers with the best so far."""

    usual_time_s: ClassVar[float | None] = TIME_LIMIT_S

    time_limit: float | None = ask(
        "Time limit of the search: 30, 2min. The best plan so far is returned, with its gap to the lower bound.",
        Duration(),
        usual="120 s",
        rare=True,
    )
    memory_limit: float | None = ask(
        "Memory limit of the search: 8GiB.",
        MemorySize(),
        usual="4 GiB",
        rare=True,
    )

    def budget(self) -> AbstractContextManager[None]:
        """The budget of these limits, from when it is entered."""
        return within(self.time_limit or self.usual_time_s, self.memory_limit or MEMORY_LIMIT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLimitFields(LimitFields):
    """The same for a study, whose number of trials limits its time already."""

    usual_time_s: ClassVar[float | None] = None


def stopped_warning(limit: str) -> str:
    """What is said beside the best of a search that was stopped."""
    option = "--time-limit" if limit.startswith("time") else "--memory-limit"
    return f"the search stopped at its {limit}: this is the best so far, and {option} sets another"


def nothing_in_time(limit: str, what: str, *, so_far: str = "") -> InfeasibleError:
    """The error of a search that was stopped with nothing found.

    Args:
        limit: the limit that was reached, as `budget.spent` names it.
        what: was looked for: `a plan of llama-3.1-8b`.
        so_far: what is known, if anything is.
    """
    option = "--time-limit 10min" if limit.startswith("time") else "--memory-limit 16GiB"
    narrow = "or narrow the search: --pin tp=8, fewer schedules, fewer devices"
    return InfeasibleError(
        what=f"the search for {what} reached its {limit} before it found one",
        why=so_far or f"by default a search takes at most {seconds(TIME_LIMIT_S)} and {MEMORY_LIMIT_BYTES / GIB:g} GiB",
        fix=f"{option}, {narrow}",
        field=limit.replace(" ", "_"),
        code="MW320",
    )
