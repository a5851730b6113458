"""Records as data: fields by name, whatever they hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwright.records import Record, as_json, fields_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Record):
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Record):
    path: Path
    inner: tuple[Inner, ...]
    by_name: dict[str, Inner]


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
