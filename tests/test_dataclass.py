"""Classes made here do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any

import pytest

from meshwright.dataclass import dataclass

Make = Callable[..., Callable[[type], Any]]
MAKERS: tuple[Make, Make] = (dataclasses.dataclass, dataclass)

SETTINGS = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "eq": False, "slots": True},
    {"frozen": True, "repr": False},
    {"slots": True, "kw_only": True},
    {"slots": True, "eq": False},
    {"frozen": True, "order": True},
]


def point(make: Make, settings: dict[str, bool]) -> Any:
    """A class with a default, one made anew, and one that is neither compared nor shown."""

    class Point:
        """Of a plane."""

        x: int
        y: float = 2.0
        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)

    return make(**settings)(Point)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_fields_parameters_and_signature_are_those_of_the_standard_library(settings: dict[str, bool]) -> None:
    known, made = (point(make, settings) for make in MAKERS)

    told = [
        [(one.name, one.type, one.init, one.repr, one.compare, one.kw_only) for one in fields(cls)]
        for cls in (known, made)
    ]
    assert told[0] == told[1]
    assert repr(known.__dataclass_params__) == repr(made.__dataclass_params__)
    assert str(inspect.signature(known)) == str(inspect.signature(made))
    assert known.__match_args__ == made.__match_args__
    assert getattr(known, "__slots__", None) == getattr(made, "__slots__", None)
    assert known.__init__.__qualname__ == made.__init__.__qualname__


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_objects_are_shown_compared_and_copied_alike(settings: dict[str, bool]) -> None:
    told = []
    for make in MAKERS:
        cls = point(make, settings)
        one, same, other = cls(x=1), cls(x=1, note="mine"), cls(x=1, y=3.0)
        shown = repr(one) if settings.get("repr", True) else ""
        moved = replace(one, x=5)
        told.append([shown, one == same, one == other, one == (1, 2.0, []), moved.x, moved.y, copy.copy(one).y])
        assert one.names == []
        assert one.names is not other.names
        with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required"):
            cls()
    assert told[0] == told[1]


@pytest.mark.parametrize("make", MAKERS)
def test_frozen_objects_are_neither_changed_nor_unhashable(make: Make) -> None:
    cls = make(frozen=True, slots=True)(type("Pair", (), {"__annotations__": {"a": int, "b": int}, "__doc__": "Two."}))

    assert hash(cls(1, 2)) == hash((1, 2))
    assert {cls(1, 2), cls(1, 2)} == {cls(1, 2)}
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        cls(1, 2).a = 3
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del cls(1, 2).a
    with pytest.raises(TypeError, match="unhashable"):
        hash(make()(type("Free", (), {"__annotations__": {"a": int}}))(1))


@pytest.mark.parametrize("base_made", MAKERS)
@pytest.mark.parametrize("make", MAKERS)
def test_classes_inherit_from_each_other_whoever_made_them(make: Make, base_made: Make) -> None:
    @base_made(frozen=True, slots=True, kw_only=True)
    class Base:
        """A length that is derived."""

        a: int
        double: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", 2 * self.a)

    @make(frozen=True, slots=True, kw_only=True)
    class Longer(Base):  # type: ignore[misc, valid-type]
        """Another field."""

        b: str = "b"

    one = Longer(a=3)
    assert (one.double, one.b, repr(one).rpartition(".")[2]) == (6, "b", "Longer(a=3, double=6, b='b')")
    assert one == Longer(a=3) != Longer(a=4)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        make()(type("Loose", (Base,), {"__annotations__": {"c": int}}))


@pytest.mark.parametrize("make", MAKERS)
def test_methods_of_a_class_of_its_own_stay(make: Make) -> None:
    @make(frozen=True)
    class Own:
        """Compared by the first alone."""

        a: int
        b: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.a == other.a

        def __hash__(self) -> int:
            return self.a

        def __repr__(self) -> str:
            return "own"

    assert Own(1, 2) == Own(1, 3)
    assert hash(Own(1, 2)) == 1
    assert repr(Own(1, 2)) == "own"


@dataclass(frozen=True, slots=True)
class Sent:
    """Sent to another process."""

    a: int
    b: tuple[str, ...] = ()


def test_frozen_objects_with_slots_are_pickled() -> None:
    one = Sent(1, ("x",))

    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
