"""The user's own launch script with another plan in it: the fewest options changed where they are written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.script_edit import edits
from meshwright.planning.launch_script import LaunchSource, Outside
from meshwright.records import Record
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.targets import TargetFiles

_OF_A_PLAN = re.compile(
    r"parallel|recompute|checkpoint-activations|virtual|pipeline|distributed-optimizer|overlap|fsdp|offload|"
    r"micro-batch|precision-aware|cp-comm|sharding"
)
"""Options that say a plan, not the model or the run."""
_USUAL = ("1", "p2p")
"""Values that hold where an option is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange(Record):
    """An option that another plan sets otherwise."""

    option: str
    old: str | None
    """None where the script does not give it."""
    new: str | None
    """None where it is taken out."""
    place: str
    """Where it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFix(Record):
    """A script edited to another plan."""

    plan: str
    changes: tuple[OptionChange, ...]
    diff: str
    """Unified; empty where the script cannot be edited."""
    why_not: str = ""
    """Why there is no diff; the changes are said all the same."""
    text: str = ""
    """The whole edited script."""


def script_fix(source: LaunchSource, now: LaunchFile, job: Job, wanted: PlanRow, estimate: StepEstimate) -> ScriptFix:
    """The script with the options of another plan.

    Every edit is read back: one that changes anything else is not made.

    Args:
        source: the user's script.
        now: what was read of it.
        job: the other plan.
        wanted: it as a row.
        estimate: of it.
    """
    try:
        said = _said(source, source.target.files(job, estimate))
    except MeshwrightError as error:
        return ScriptFix(plan=wanted.format(), changes=(), diff="", why_not=error.problems[0].what)
    changes = list(_changes(now, said))
    text, missed = source.text, []
    changing = {change.option for change in changes}
    for change in changes:
        edited = _edited(source, text, change, changing)
        if edited is None:
            missed.append(change.option)
        else:
            text = edited
    kept = tuple(changes)
    reached = source.read(text).row
    if missed or reached is None or reached.format() != wanted.format():
        why = f"{', '.join(missed)} cannot be changed in place" if missed else "the edited script reads as another plan"
        return ScriptFix(plan=wanted.format(), changes=kept, diff="", why_not=why)
    name = source.name or "script"
    lines = difflib.unified_diff(
        source.text.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return ScriptFix(plan=wanted.format(), changes=kept, diff="".join(lines), text=text)


def _said(source: LaunchSource, written: TargetFiles) -> dict[str, str]:
    """Options of a plan as the target's own files give them."""
    files = {name: text for name, text in written.files if name != "plan.json"}
    again = LaunchSource(
        files=files, folder=None, target=source.target, devices=source.devices, outside=Outside(environment={})
    )
    return {said.option: said.value for said in again.read().said}


def _changes(now: LaunchFile, wanted: dict[str, str]) -> Iterator[OptionChange]:
    old: dict[str, Said] = {said.option: said for said in now.said}
    names = [name for name in (*old, *wanted) if _OF_A_PLAN.search(name)]
    for name in dict.fromkeys(names):
        before, after = old.get(name), wanted.get(name)
        held = before.value if before is not None else None
        usual = (held is None and after in _USUAL) or (after is None and held in _USUAL and "recompute" not in name)
        if held == after or usual:
            continue
        yield OptionChange(option=name, old=held, new=after, place=before.place if before is not None else "")


def _edited(source: LaunchSource, text: str, change: OptionChange, changing: set[str]) -> str | None:
    """The text with one option changed and all that stays read as before."""
    wanted = {said.option: said.value for said in source.read(text).said if said.option not in changing}
    file, _, line = change.place.rpartition(":")
    here = int(line) if line.isdigit() and file == (source.name or "script") else None
    for edited in edits(text, change.option, change.old, change.new, here):
        read = source.read(edited)
        after = {said.option: said.value for said in read.said}
        if after.get(change.option) == change.new and not read.questions:
            same = all(
                after.get(name, value if name in read.unpriced else None) == value for name, value in wanted.items()
            )
            if same:
                return edited
    return None
