"""Files that a launch file names: found from its folder, or from a folder above it as the job is started there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.errors import InputError
from meshwright.formats.files import read_text

_ABOVE = 6
"""Folders above a file that are looked through for a path it names, where nothing marks a repository's root."""
_REPOSITORY = ".git"
_ROOTS = (_REPOSITORY, "pyproject.toml", "setup.py", "requirements.txt")
"""What lies at the root of a project."""
_HERE = re.compile(r"^(?:\.{0,2}/)+")
"""How a path begins that is seen from a folder."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files around a launch file, by the paths that it names."""

    folder: Path | None
    """Folder of the launch file; None for text that is in no file."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Texts that stand for files of these names."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Where a path was found otherwise than it says from the folder, seen from there; filled as files are read."""

    def __call__(self, path: str) -> str | None:
        """The text of a file by its path, None if there is none: seen from the folder, else from the nearest above it.

        A path of another machine is taken by its end, and a name alone by the root of the project.
        """
        if (text := self.held.get(Path(path).name)) is not None:
            return text
        if self.folder is None or not path.strip():
            return None
        for way in self._ways(path, self.folder):
            try:
                if way.is_file():
                    text = read_text(way, "sourced script")
                    self._note(path, way, self.folder)
                    return text
            except (OSError, ValueError, InputError):
                continue
        return None

    @property
    def start(self) -> str:
        """Whole path of the folder; empty for text that is in no file."""
        return "" if self.folder is None else self.folder.absolute().as_posix()

    def notes(self, names: set[str]) -> Iterator[str]:
        """Says which file was taken for a path, of files with these names."""
        for path, way in self.elsewhere.items():
            if Path(path).name in names:
                yield f"{path} is read from {way}, seen from the folder of the file that names it"

    def _note(self, path: str, way: Path, folder: Path) -> None:
        if os.path.normpath(folder / path) != os.path.normpath(way):
            self.elsewhere[path] = os.path.relpath(way, folder)

    def _ways(self, path: str, folder: Path) -> Iterator[Path]:
        plain, name = _HERE.sub("", path), Path(path).name
        parents = _parents(folder)
        yield folder / path
        yield folder / plain
        yield from (parent / plain for parent in (parents if "/" in path else _of_project(folder, parents)))
        yield folder / name
        if path.startswith("/"):  # as a container or another machine has it: the end of the path, with its folder
            parts = Path(path).parts[1:]
            ends = ["/".join(parts[at:]) for at in range(1, len(parts) - 1)]
            yield from (parent / end for end in ends for parent in _of_project(folder, parents))


def _parents(folder: Path) -> list[Path]:
    """Folders above one, up to the root of its repository."""
    here = [folder.absolute(), *folder.absolute().parents]
    root = next((at for at, one in enumerate(here) if (one / _REPOSITORY).exists()), _ABOVE)
    return here[1 : min(root, _ABOVE) + 1]


def _of_project(folder: Path, parents: list[Path]) -> list[Path]:
    """Folders above one up to the root of its project; none where nothing marks that."""
    here = [folder, *parents]
    root = next((at for at, one in enumerate(here) if any((one / mark).exists() for mark in _ROOTS)), 0)
    return here[1 : root + 1]
