"""Jobs of one script that are read alike, such as runs over several data sets: one stands for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import replace

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Script, WhichJob
from meshwright.launch_files.model import model_meant

_MOST_JOBS = 24
"""A script of more is asked about: each one is read."""
_ASKED = re.compile(r"--env (\w+)=VALUE")
_FROM_ARGUMENTS = re.compile(r"(?:^|[\s;])(\w+)=[\"']?\$\{\w+#")
"""A variable set to what stands behind the name of an argument: `depth=${argument#*=}`."""
_FILE = re.compile(r"\.(?:h?json|ya?ml|toml)\b")
"""A configuration among what jobs differ in: as long as no plan is read, nobody knows what it changes."""
_PLACE = re.compile(r"(?<![\w./-])[\w./-]+:\d+")


def as_one_job(script: Script, read: Callable[[Script], LaunchFile]) -> tuple[Script, LaunchFile]:
    """A script whose job is chosen, and what is read of it.

    The last job is chosen where nobody named one and all of them are read alike: they differ in data, paths and names.
    Where they are not, the question which one is meant stays.

    Args:
        script: the script as bash means it.
        read: what is read of the job that a script names.
    """
    launched = read(script)
    asked = next((problem for problem in launched.questions if isinstance(problem, WhichJob)), None)
    count = 0 if asked is None else asked.jobs
    if script.job or asked is None or not 1 < count <= _MOST_JOBS:
        return script, launched
    first = _as_read(read(replace(script, job="1")))
    for number in range(2, count + 1):
        chosen = replace(script, job=str(number))
        of_job = read(chosen)
        if _as_read(of_job) != first or (not _is_read(of_job) and _FILE.search(asked.why)):
            return script, launched
    note = f"the script starts {count} jobs that differ in nothing that is read: the last represents all"
    return chosen, replace(of_job, notes=(*of_job.notes, note))


def set_by_arguments(text: str, launched: LaunchFile) -> list[str]:
    """Variables that are asked for, and that the script itself sets from arguments which nobody gave.

    Args:
        text: the text of the script.
        launched: what is read of it.
    """
    asked = dict.fromkeys(name for problem in launched.questions for name in _ASKED.findall(problem.fix))
    set_there = {found[1] for found in _FROM_ARGUMENTS.finditer(text)}
    return [name for name in asked if name in set_there]


def _as_read(launched: LaunchFile) -> tuple[Hashable, ...]:
    """What agrees where two jobs are one: the plan, the model, the workload, and what is wrong or asked."""
    loaded = launched.model.get("name")
    meant = model_meant(loaded) if isinstance(loaded, str) else loaded
    said = sorted((one.option, meant if one.value == loaded else one.value) for one in launched.said)
    values = (launched.row, launched.plan, launched.spec, {**launched.model, "name": meant}, launched.workload, said)
    open_ = map(_without_place, (*launched.problems, *launched.questions))
    return launched.layout, launched.started, launched.multiple, repr(values), *open_


def _is_read(launched: LaunchFile) -> bool:
    return any(one is not None for one in (launched.row, launched.plan, launched.spec))


def _without_place(problem: Problem) -> Problem:
    return replace(problem, what=_PLACE.sub("", problem.what), why=_PLACE.sub("", problem.why))
