"""Records as data: fields by name, whatever they hold; and how frozen ones compare."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from meshwright.records import Record, as_json, dataclass, fields_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Record):
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Record):
    path: Path
    inner: tuple[Inner, ...]
    by_name: dict[str, Inner]


@dataclasses.dataclass(frozen=True)
class Theirs(Point):
    y: float = 0.0


def test_records_within_records_become_data() -> None:
    found = Outer(path=Path("a/b"), inner=(Inner(size=1),), by_name={"x": Inner(size=2)})
    assert found.to_dict() == {"path": "a/b", "inner": [{"size": 1}], "by_name": {"x": {"size": 2}}}
    assert fields_of(found, "path", "inner") == {"by_name": {"x": {"size": 2}}}


def test_json_has_sorted_keys_and_no_infinity() -> None:
    assert json.loads(as_json({"b": 1, "a": 2})) == {"a": 2, "b": 1}
    assert as_json({"b": 1, "a": 2}).index('"a"') < as_json({"b": 1, "a": 2}).index('"b"')
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"a": float("inf")})


def test_what_many_documents_have_alike_is_written_as_it_is_now() -> None:
    cluster = {"groups": [{"nodes": 1, "name": "H100"}], "share": 0.5}
    for nodes in (1, 2, 2.0, True):
        cluster["groups"] = [{"nodes": nodes, "name": "H100"}]
        document = {"cluster": cluster, "plans": [{"cluster": cluster, "model": {"layers": [1, {}]}}]}
        assert as_json(document) == json.dumps(document, sort_keys=True, indent=1) + "\n"


class TestDataclass:
    """The decorator of frozen records, beside that of Python."""

    @staticmethod
    def made(decorator: Any) -> Any:
        """A class with a field that is not compared, and one that is not shown."""

        @decorator(frozen=True, slots=True, kw_only=True)
        class Made:
            """A record."""

            one: int
            two: tuple[int, ...] = ()
            cached: list[int] = dataclasses.field(default_factory=list, compare=False)
            secret: str = dataclasses.field(default="s", repr=False)

        return Made

    def test_compares_hashes_and_shows_as_python_does(self) -> None:
        ours, theirs = self.made(dataclass), self.made(dataclasses.dataclass)
        for values in ({"one": 1}, {"one": 1, "two": (2,), "cached": [3]}, {"one": 2, "secret": "t"}):
            mine, other = ours(**values), theirs(**values)
            assert repr(mine) == repr(other)
            assert hash(mine) == hash(other)
            assert (mine == ours(one=1)) is (other == theirs(one=1))
            assert mine != other
            assert dataclasses.asdict(mine) == dataclasses.asdict(other)
            assert dataclasses.replace(mine, one=5) == ours(**{**values, "one": 5})
        assert copy.copy(pickle.loads(pickle.dumps(Point(x=1.0)))) == Point(x=1.0)
        for name in ("one", "other"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{name}'"):
                setattr(Theirs(x=1.0) if name == "other" else ours(one=1), name, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match="delete field 'x'"):
            del Point(x=1.0).x

    def test_keeps_what_a_class_says_itself(self) -> None:
        @dataclass(frozen=True, slots=True)
        class Own:
            value: float
            note: str

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Own) and other.value == self.value

            def __repr__(self) -> str:
                return "own"

        assert Own(1.0, "a") == Own(1.0, "b")
        assert repr(Own(1.0, "a")) == "own"
        assert hash(Own(1.0, "a")) == hash((1.0, "a"))

    def test_classes_of_one_field_or_none_and_those_derived_from_them(self) -> None:
        @dataclass(frozen=True)
        class Nothing:
            pass

        nan = float("nan")
        assert Nothing() == Nothing()
        assert Point(x=nan) == Point(x=nan)
        assert Point(x=1.0) != Theirs(x=1.0)
        assert {Theirs(x=1.0): 1}[Theirs(x=1.0)] == 1

    def test_other_options_are_those_of_python(self) -> None:
        changed, ordered, same = (
            dataclass(**options)(type("Any", (), {"__annotations__": {"x": int}}))
            for options in ({}, {"frozen": True, "order": True}, {"frozen": True, "eq": False})
        )
        assert changed.__hash__ is None
        assert ordered(1) < ordered(2)
        assert same(1) != same(1)
