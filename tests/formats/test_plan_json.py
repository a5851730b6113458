"""Plan files: nothing is lost, equal jobs give equal bytes, and every bad file is one clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.canonical import record_hash
from meshwright.formats.plan_json import (
    PLAN_SET_SCHEMA,
    MadeWith,
    content_hash,
    job_document,
    read_document,
    read_job,
    write_job,
)
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import PlanRow, Schedule
from meshwright.specs.job import Job
from tests.formats.jobs import MOE_LAYER, job
from tests.formats.rows import rows


def example(**more: Any) -> Job:
    row = PlanRow(tp=2, pp=2, dp=4, sharding="z1", gbs=16, **more)
    return job(plan_of(row, [4, 4]), MOE_LAYER, name=row.format())


def refused(text: str | Path, index: int | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        read_job(text, index)
    return caught.value


@given(rows(), st.integers(1, 4))
def test_a_job_survives_its_file(row: PlanRow, layers: int) -> None:
    made = job(plan_of(row, [layers] * (row.pp * row.vpp)), name=row.format())
    text = write_job(made)
    read = read_job(text)
    assert read.job == made
    assert (read.hash, read.warnings) == (content_hash(made), ())
    assert write_job(read.job) == text


def test_a_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(write_job(example()))
    assert read_job(path) == read_job(str(path)) == read_job(path.read_text())


def test_the_hash_is_of_the_content_alone() -> None:
    one = example()
    assert content_hash(replace(one, name=None)) == content_hash(one)
    assert content_hash(example(recompute="full")) != content_hash(one)
    # Written once and kept: a hash that moves makes every stored plan look changed.
    small = job(plan_of(PlanRow(gbs=1), [1]))
    whole = replace(small, workload=replace(small.workload, tokens=1000))
    fraction = replace(small, workload=replace(small.workload, tokens=1000.0))
    assert content_hash(whole) == content_hash(fraction)


def test_parameters_of_a_schedule_keep_their_type() -> None:
    made = example()
    parameters = (("a", 1), ("b", 1.0), ("c", True), ("d", "1"))
    pipeline = replace(made.plan.pipelines[0], schedule=Schedule(name="avgpipe", parameters=parameters))
    made = replace(made, plan=replace(made.plan, pipelines=(pipeline,)))
    read = read_job(write_job(made)).job.plan.pipelines[0].schedule.parameters
    assert [type(value) for _, value in read] == [int, float, bool, str]
    assert read == parameters


def test_defaults_are_left_out() -> None:
    document = job_document(job(plan_of(PlanRow(gbs=1), [1])))
    assert document["strategies"] == [{}]
    assert "qkv_bias" not in document["model"]["runs"][0]["layers"][0]["attention"]


def test_only_reading_loads_the_schemas() -> None:
    code = (
        "import sys, meshwright.app.plans.job;"
        "from meshwright.library.clusters import resolve_gpus; resolve_gpus('8xH100');"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_changed_file_is_a_warning() -> None:
    document = job_document(example())
    document["workload"]["seq_len"] = 8192
    read = read_document(document)
    assert read.job.workload.seq_len == 8192
    (warning,) = read.warnings
    assert "changed after it was written" in warning


def plan_set(count: int) -> dict[str, Any]:
    plans = [{"rank": i + 1, "plan": job_document(example(recompute=r))} for i, r in enumerate(["none", "sel", "full"])]
    return {"schema": PLAN_SET_SCHEMA, "plans": plans[:count]}


def test_a_plan_of_a_set_is_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(plan_set(3)))
    assert read_job(f"{path}#2").job == example(recompute="sel")
    assert read_job(path, 3).job == example(recompute="full")
    first = read_job(path)
    assert first.job == example()
    assert "none is named" in first.warnings[0]
    assert "#1 to #3" in str(refused(f"{path}#4"))
    assert "count from 1" in str(refused(f"{path}#0"))
    one = read_document(plan_set(1))
    assert one.warnings == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\x00\x01\x02", "binary"),
        (b"\xff\xfe\x00", "binary"),
        (b"{", "not JSON"),
        (b"[1, 2]", "no object"),
        (b'{"schema": "meshwright.plan/1", "name": NaN}', "NaN is not a JSON number"),
        (b'{"schema": "meshwright.plan/1", "name": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b'{"schema": "a", "schema": "b"}', "given twice"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"schema": "meshwright.plan/2"}', "meshwright.plan/1"),
        (b"{}", "schema is missing"),
        (b'{"schema": "meshwright.plan-set/1", "plans": []}', "at least one plan"),
        (b'{"schema": "meshwright.plan-set/1", "plans": [3]}', "no object"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    error = refused(path)
    assert error.exit_code == 2
    assert says in str(error)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no such file" in str(refused(tmp_path / "absent.json"))
    assert "folder" in str(refused(tmp_path))
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(2**30)
    assert "too large" in str(refused(huge))


def edit(document: dict[str, Any], path: list[Any], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    if value is None:
        del document[path[-1]]
    else:
        document[path[-1]] = value


CHUNK = ["pipelines", 0, "workers", 0, "chunks", 0]


@pytest.mark.parametrize(
    ("path", "value", "field", "says"),
    [
        (["model", "hidden"], "4096", "model.hidden", "whole number"),
        (["model", "hidden"], 4096.0, "model.hidden", "whole number"),
        (["model", "hidden"], True, "model.hidden", "whole number"),
        (["model", "hidden"], -1, "model.hidden", "at least 1"),
        (["model", "hidden"], None, "model.hidden", "missing"),
        (["model", "hiden"], 3, "model.hiden", "did you mean hidden?"),
        (["model"], [], "model", "must be an object"),
        (["modle"], {}, "modle", "did you mean model?"),
        (["model", "runs", 0, "layers", 0, "mlp", "kind"], "mo", "model.runs[0].layers[0].mlp.kind", "dense, moe"),
        (["model", "runs", 0, "layers", 0, "norm"], "rmsnrm", "model.runs[0].layers[0].norm", "rmsnorm"),
        (["cluster", "groups", 0, "device", "memory_bytes"], "80GB", "cluster.groups[0].device.memory_bytes", "number"),
        (
            ["cluster", "groups", 0, "device", "memory_bytes"],
            10**400,
            "cluster.groups[0].device.memory_bytes",
            "finite",
        ),
        (["workload", "optimizer"], "adan", "workload.optimizer", "adam"),
        (["strategies", 0, "tensor"], {"kind": "4d"}, "strategies[0].tensor.kind", "1d, named"),
        (["strategies", 0, "data"], {"zero": 4}, "strategies[0].data.zero", "0, 1, 2, 3"),
        (["strategies", 0, "data"], {"zero": True}, "strategies[0].data.zero", "whole number"),
        (["strategies", 0, "tensor"], {"degree": 2}, "strategies[0].tensor.kind", "1d, named"),
        (["strategies", 0, "tensor"], {"kind": "1d", "degre": 2}, "strategies[0].tensor.degre", "did you mean degree?"),
        (["strategies", 0, "tensor"], [], "strategies[0].tensor", "must be an object"),
        (
            ["pipelines", 0, "schedule"],
            {"name": "x", "parameters": [["a"]]},
            "pipelines[0].schedule.parameters[0]",
            "2",
        ),
        (
            ["pipelines", 0, "schedule"],
            {"name": "x", "parameters": [["a", []]]},
            "pipelines[0].schedule.parameters[0][1]",
            "a whole number or a finite number or text or true or false",
        ),
        ([*CHUNK, "runs", 0, "layers"], 3, "pipelines[0].runs", "must cover"),
        ([*CHUNK, "layers"], 3, "pipelines[0].workers[0].chunks[0].layers", "list"),
        (["name"], 3, "name", "must be"),
    ],
)
def test_wrong_fields_are_named(path: list[Any], value: Any, field: str, says: str) -> None:
    document = job_document(example())
    edit(document, path, value)
    error = refused(json.dumps(document))
    (problem,) = error.problems
    assert problem.field == field
    assert says in f"{problem.what} {problem.why} {problem.fix}"


def test_all_problems_come_together() -> None:
    document = job_document(example())
    edit(document, ["model", "hidden"], 0)
    edit(document, ["model", "vocab"], "many")
    edit(document, ["workload", "seq_len"], None)
    edit(document, ["cluster", "grups"], [])
    document["strategies"][0]["expert"] = {"ep": 0, "capacity_factor": -1.0}
    fields = {problem.field for problem in refused(json.dumps(document)).problems}
    assert fields == {
        "model.vocab",
        "workload.seq_len",
        "cluster.grups",
        "strategies[0].expert.ep",
        "strategies[0].expert.capacity_factor",
    }


def test_a_flood_of_problems_is_cut() -> None:
    document = job_document(example())
    document |= {f"key{i}": i for i in range(1000)}
    problems = refused(json.dumps(document)).problems
    assert len(problems) == 41
    assert problems[-1].what == "and 960 more"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data(), json_values)
def test_junk_anywhere_in_a_document_is_an_error_of_ours(data: st.DataObject, junk: Any) -> None:
    document: Any = json.loads(write_job(example()))
    holder, key, at = document, "", document
    while isinstance(at, (dict, list)) and at:
        holder = at
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        at = at[key]
        if data.draw(st.booleans()):
            break
    holder[key] = junk
    try:
        read = read_document(document)
    except InputError as error:
        text = str(error)
    else:
        text = write_job(read.job)
    assert text


def test_infinity_is_not_written() -> None:
    made = example()
    schedule = Schedule(name="avgpipe", parameters=(("limit", float("inf")),))
    pipeline = replace(made.plan.pipelines[0], schedule=schedule)
    with pytest.raises(InputError, match="finite"):
        write_job(replace(made, plan=replace(made.plan, pipelines=(pipeline,))))


@pytest.mark.parametrize("path", sorted(Path(__file__).with_name("plans").glob("*.json")), ids=lambda path: path.stem)
def test_a_file_that_an_earlier_version_wrote_is_read_as_it_was_written(path: Path) -> None:
    read = read_job(path)
    assert (read.hash, read.warnings, read.made_with) == (json.loads(path.read_text())["hash"], (), None)


@pytest.mark.parametrize("schema", ["meshwright.plan/2", "meshwright.plan-set/12"])
def test_a_file_of_a_later_version_says_to_upgrade(schema: str) -> None:
    (problem,) = refused(json.dumps(job_document(example()) | {"schema": schema})).problems
    assert "pip install -U meshwright" in problem.fix
    (problem,) = refused(json.dumps(job_document(example()) | {"schema": "meshwright.plans/1"})).problems
    assert "pip" not in problem.fix


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([(["model", "vocab"], 1000)], "its model was changed"),
        ([(["cluster", "name"], "other")], "its cluster was changed"),
        ([(["model", "vocab"], 1000), (["cluster", "name"], "other")], "its model and its cluster were changed"),
        ([(["workload", "seq_len"], 512)], "its workload or plan was changed"),
    ],
)
def test_what_was_changed_in_a_file_is_named(edits: list[tuple[list[Any], Any]], says: str) -> None:
    made = example()
    document = job_document(
        made, MadeWith(model=record_hash(made.model), cluster=record_hash(made.cluster), calibration="")
    )
    assert read_document(document).warnings == ()
    for path, value in edits:
        edit(document, path, value)
    assert says in read_document(document).warnings[0]
