"""The user's own launch script with another plan in it: the fewest options changed where they are written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.script_edit import edits
from meshwright.planning.launch_source import LaunchSource, Outside
from meshwright.planning.named_files import NamedFiles
from meshwright.records import Record, fields_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.targets.contract import PLAN_FILE

_OF_A_PLAN = re.compile(
    r"parallel|recompute|checkpoint-activations|virtual|pipeline|distributed-optimizer|overlap|fsdp|offload|"
    r"micro-batch|precision-aware|cp-comm|sharding|ckpt-format|zero-stage|cpu-optimizer|^--plan$"
)
"""Options that say a plan, not the model or the run."""
_SECRET = re.compile(
    r"""(?<![\w-])(?!(?:pad|eos|bos|unk)_token\b)"""
    r"""((?:[\w-]*[-_])?(?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)"""
    r"""(?!["'$\s\\-])[^\s"']+""",
    re.IGNORECASE,
)
"""A name that ends in a word for a secret, and its value, unless that is a variable."""
_SECRET_VARIABLE = re.compile(
    r"""((?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:[-_]id)?(?:\s*[=:]\s*|\s+)["']?)\$\{?(\w+)""",
    re.IGNORECASE,
)
"""The same with a variable behind it."""
_ASSIGNED = re.compile(r"""((?<!\w)(\w+)(?:=|:[-=])["']?)(?!["'$\s}])[^\s"'}]+""")
"""A variable that is set, or has a default, and its value."""
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
    """A launch file edited to another plan."""

    plan: str
    noun: str = "script"
    """What the file is."""
    changes: tuple[OptionChange, ...]
    diff: str
    """Unified; empty where the script cannot be edited."""
    why_not: str = ""
    """Why there is no diff; the changes are told all the same."""
    text: str = ""
    """The whole edited file."""
    beside: tuple[tuple[str, str], ...] = ()
    """Name and text of files beside it that change with it."""
    notes: tuple[str, ...] = ()
    """What to change besides."""

    def to_dict(self) -> dict[str, Any]:
        """As data, with what stands for a secret left out of the text."""
        beside = {name: _without_secrets(text) for name, text in self.beside}
        return {**fields_of(self), "text": _without_secrets(self.text), "beside": beside}


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
        written = source.target.files(job, estimate)
    except MeshwrightError as error:
        return ScriptFix(plan=wanted.format(), changes=(), diff="", why_not=error.problems[0].what)
    if source.target.name == "megatron" and any(said.option == "--deepspeed" for said in now.said):
        why = (
            "Megatron-DeepSpeed has other options for it: --zero-stage for ZeRO, --checkpoint-activations for full "
            "recompute, --ds-sequence-parallel-size for Ulysses; stages are of equal size and have one chunk"
        )
        return ScriptFix(plan=wanted.format(), changes=(), diff="", why_not=why)
    other_plan = read_back(source, {name: text for name, text in written.files if name != PLAN_FILE})
    all_changes = list(_changes(now, other_plan))
    other = [change.option for change in all_changes if change.option in source.target.elsewhere]
    changes = [change for change in all_changes if change.option not in other]
    notes = tuple(
        f"{option} is not an option of this script; set it with {source.target.elsewhere[option]}" for option in other
    )
    text, missed = _with_changes(source, source.text, changes)
    if now.row is None and not missed:  # what says no plan was not read to its end
        told = {change.option for change in all_changes}
        more = [change for change in _changes(source.read(text), other_plan) if change.option not in told]
        text, missed = _with_changes(source, text, more)
        changes += more
    notes += tuple(_left_beside(source, dict(written.files)))
    kept = tuple(changes)
    reached = source.read(text).row
    if reached is not None and "--overlap-grad-reduce" in other:
        reached = replace(reached, dp_overlap=wanted.dp_overlap)
    if missed or reached is None or reached.format() != wanted.format():
        why = f"{', '.join(missed)} cannot be changed in place" if missed else "the edited script reads as another plan"
        return ScriptFix(plan=wanted.format(), changes=kept, diff="", why_not=why)
    unset = "unset CUDA_DEVICE_MAX_CONNECTIONS" in "".join(text for _, text in written.files)
    if unset and re.search(r"CUDA_DEVICE_MAX_CONNECTIONS=[\"']?1", text):
        notes += ("take CUDA_DEVICE_MAX_CONNECTIONS=1 out of the environment: this plan does not start with it",)
    name = source.name or "script"
    lines = difflib.unified_diff(
        source.text.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return ScriptFix(
        plan=wanted.format(),
        changes=kept,
        diff="".join(masked(line, secret_names(source.text)) for line in lines),
        text=text,
        notes=notes,
    )


def _with_changes(source: LaunchSource, text: str, changes: Sequence[OptionChange]) -> tuple[str, list[str]]:
    """A script with options changed, and those of them that cannot be changed in place."""
    missed, changing = [], {change.option for change in changes}
    for change in changes:
        edited = _edited(source, text, change, changing)
        if edited is None:
            missed.append(change.option)
        else:
            text = edited
    return text, missed


def _left_beside(source: LaunchSource, written: Mapping[str, str]) -> Iterator[str]:
    """Says which files beside a script still say its own plan."""
    for name, text in written.items():
        there = source.near(name) if name.endswith((".json", ".yaml")) and name != PLAN_FILE else None
        if there is not None and there != text and name != source.name:
            yield f"{name} beside it says the old plan: take its keys from `export --to {source.target.name}`"


def _without_secrets(text: str) -> str:
    names = secret_names(text)
    return "".join(masked(line, names) for line in text.splitlines(keepends=True))


def secret_names(text: str) -> frozenset[str]:
    """Variables of a script that are given where a key, a token or a password stands."""
    return frozenset(found[2] for found in _SECRET_VARIABLE.finditer(text))


def masked(line: str, names: frozenset[str] = frozenset()) -> str:
    """A line to show, with what stands for a key, a token or a password left out; the file that is written keeps it.

    Args:
        line: of a script.
        names: variables whose values are secrets.
    """
    line = _SECRET.sub(lambda found: f"{found[1]}***", line)
    return _ASSIGNED.sub(lambda found: f"{found[1]}***" if found[2] in names else found[0], line)


def read_back(source: LaunchSource, files: Mapping[str, str]) -> LaunchFile:
    """A plan's files as its target writes them, read."""
    outside = Outside(environment={})
    nothing = NamedFiles(None)
    return LaunchSource(files=files, near=nothing, target=source.target, devices=source.devices, outside=outside).read()


def _changes(now: LaunchFile, wanted: LaunchFile) -> Iterator[OptionChange]:
    """Options of a plan that differ, those that price nothing but belong to it among them."""
    old: dict[str, Said] = {said.option: said for said in (*now.said, *now.unpriced)}
    new = {said.option: said.value for said in (*wanted.said, *wanted.unpriced)}
    said = {one.option for one in (*now.said, *wanted.said)}
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        held = before.value if before is not None else None
        usual = (held is None and after in _USUAL) or (after is None and held in _USUAL and "recompute" not in name)
        if not _OF_A_PLAN.search(name) or held == after or usual or (name not in said and after is None):
            continue
        yield OptionChange(option=name, old=held, new=after, place=before.place if before is not None else "")


def _edited(source: LaunchSource, text: str, change: OptionChange, changing: set[str]) -> str | None:
    """The text with one option changed and all that stays read as before."""
    held = source.read(text)
    if {said.option: said.value for said in (*held.said, *held.unpriced)}.get(change.option) == change.new:
        return text  # an edit before this one did it
    wanted = {said.option: said.value for said in held.said if said.option not in changing}
    file, _, line = change.place.rpartition(":")
    here = int(line) if line.isdigit() and file == (source.name or "script") else None
    for edited in edits(text, change.option, change.old, change.new, here, source.commands(text)):
        read = source.read(edited)
        after = {said.option: said.value for said in (*read.said, *read.unpriced)}
        if after.get(change.option) == change.new and not read.questions:
            same = all(after.get(name) == value for name, value in wanted.items())
            if same:
                return edited
    return None
