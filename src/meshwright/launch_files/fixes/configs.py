"""The user's own configuration files with another plan in them: the fewest keys changed where they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.fixes.base import ScriptFix, unified
from meshwright.launch_files.fixes.keys import ABSENT, KeyChange, changed_keys, edited_files
from meshwright.launch_files.fixes.script import read_back
from meshwright.launch_files.fixes.started import FilesAnew, with_options
from meshwright.launch_files.source import LaunchSource
from meshwright.launch_files.workload import usable
from meshwright.specs.job import Job
from meshwright.targets import adapters, hugging_face
from meshwright.targets.contract import PLAN_FILE


def config_fix(source: LaunchSource, now: LaunchFile, job: Job, plan: str, estimate: StepEstimate) -> ScriptFix:
    """The configuration with the keys of another plan; what the plan does not need is not touched.

    Args:
        source: the user's files.
        now: what was read of them.
        job: the other plan.
        plan: its name.
        estimate: the estimate of it.
    """
    noun = "script" if source.script is not None or source.name.endswith(".sh") else "configuration"
    try:
        written = source.target.files(job, estimate)
    except MeshwrightError as error:
        return ScriptFix(plan=plan, noun=noun, changes=(), diff="", why_not=error.problems[0].what)
    if source.target.edited(source.name, source.text) is None and not source.by_options:
        target = source.target
        why = f"this form is not edited in place: take the plan's file from `export --to {target.name}`"
        return ScriptFix(plan=plan, noun=noun, changes=(), diff="", why_not=why)
    theirs = {name: text for name, text in written.files if name != PLAN_FILE}
    if gone := [name for name in source.target.beside if name in source.files and name not in theirs]:
        why = f"the plan has no {' and no '.join(gone)}: take its files from `export --to {source.target.name}`"
        return ScriptFix(plan=plan, noun=noun, changes=(), diff="", why_not=why)
    main = next((name for name, text in theirs.items() if source.target.recognised(name, text)), "")
    # Where the user has no file of a kind, the plan is compared without it.
    theirs, source, added = _alike_named(source, theirs, main)
    names = {name: main if name == source.name else name for name in source.files}
    compared = {name: theirs[own] for name, own in names.items() if own in theirs}
    wanted = read_back(source, {own: theirs[own] for own in names.values() if own in theirs})
    read = {said.option for said in (*now.said, *wanted.said)}
    changes = [change for name, text in compared.items() for change in changed_keys(source, name, text, read)]
    first = edited_files(source, changes) if now.row is None else ""
    if not isinstance(first, str):  # what says no plan was not read to its end
        read |= {said.option for said in source.reading(first).said}
        changes = [change for name, text in compared.items() for change in changed_keys(source, name, text, read)]
    settled = {*source.files, hugging_face.SCRIPT, *(adapters.FILES if "lora" in now.workload else ())}
    missing = [one for one in source.target.beside if one in theirs and one not in settled]
    notes = [f"{name} was not found; `export --to {source.target.name}` writes it" for name in missing]
    made = ScriptFix(plan=plan, noun=noun, changes=(), diff="", notes=tuple(notes))
    return rewritten(source, now, wanted, changes, made, added)


def rewritten(
    source: LaunchSource,
    now: LaunchFile,
    wanted: LaunchFile,
    changes: list[KeyChange],
    fix: ScriptFix,
    added: tuple[str, ...] = (),
) -> ScriptFix:
    """A fix with the fewest of some changes that make the user's files say another plan, or why none do.

    Args:
        source: the user's files.
        now: what was read of them.
        wanted: what they shall say.
        changes: all that may be needed.
        fix: the plan's name, and notes.
        added: files that are new.
    """
    notes = list(fix.notes)
    edited = edited_files(source, changes)
    if isinstance(edited, str):
        # Keys that the user's version does not have may not be needed.
        fewer = [one for one in changes if one.old is not ABSENT or not isinstance(edited_files(source, [one]), str)]
        less = edited_files(source, fewer)
        if not isinstance(less, str) and say_the_same(source.reading(less), wanted):
            changes, edited = fewer, less
    if not isinstance(edited, str) and not say_the_same(source.reading(edited), wanted):
        edited = "the edited file reads as another plan"
    if isinstance(edited, str):
        return replace(fix, changes=tuple(change.as_option(now) for change in changes), why_not=edited)
    kept = source.target.left_out
    for change in [one for one in changes if one.new is not ABSENT or one.path not in kept]:
        without = [other for other in changes if other is not change]
        smaller = edited_files(source, without)
        if not isinstance(smaller, str) and say_the_same(source.reading(smaller), wanted):
            changes, edited = without, smaller
    changed = tuple(change.as_option(now) for change in changes)
    files = {name: text for name, text in edited.items() if name not in source.options}
    if source.script is not None:
        own = {name: source.files[name] for name in files if name not in added} | dict.fromkeys(added, "")
        options = [change for change in changes if change.file in source.options]
        made = replace(fix, changes=changed, notes=tuple(notes))
        return with_options(source.script, now, made, options, FilesAnew(before=own, after=files))
    beside = tuple((name, text) for name, text in files.items() if name != source.name and text != source.files[name])
    beside += tuple((name, files[name]) for name in added)
    before = {**source.files, **dict.fromkeys(added, "")}
    diff = "".join(unified(before, files))
    return replace(
        fix,
        changes=changed,
        diff=diff,
        text=edited[source.name],
        beside=beside,
        notes=tuple(notes),
    )


def _alike_named(
    source: LaunchSource, theirs: dict[str, str], main: str
) -> tuple[dict[str, str], LaunchSource, tuple[str, ...]]:
    """The plan's own files, those that the main one names called as the user's; the user's, with files that are new.

    Args:
        source: the user's files.
        theirs: text of the plan's own by name.
        main: the one of them that stands for the user's file.
    """
    named, own = source.target.named, source.target.named(source.text)
    if not main or not named(theirs[main]):
        return theirs, source, ()
    if own:
        for path, users in zip(named(theirs[main]), own, strict=False):
            theirs = {**theirs, main: theirs[main].replace(path, users)}
            theirs[PurePath(users).name] = theirs.pop(path)
        return theirs, source, ()
    added = {name: theirs[name] for name in named(theirs[main]) if name not in source.files}
    return theirs, replace(source, files={**source.files, **added}), tuple(added)


def say_the_same(one: LaunchFile, other: LaunchFile) -> bool:
    """Whether two files say one plan."""
    one = usable(one)
    if one.row is None or other.row is None or one.questions:
        return False
    workload = {name: value for name, value in one.workload.items() if other.workload.get(name) != value}
    workload.pop("seq_len", None)
    fewer = {problem.what for problem in one.problems} - {problem.what for problem in other.problems}
    # A plan's line does not tell exposed tensor traffic from the usual kind.
    workload |= {"tp_overlap": ""} if one.row.tp > 1 and one.row.tp_overlap != other.row.tp_overlap else {}
    counted = one.started in (None, other.started)
    alike = one.row.format() == other.row.format() and one.layout == other.layout
    return alike and counted and not workload and not fewer
