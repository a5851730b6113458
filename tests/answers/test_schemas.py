"""What `--json` prints has a published schema for every verb, and schemas refuse what they should."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest

import meshwright as mw
from meshwright.app.verbs import VERBS
from meshwright.formats.plan_json import PLAN_SCHEMA, plan_schemas
from tests.answers.schemas import END, FOLDER, PAGE, SEEN_OFTEN, START, faults, file_of, schemas_of


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    return json.loads(json.dumps(mw.plan("gpt2", gpus="4xH100", global_batch=16).to_dict()))


def rows() -> dict[str, set[str]]:
    """Verbs by document, as the page lists them."""
    table = PAGE.read_text("utf-8").partition(START)[2].partition(END)[0]
    found = re.findall(r"^\| `(.+?)` \| \[(.+?)\]\(schemas/(.+?)\) \| (.*?) \|$", table, re.MULTILINE)
    assert all(file_of(name) == shown == linked for name, shown, linked, _ in found)
    return {name: set(re.findall(r"`(.+?)`", by)) for name, _, _, by in found}


def test_an_amount_need_not_be_whole() -> None:
    """Whole in every answer that was asked for, as Calculon's bytes on devices that do not divide them are not."""
    document = {"schema": "meshwright.of/1", "peak_bytes": 1, "took_s": 2, "devices": 3}
    found = schemas_of([document] * SEEN_OFTEN)["meshwright.of/1"]["properties"]
    types = [found[name]["type"] for name in ("peak_bytes", "took_s", "devices")]
    assert types == ["number", "number", "integer"]


def test_every_verb_has_a_document_with_a_schema_in_the_docs() -> None:
    listed = rows()
    assert {file_of(name) for name in listed} == {path.name for path in FOLDER.glob("*.json")}
    assert set().union(*listed.values()) == set(VERBS) - {"mcp"}


def test_the_schema_of_plan_files_is_that_of_the_records_now() -> None:
    kept = json.loads((FOLDER / file_of(PLAN_SCHEMA)).read_text("utf-8"))
    now = json.loads(json.dumps(plan_schemas()))
    assert {name: kept[name] for name in now} == now, "records have changed: python -m tests.answers.schemas plans"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda plans: plans.pop("verdict"), "'verdict' is a required property"),
        (lambda plans: plans["plans"][0]["estimate"].update(step_time_s="quick"), "estimate.step_time_s"),
        (lambda plans: plans["plans"][0]["plan"].update(surprise=1), "plans[0].plan"),
        (lambda plans: plans.update(schema="meshwright.plan-set/9"), "no published schema"),
    ],
)
def test_a_document_that_is_not_as_published_is_told(plans: dict[str, Any], change: Any, where: str) -> None:
    assert faults(plans) == []
    changed = deepcopy(plans)
    change(changed)
    assert where in " ".join(faults(changed))


def test_a_document_within_another_is_as_its_schema_says() -> None:
    assert faults(mw.schedule("1f1b,zb-h1", p=2, m=4).to_dict()) == []
    assert faults(mw.schedule("1f1b", p=2, m=4).to_dict()) == []


def test_keys_that_are_data_and_keys_that_are_ours_are_told_apart() -> None:
    documents = [
        {"schema": "meshwright.x/1", "at": {"H100": 1.0}, "found": [{"a": 1, "b": None}] * SEEN_OFTEN, "maybe": None},
        {"schema": "meshwright.x/1", "at": {"A100-80": 2}, "found": [{"a": 1.5}], "more": "text"},
    ]
    schema = schemas_of(documents * SEEN_OFTEN)["meshwright.x/1"]
    assert schema["required"] == ["at", "found", "made_by", "schema"]
    assert schema["properties"]["at"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert schema["properties"]["found"]["items"] == {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {}},
        "required": ["a"],
    }
    assert schema["properties"]["maybe"] == {}
