"""Entries by name, each read from its file when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeVar

Entry = TypeVar("Entry")


def later(place: str) -> Callable[..., Any]:
    """A function whose file is read when it is called.

    Args:
        place: `module:function`, or `module:RECORD.method`.
    """

    def called(*given: Any, **named: Any) -> Any:
        module, _, path = place.partition(":")
        return attrgetter(path)(import_module(module))(*given, **named)

    return called


class Catalogue(MutableMapping[str, Entry]):
    """Entries of a package by name."""

    def __init__(self, package: str, places: dict[str, str]) -> None:
        """Read nothing yet.

        Args:
            package: the package that has the files.
            places: `file:Class`, or `file:ENTRY` made in its file, by the name of the entry.
        """
        self._package, self._places = package, dict(places)
        self._known: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name not in self._known:
            file, _, kind = self._places[name].partition(":")
            self._known[name] = self._entry(getattr(import_module(f"{self._package}.{file}"), kind))
        return self._known[name]

    def _entry(self, found: Any) -> Any:
        """The entry of what its file has under that name."""
        return found() if isinstance(found, type) else found

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._places.setdefault(name, "")
        self._known[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._known.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class KindCatalogue(Catalogue[type[Entry]]):
    """Classes of a package by name, as they are."""

    def _entry(self, found: Any) -> Any:
        return found
