"""What a launch file says of its workload, without values that no workload can have: these are problems of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.errors import MeshwrightError, Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.optimizers import optimizer_named


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a workload, and which options or keys say it."""

    name: str
    said: re.Pattern[str]
    noun: str

    def problem(self, flags: LaunchFile) -> Problem | None:
        """What is wrong with the value; None where nothing is."""
        value = flags.workload.get(self.name)
        wrong = "" if value is None else self.wrong(value)
        if not wrong:
            return None
        option = next((one.option for one in flags.said if self.said.search(one.option)), "")
        shown = next((one.value for one in flags.said if one.option == option), str(value))
        return Problem(what=f"{option or self.noun} is {shown!r:.60}", why=wrong, field=option or self.name)

    def wrong(self, value: object) -> str:
        """Why no workload has a value."""
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return "" if whole else "must be a whole number of at least 1"


class _Optimizer(_Part):
    """The optimizer, by a name that is known."""

    __slots__ = ()

    def wrong(self, value: object) -> str:
        try:
            optimizer_named(str(value))
        except MeshwrightError as error:
            return error.problems[0].why
        return ""


_PARTS = (
    _Part(name="seq_len", said=re.compile(r"seq|length|context_len|cutoff|SEQ_LEN"), noun="the sequence length"),
    _Part(name="global_batch", said=re.compile(r"global.?batch|train_batch_size|gbs|GLOBAL_BATCH"), noun="the batch"),
    _Optimizer(name="optimizer", said=re.compile(r"optim", re.IGNORECASE), noun="the optimizer"),
)


def usable(flags: LaunchFile) -> LaunchFile:
    """A file without values of its workload that no workload has: each is a problem, unless its option is one already.

    Args:
        flags: what was read.
    """
    found = [(part.name, problem) for part in _PARTS if (problem := part.problem(flags)) is not None]
    if not found:
        return flags
    reported = {problem.field for problem in flags.problems}
    workload = {name: value for name, value in flags.workload.items() if name not in {one for one, _ in found}}
    more = tuple(_unreported((problem for _, problem in found), reported))
    unplanned = any(name == "global_batch" for name, _ in found)
    return replace(flags, row=None if unplanned else flags.row, workload=workload, problems=(*flags.problems, *more))


def _unreported(problems: Iterator[Problem], reported: set[str]) -> Iterator[Problem]:
    yield from (problem for problem in problems if problem.field not in reported)
