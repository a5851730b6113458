"""A script that starts a program with configurations, with another plan in both: options, and files it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.script_edit import edits, with_written
from meshwright.launch_files.fixes.base import ScriptFix, unified
from meshwright.launch_files.fixes.keys import ABSENT, KeyChange, text_of_value
from meshwright.launch_files.source import LaunchSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesAnew:
    """Configurations that a script starts a program with, before and after, by name."""

    before: Mapping[str, str]
    after: Mapping[str, str]


def with_options(
    script: LaunchSource, now: LaunchFile, fix: ScriptFix, options: Sequence[KeyChange], files: FilesAnew
) -> ScriptFix:
    """The fix of a script: its options and the files it writes changed in it, the others beside it.

    What cannot be changed in the script is told as the options to write.

    Args:
        script: the user's script.
        now: what was read of it.
        fix: the plan's name, what changes, and notes.
        options: what changes of the options of the program.
        files: the configurations.
    """
    text, beside = script.text, {name: one for name, one in files.after.items() if one != files.before[name]}
    for name, held in script.written(text).items():
        if name in beside:
            anew = with_written(text, held, beside.pop(name))
            if anew is None:
                return replace(fix, diff="", why_not=f"{name}, which the script writes, cannot be changed in place")
            text = anew
    given = [change for change in options if change.as_option(now).place.startswith("--set")]
    left: list[KeyChange] = []
    for change in (one for one in options if one not in given):
        edited = _with_option(script, now, text, beside, change)
        text, left = (text, [*left, change]) if edited is None else (edited, left)
    if not (left or given) and (why := _why_not(script, text, beside, fix.plan)):
        return replace(fix, diff="", why_not=why)
    before = {script.name: script.text, **files.before}
    after = {**({script.name: text} if text != script.text else {}), **beside}
    return replace(
        fix,
        diff="".join(unified(before, after)),
        text=text,
        beside=tuple(beside.items()),
        notes=(*fix.notes, *_to_write(script.name, left, given, now)),
    )


def _with_option(
    script: LaunchSource, now: LaunchFile, text: str, beside: Mapping[str, str], change: KeyChange
) -> str | None:
    """The script with one option changed and all others read as before; None where it is not found in it."""
    said = change.as_option(now)
    flag = now.spelled.get(change.path, f"--{change.path}")
    file, _, line = said.place.rpartition(":")
    here = int(line) if line.isdigit() and file == script.name else None
    held = {one.option: one.value for one in _read(script, text, beside).said if one.option != change.path}
    for edited in edits(text, flag, said.old, said.new, here):
        read = _read(script, edited, beside)
        after = {one.option: one.value for one in read.said}
        reached = change.path not in after if change.new is ABSENT else _same(after.get(change.path), said.new)
        if reached and not read.questions and all(after.get(name) == value for name, value in held.items()):
            return edited
    return None


def _same(value: str | None, wanted: str | None) -> bool:
    return value is not None and wanted is not None and value.lower() == wanted.lower()


def _why_not(script: LaunchSource, text: str, beside: Mapping[str, str], plan: str) -> str:
    """Why an edited script is not the one that is wanted; empty where it is."""
    read = _read(script, text, beside)
    same = read.row is not None and read.row.format() == plan
    return "" if same else "the edited script reads as another plan"


def _read(script: LaunchSource, text: str, beside: Mapping[str, str]) -> LaunchFile:
    """The script with this text, and with these files beside it."""
    around = {name: beside.get(name, one) for name, one in script.files.items() if name != script.name}
    near = replace(script.near, held={**script.near.held, **beside})
    return replace(script, files={script.name: text, **around}, near=near).read()


def _to_write(script: str, options: Sequence[KeyChange], given: Sequence[KeyChange], now: LaunchFile) -> Iterator[str]:
    """What to write into a script whose options are not edited, each as its program calls it."""
    if options:
        called = ((now.spelled.get(change.path, f"--{change.path}"), change.new) for change in options)
        yield f"in {script} write {' '.join(f'{flag} {text_of_value(new)}' for flag, new in called)}"
    if given:
        said = ", ".join(f"{change.path} {text_of_value(change.new)}" for change in given)
        yield f"what --set said of the program becomes {said}"
