"""One value of a JSON or YAML file changed where it is written; comments and the order of keys stay."""

from __future__ import annotations

import json

import pytest

from meshwright.formats.key_text import key_text

JSON = """{
  "batch": 1, "bf16": {"enabled": true},
  "zero": {
    "stage": 3,
    "offload": {"device": "cpu", "pin": true}
  }
}
"""
YAML = """# ours
model: {name: a, size: 2}   # flow
degrees:
  tp: 4  # tensor
  pipe:
    order: 1f1b

  # end of the degrees
last: x
"""


@pytest.mark.parametrize(
    ("path", "value"),
    [("batch", 2), ("bf16.enabled", False), ("zero.offload.device", "nvme"), ("zero.size", 4), ("a.b.c", [1])],
)
def test_a_value_of_json_is_set(path: str, value: object) -> None:
    keys = key_text("x.json", JSON)
    assert keys is not None
    text = keys.with_value(path, value)
    assert text is not None
    found = json.loads(text)
    for name in path.split("."):
        found = found[name]
    assert found == value
    assert json.loads(text).keys() >= json.loads(JSON).keys()


@pytest.mark.parametrize("path", ["batch", "zero.stage", "zero.offload.pin", "zero"])
def test_a_key_of_json_is_taken_out_and_the_others_stay(path: str) -> None:
    keys = key_text("x.json", JSON)
    assert keys is not None
    after = key_text("x.json", keys.without(path) or "")
    assert after is not None
    assert {name for name in keys.values if name not in after.values} == {
        name for name in keys.values if name == path or name.startswith(f"{path}.")
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("degrees.tp", 1),
        ("degrees.pipe.order", "ZBV"),
        ("degrees.cp", 2),
        ("model.size", 3),
        ("last", "yes"),
        ("n.e", 1),
    ],
)
def test_a_value_of_yaml_is_set_and_comments_stay(path: str, value: object) -> None:
    pytest.importorskip("yaml")
    keys = key_text("x.yaml", YAML)
    assert keys is not None
    after = key_text("x.yaml", keys.with_value(path, value) or "")
    assert after is not None
    assert after.values == {**keys.values, path: value}
    assert all(comment in after.text for comment in ("# ours", "# flow", "# tensor", "  # end of the degrees"))


def test_yaml_whose_values_stand_in_two_places_is_left_alone() -> None:
    pytest.importorskip("yaml")
    assert key_text("x.yaml", "a: &one {b: 1}\nc: *one\n") is None
    assert key_text("x.toml", "a = 1\n") is None


def test_a_table_of_json_inside_yaml_stays_json() -> None:
    """Files of GPT-NeoX are JSON by another suffix."""
    keys = key_text("x.yml", JSON)
    assert keys is not None
    for path, value in (("bf16.loss", "none"), ("zero.size", 4), ("a.b.c", [1])):
        text = keys.with_value(path, value)
        assert text is not None
        assert json.loads(text)
