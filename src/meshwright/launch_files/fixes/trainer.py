"""A trainer's own file with another plan in it, where the keys that say plans are known: checked by reading it back."""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.fixes.base import ScriptFix
from meshwright.launch_files.fixes.configs import rewritten, say_the_same
from meshwright.launch_files.fixes.keys import KeyChange, edited_files
from meshwright.launch_files.source import LaunchSource
from meshwright.specs.row import PlanRow
from meshwright.targets.contract import ReadTarget


def trainer_fix(source: LaunchSource, now: LaunchFile, row: PlanRow) -> ScriptFix:
    """The file of a trainer with the keys of another plan; nothing else in it is touched.

    Args:
        source: the user's file.
        now: what was read of it.
        row: the other plan.
    """
    made = ScriptFix(plan=row.format(), noun="configuration", changes=(), diff="", why_not=_unedited(source))
    if made.why_not:
        return made
    changes = _changes(source, row)
    fix = rewritten(source, now, _wanted(now, row), changes, made)
    if not fix.why_not:
        return fix
    files = edited_files(source, [one for one in changes if not isinstance(edited_files(source, [one]), str)])
    read = None if isinstance(files, str) else source.reading(files).row
    if read is None:
        return fix
    title = source.target.title
    lost = [token for token in row.tokens() if token not in read.tokens()]
    kept = [token for token in read.tokens() if token not in row.tokens()]
    if not lost and not kept:  # what a plan's line does not tell, such as traffic that nothing hides
        return fix
    why = f"no key of {title}, or none in this file, says {', '.join(lost)}" if lost else ""
    return replace(fix, why_not=why or f"{title} has {', '.join(kept)} whatever its keys say")


def says(source: LaunchSource, now: LaunchFile, row: PlanRow) -> bool:
    """Whether a trainer's file says a plan once its keys are set; arguments as `trainer_fix` takes them."""
    if _unedited(source):
        return False
    files = edited_files(source, _changes(source, row))
    return not isinstance(files, str) and say_the_same(source.reading(files), _wanted(now, row))


def _unedited(source: LaunchSource) -> str:
    """Why the file is not edited; nothing where it is."""
    target = source.target
    assert isinstance(target, ReadTarget)
    if source.is_bash:
        return f"the plan is in words of a command of {target.title}, which are not edited"
    if target.says is None or target.edited(source.name, source.text) is None:
        return f"files of {target.title} in this form are read, and not edited in place"
    return ""


def _changes(source: LaunchSource, row: PlanRow) -> list[KeyChange]:
    """Keys that are not as a plan wants them."""
    target, keys = source.target, source.target.edited(source.name, source.text)
    assert isinstance(target, ReadTarget)
    assert target.says is not None
    assert keys is not None
    made = []
    for path, value in target.says(row, source.text).items():
        if path not in keys.values:
            made.append(KeyChange(file=source.name, path=path, new=value))
        elif keys.values[path] != value:
            made.append(KeyChange(file=source.name, path=path, old=keys.values[path], new=value))
    return made


def _wanted(now: LaunchFile, row: PlanRow) -> LaunchFile:
    """What the file shall say: the plan, and all else as it is."""
    return replace(now, row=row, layout=None, workload={**now.workload, "global_batch": row.gbs})
