"""A request: what may be asked of a verb, read once from a command line or a Python call."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from meshwright.errors import Problem
from meshwright.fields.field import GROUP, SETTINGS, Field, declared
from meshwright.fields.gather import Gather


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The fields of one verb; its docstring is the verb's help."""

    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines without the leading `meshwright`."""
    returns: ClassVar[str] = ""
    """What the answer is."""
    positional: ClassVar[tuple[str, ...]] = ()
    """Fields that a Python call may give by position."""
    calls: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Functions that a Python call may give, to be told while the verb works: their type, and when they are called."""

    given: frozenset[str] = frozenset()
    """Names of the fields that the user gave."""
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """What the user gave, as it was given."""

    def rules(self, reading: Reading) -> None:
        """Note what is wrong between fields, and with values that other floors know."""

    @classmethod
    def meant(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was given, by the fields it is meant for, where the place alone does not tell."""
        return with_plan_first(cls, values)

    @classmethod
    def read(cls, values: Mapping[str, Any], *, typed: bool = False) -> Self:
        """The request that texts or values make.

        Args:
            values: the values by the field's name; what is None, False or empty counts as not given.
            typed: problems call fields as the command line does.

        Raises:
            InputError: any value or combination is malformed; all problems together.
            UnsupportedError: all that is wrong are unknown names.
        """
        asked, values = request_fields(cls), cls.meant(values)
        stated = {one.name: values[one.name] for one in asked if _is_given(values.get(one.name), one)}
        reading = Reading(fields={one.name: one for one in asked}, given=frozenset(stated), typed=typed)
        found: dict[str, Any] = {}
        for one in asked:
            if one.name in stated:
                value = reading.attempt(lambda one=one: one.kind.read(reading.called(one.name), stated[one.name]))  # type: ignore[misc]
                if value is None:
                    reading.unread.add(one.name)
                else:
                    found[one.name] = value
            elif one.required is not None:
                reading.missing(one.name, one.required)
        made = _made(cls, found, given=reading.given, stated=stated)
        made.rules(reading)
        reading.gather.done()
        return made

    def values(self) -> dict[str, Any]:
        """All fields by name, groups taken apart, as keywords of a function; without those of the command line."""
        found = _values(self)
        return {one.name: found[one.name] for one in request_fields(type(self)) if one.python}


def with_plan_first(request: type[Request], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was given, with a plan file that stands where the model would as the plan: it holds its model."""
    first = values.get("model")
    if not isinstance(first, (str, os.PathLike)) or values.get("plan"):
        return values
    if ".json" not in os.fspath(first) or not {"model", "plan"} <= {one.name for one in request_fields(request)}:
        return values
    from meshwright.fields.plan_file import is_plan_file  # most models are named

    if not is_plan_file(os.fspath(first)):
        return values
    return {**values, "model": None, "plan": first}


@dataclass(slots=True, kw_only=True)
class Reading:
    """What the rules of a request see: which fields were given, how they are called, and where problems go."""

    fields: Mapping[str, Field]
    given: frozenset[str]
    typed: bool
    gather: Gather = dataclasses.field(default_factory=Gather)
    unread: set[str] = dataclasses.field(default_factory=set)
    """Fields that were given and could not be read: they look as if they were not there."""

    def called(self, name: str) -> str:
        """How the user calls a field."""
        return self.fields[name].spelled if self.typed and name in self.fields else name

    def problem(self, what: str, why: str, fix: str, name: str = "", code: str = "MW206") -> None:
        """Note a problem."""
        field = self.called(name) if name else ""
        self.gather.problem(Problem(what=what, why=why, fix=fix, field=field), code)

    def missing(self, name: str, fix: str = "") -> None:
        """Note that a field, or one of several, is not there."""
        called = self.called(name)
        self.problem(f"{called} is missing", "the verb needs it", fix or "see --help", name)

    def refuse(
        self, names: tuple[str, ...], beside: str, why: str, fix: str = "leave {name} out", code: str = "MW206"
    ) -> None:
        """Note those of the fields that are given though something excludes them.

        Args:
            names: the names of fields.
            beside: ends the sentence `NAME ...`.
            why: the rule.
            fix: the remedy.
            code: the code of the error.
        """
        for name in names:
            if name in self.given:
                called = self.called(name)
                self.problem(f"{called} {beside}", why, fix.format(name=called), name, code)

    def attempt(self, work: Callable[[], Any]) -> Any:
        """The result of a function, or None with its problems noted."""
        return self.gather.attempt(work)

    def also(self, work: Callable[[], Any], needs: tuple[str, ...] = ()) -> None:
        """Where something is wrong already: what a function finds comes with it. Else the use case finds it itself.

        Args:
            work: the function.
            needs: fields that it would miss where they could not be read.
        """
        if self.gather.errors and not self.unread & set(needs):
            self.gather.attempt(work)


def request_fields(request: type[Any]) -> tuple[Field, ...]:
    """The fields of a request in their order, groups taken apart."""
    if request not in _FIELDS:
        _FIELDS[request] = tuple(_fields(request))
    return _FIELDS[request]


_FIELDS: dict[type[Any], tuple[Field, ...]] = {}


def _fields(request: type[Any]) -> Iterator[Field]:
    for attribute in dataclasses.fields(request):
        one = declared(attribute)
        if one is not None:
            yield one
        elif SETTINGS in attribute.metadata:
            yield from attribute.metadata[SETTINGS]()
        elif GROUP in attribute.metadata:
            without, changed = attribute.metadata[GROUP]
            for part in request_fields(_record(attribute)):
                if part.name not in without:
                    yield replace(part, **changed.get(part.name, {}))


def loaded(place: str) -> Any:
    """What `package.module:name` names, below this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"meshwright.{module}"), name)


def _values(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in dataclasses.fields(record):
        value = getattr(record, attribute.name)
        if declared(attribute) is not None:
            found[attribute.name] = value
        elif SETTINGS in attribute.metadata:
            found |= value
        elif GROUP in attribute.metadata:
            found |= {name: inner for name, inner in _values(value).items() if name not in attribute.metadata[GROUP][0]}
    return found


def _record(attribute: dataclasses.Field[Any]) -> type[Any]:
    """The record that a group of fields makes."""
    kind: Any = attribute.default_factory
    return kind


def _made(request: type[Any], found: Mapping[str, Any], **others: Any) -> Any:
    """A request of the values that were read; the others keep their defaults."""
    for attribute in dataclasses.fields(request):
        if declared(attribute) is not None and attribute.name in found:
            others[attribute.name] = found[attribute.name]
        elif SETTINGS in attribute.metadata:
            names = {one.name for one in attribute.metadata[SETTINGS]()}
            others[attribute.name] = {name: value for name, value in found.items() if name in names}
        elif GROUP in attribute.metadata:
            others[attribute.name] = _made(_record(attribute), found)
    return request(**others)


def _is_given(value: object, field: Field) -> bool:
    return not (value is None or value is field.default or (isinstance(value, (list, tuple)) and not value))
