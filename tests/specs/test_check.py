"""Deep records are hashed once, and stay what dataclasses are: equal, copied and pickled by their fields."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, fields, replace

from meshwright.library.models import resolve
from meshwright.specs.check import HashedOnce, hashed_once

asked: list[int] = []


class Part:
    """Counts how often it is hashed."""

    def __hash__(self) -> int:
        asked.append(1)
        return 7


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(HashedOnce):
    """A record of parts."""

    part: Part
    size: int = 1


def test_the_parts_are_asked_once() -> None:
    asked.clear()
    whole = Whole(part=Part())
    assert len({hash(whole) for _ in range(5)}) == 1
    assert len(asked) == 1


def test_a_changed_copy_has_a_hash_of_its_own() -> None:
    whole = Whole(part=Part())
    larger = replace(whole, size=2)
    assert hash(larger) != hash(whole)
    assert larger != whole
    assert [field.name for field in fields(whole)] == ["part", "size"]


def test_equal_models_are_equal_however_they_came_about() -> None:
    model = resolve("llama-3.1-8b")
    hash(model)
    again = pickle.loads(pickle.dumps(model))
    assert again == model == copy.deepcopy(model)
    assert hash(again) == hash(model)
    assert b"_hash" not in pickle.dumps(model)
