"""The three files: what is read, and everything that is wrong told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.calculon.reading import (
    DATA,
    library_names,
    read_application,
    read_execution,
    read_system,
)
from meshwright.errors import InputError, UnsupportedError
from tests.calculon.figures import execution

A100 = json.loads((DATA / "systems" / "a100_80g.json").read_text())


def problems(read: Any, source: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(source)
    assert caught.value.code.startswith("MW24")
    assert all(problem.why for problem in caught.value.problems)
    return [problem.what for problem in caught.value.problems]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The A100 system with one value replaced, or removed where the value is ...; the path's steps are dotted."""
    data: dict[str, Any] = json.loads(json.dumps(A100))
    *steps, last = path.split(".")
    inner: Any = data
    for step in steps:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return data


def test_all_thirteen_models_and_three_systems_come_along() -> None:
    assert len(library_names("models")) == 13
    assert library_names("systems") == ["a100_80e", "a100_80g", "h100_80g_nvl8"]
    for name in library_names("models"):
        assert read_application(name).name == name
    h100 = read_system("H100_80g_nvl8")
    assert sorted(h100.matrix) == ["float16", "float8"]
    assert h100.mem1.capacity_bytes == 80 * 2**30


def test_a_file_a_name_and_its_content_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "gpt3-175B.json"
    path.write_text((DATA / "models" / "gpt3-175B.json").read_text())
    assert read_application(path) == read_application("gpt3-175b")
    content = json.loads(path.read_text())
    assert read_application({**content, "name": "gpt3-175B"}) == read_application(str(path))
    path.write_text(json.dumps(execution()))
    assert read_execution(path) == read_execution(execution())


def test_remarks_are_read_over_and_misspelt_keys_are_not() -> None:
    content = json.loads((DATA / "models" / "gpt3-175B.json").read_text())
    assert read_application({**content, "comment": "ours", "_note": 1}).hidden == 12288
    assert problems(read_application, {**content, "sequence_size": 1}) == ["unknown key 'sequence_size'"]


def test_every_problem_of_an_application_is_told_at_once() -> None:
    wrong = {
        "hidden": "12288",
        "feedforward": 0,
        "seq_size": 2048.0,
        "attn_heads": 96,
        "attn_size": True,
        "kv_heads": 7,
    }
    assert problems(read_application, wrong) == [
        "hidden is '12288'",
        "feedforward is 0",
        "seq_size is 2048.0",
        "attn_size is true",
        "key 'num_blocks' is missing",
        "kv_heads is 7",
    ]


def test_every_problem_of_an_execution_is_told_at_once() -> None:
    wrong = execution(training="yes", batch_size=1.5, datatype=16, extra=1)
    del wrong["data_par"]
    assert problems(read_execution, wrong) == [
        "unknown key 'extra'",
        "key 'data_par' is missing",
        "batch_size is 1.5",
        "datatype is 16",
        "training is 'yes'",
    ]
    assert problems(read_execution, execution(batch_size=10**30)) == [f"batch_size is {10**30}"]


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("networks.0.bandwidth", -300, "networks[0].bandwidth is -300"),
        ("networks.0.efficiency", 1.5, "networks[0].efficiency is 1.5"),
        ("networks.1.size", -1, "networks[1].size is -1"),
        ("networks.1.processor_usage", 1, "networks[1].processor_usage is 1"),
        ("networks.1.must_be_filled", 0, "networks[1].must_be_filled is 0"),
        ("networks.1.latency", ..., "key 'networks[1].latency' is missing"),
        ("networks.0.ops.all_reduce", [2.0, None], "networks[0].ops.all_reduce is [2.0, None]"),
        ("networks.0.ops.p2p", [0, None], "networks[0].ops.p2p is [0, None]"),
        ("networks", [], "networks is []"),
        ("mem1.GiB", -1, "mem1.GiB is -1"),
        ("mem2.GBps", "32", "mem2.GBps is '32'"),
        ("mem1.MB_efficiency", [[1, 0.5], [10, 0.6], [0, 0.1]], "mem1.MB_efficiency[1] is [10, 0.6]"),
        ("mem1.MB_efficiency", [[10, 0.6], [1, 0.5]], "mem1.MB_efficiency[1] is [1, 0.5]"),
        ("matrix.float16.gflops_efficiency", [[0, 0]], "matrix.float16.gflops_efficiency[0] is [0, 0]"),
        ("matrix.float16.tflops", float("nan"), "matrix.float16.tflops is nan"),
        ("matrix.int4", {}, "unknown key 'matrix.int4'"),
        ("processing_mode", "overlap", "processing_mode is 'overlap'"),
        ("vector", [], "vector is []"),
        ("mem3", {}, "unknown key 'mem3'"),
    ],
)
def test_a_system_that_cannot_be_is_refused(path: str, value: Any, what: str) -> None:
    assert problems(read_system, changed(path, value)) == [what]


def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_system("a100_80")
    assert "a100_80g" in caught.value.problems[0].fix


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"', "\x00"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "system.json"
    path.write_text(content)
    with pytest.raises(InputError):
        read_system(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_execution(tmp_path / "none.json")
