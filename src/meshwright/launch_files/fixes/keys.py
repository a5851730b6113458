"""Keys of the user's own files that another plan sets otherwise, changed where they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from meshwright.formats.key_text import KeyText
from meshwright.formats.launch_file import LaunchFile
from meshwright.launch_files.fixes.base import OptionChange
from meshwright.launch_files.source import LaunchSource
from meshwright.launch_files.trainer_option_names import MODELS

ABSENT = object()
"""Stands for the value of a key that a file does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A key that another plan sets otherwise."""

    file: str
    """Name of the file."""
    path: str
    """The key with those of the tables around it, dots between."""
    new: Any
    """`ABSENT` where the other plan does not have it."""
    old: Any = ABSENT
    """`ABSENT` where the file does not have it."""
    whole: bool = False
    """The table around it goes too: the other plan has no such table."""

    def as_option(self, now: LaunchFile) -> OptionChange:
        """The change as people read it.

        Args:
            now: the reading of the files before it, which says where the key stands.
        """
        place = next((said.place for said in (*now.said, *now.unpriced) if said.option == self.path), "")
        old, new = (None if value is ABSENT else text_of_value(value) for value in (self.old, self.new))
        return OptionChange(option=self.path, old=old, new=new, place=place)


def changed_keys(source: LaunchSource, name: str, theirs: str, read: set[str]) -> Iterator[KeyChange]:
    """Keys of one file that the plan's own file holds otherwise, among those that say a plan.

    Args:
        source: the user's files.
        name: the name of the file.
        theirs: text of the plan's own file.
        read: paths of the keys that say a plan.
    """
    before, after = (_edited(source.target.edited, name, text) for text in (source.files[name], theirs))
    if before is None or after is None:
        return
    for path in dict.fromkeys((*before.values, *after.values)):
        old, new = before.values.get(path, ABSENT), after.values.get(path, ABSENT)
        above = path.rpartition(".")[0]
        whole = new is ABSENT and above != "" and not any(key.startswith(f"{above}.") for key in after.values)
        if path in read and old != new and path not in MODELS:
            yield KeyChange(file=name, path=path, old=old, new=new, whole=whole)


def edited_files(source: LaunchSource, changes: list[KeyChange]) -> dict[str, str] | str:
    """The files with these changes; or what cannot be changed in place.

    Args:
        source: the user's files.
        changes: the changes of their keys.
    """
    files, missed = dict(source.files), []
    for change in changes:
        keys = _edited(source.target.edited, change.file, files[change.file])
        removed = change.new is ABSENT
        text = None
        if keys is not None:
            gone = change.path.rpartition(".")[0] if change.whole else change.path
            text = keys.without(gone) if removed else keys.with_value(change.path, change.new)
        if text is None and removed and keys is not None and change.path not in keys.values:
            continue  # its table went before it
        if text is None:
            missed.append(change.path)
        else:
            files[change.file] = text
    return f"{', '.join(missed)} cannot be changed in place" if missed else files


@lru_cache(maxsize=256)
def _edited(edited: Callable[[str, str], KeyText | None], name: str, text: str) -> KeyText | None:
    """A file as a text that can be edited: where one change of many is left out, those before it are made again."""
    return edited(name, text)


def text_of_value(value: Any) -> str:
    """A key's value to show: a switch in lower case, anything long cut at 60 letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)[:60]
