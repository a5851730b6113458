"""A launch file that names a file which is not here, with the name of the one beside it that it can mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import MeshwrightError
from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.fixes.base import OptionChange, ScriptFix, unified
from meshwright.launch_files.source import LaunchSource

_MOST = 20
"""Files of a folder that are tried."""
_MISSING = re.compile(r"(\S+) is not here$")


def renamed_file(source: LaunchSource, launch: LaunchFile) -> ScriptFix | None:
    """The file with another name in it, where it leaves nothing open with exactly one of the files beside it.

    Args:
        source: the user's files.
        launch: what was read of them.
    """
    if len(launch.questions) != 1 or (missing := _MISSING.match(launch.questions[0].what)) is None:
        return None
    old, option = missing[1], launch.questions[0].field
    place = next((said.place for said in launch.said if said.option == option), "")
    found = list(_readable(source, old))
    if len(found) != 1:
        return None
    new, text, plan = found[0]
    return ScriptFix(
        plan=plan,
        noun="script" if source.by_options else "configuration",
        changes=(OptionChange(option=option, old=old, new=new, place=place),),
        diff="".join(unified({source.name: source.text}, {source.name: text})),
        text=text,
    )


def _readable(source: LaunchSource, old: str) -> Iterator[tuple[str, str, str]]:
    """Names of files beside a launch file, each with the text that names it and the plan that this says."""
    folder = source.near.folder
    names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder is not None else []
    suffixes = {Path(old).suffix} if Path(old).suffix in (".json", ".yaml", ".yml") else {".json", ".yaml", ".yml"}
    tried = [name for name in names if Path(name).suffix in suffixes and name not in (source.name, old)]
    for name in tried[:_MOST]:
        text, count = re.subn(rf"(?<![\w./-]){re.escape(old)}(?![\w./-])", name, source.text)
        try:
            read = source.reading({**source.files, source.name: text, name: (folder / name).read_text()})  # type: ignore[operator]
        except (MeshwrightError, OSError, UnicodeError):
            continue
        if count == 1 and read.row is not None and not read.questions and not read.problems:
            yield name, text, read.row.format()
