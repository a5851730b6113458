"""`calculon estimate`: one execution, or a file of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.calculon.figures import DATA, execution, lines
from tests.cli.conftest import Run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.json").write_text(json.dumps(execution()))
    (tmp_path / "large.json").write_text(json.dumps(execution(microbatch_size=64)))
    (tmp_path / "wrong.json").write_text(json.dumps(execution(batch_size="64")))
    return tmp_path


def test_one_estimate_as_json(run: Run, files: Path) -> None:
    result = run("calculon", "estimate", "gpt3-175B", str(files / "good.json"), "a100_80g", "--json", "--layers")
    assert result.code == 0
    answer = json.loads(result.out)
    assert answer["schema"] == "meshwright.calculon-estimate/1"
    assert len(answer["stats"]) == 96
    assert len(answer["layers"]) == 24
    assert answer["execution"] == execution()
    assert answer["stats"]["total_time"] == pytest.approx(13.638064, rel=0.05)


def test_one_estimate_as_text(run: Run, files: Path) -> None:
    result = run("calculon", "estimate", "gpt3-175B", str(files / "good.json"), "a100_80g")
    assert result.code == 0
    for words in (
        "samples/s",
        "gpt3-175B on a100_80g",
        "64 = tensor 8 x pipeline 8 x data 1",
        "bubble",
        "tier 1 total",
    ):
        assert words in result.out


def test_fixed_changes_the_answer_and_says_so(run: Run, files: Path) -> None:
    words = ("calculon", "estimate", "gpt3-175B", str(files / "good.json"), "a100_80e")
    as_is, fixed = run(*words, "--json"), run(*words, "--json", "--fixed")
    one, two = json.loads(as_is.out), json.loads(fixed.out)
    assert two["fixed"] is True
    assert two["stats"]["weight_grad_space"] > one["stats"]["weight_grad_space"]
    assert "--fixed" in run(*words, "--fixed").out


def test_a_rejected_execution_exits_3_and_says_why(run: Run, files: Path) -> None:
    result = run("calculon", "estimate", "gpt3-175B", str(files / "large.json"), "a100_80g")
    assert result.code == 3
    assert "proc_mem_tier1_cap_req" in result.err
    assert "80.000 GiB" in result.err
    assert result.out == ""


def test_problems_of_all_three_files_are_told_together(run: Run, files: Path) -> None:
    result = run("calculon", "estimate", "gpt-175", str(files / "wrong.json"), str(files / "none.json"), "--json")
    assert result.code == 2
    told = [problem["what"] for problem in json.loads(result.out)["problems"]]
    assert len(told) == 3
    assert told[1] == "batch_size is '64'"
    unknown = run("calculon", "estimate", "gpt-175", str(files / "good.json"), "a100_80g")
    assert unknown.code == 4
    assert "gpt3-175B" in unknown.err


def test_missing_words_are_named(run: Run) -> None:
    result = run("calculon", "estimate", "gpt3-175B")
    assert result.code == 2
    assert "EXE is missing" in result.err
    assert "SYS is missing" in result.err
    assert run("calculon", "estimate", "gpt3-175B", "--batch", "rows").code == 2
    assert run("calculon", "estimate", "--batch", "no-such-file").code == 2


def row(value: dict[str, Any]) -> str:
    """A line of a batch; systems that do not come along as objects."""
    path = DATA / "systems" / f"{value['system']}.json"
    system = json.loads(path.read_text()) if path.exists() else value["system"]
    return json.dumps({"app": value["app"], "system": system, "execution": value["execution"]})


def known(stats: dict[str, Any]) -> dict[str, Any]:
    """Statistics but those that are null."""
    return {name: value for name, value in stats.items() if value is not None}


def test_a_batch_answers_every_row_in_order(run: Run, tmp_path: Path) -> None:
    asked = list(lines(DATA / "golden_sample.jsonl.gz"))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(row(one) for one in asked) + "\n")
    result = run("calculon", "estimate", "--batch", str(path))
    assert result.code == 0
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [list(answer) for answer in answers] == [["ok", "error", "stats"]] * len(asked)
    assert [answer["ok"] for answer in answers] == [one["ok"] for one in asked]
    for answer, one in zip(answers, asked, strict=True):
        if one["ok"]:
            assert known(answer["stats"]) == pytest.approx(known(one["stats"]), rel=1e-9, abs=0)
            assert answer["error"] is None
        else:
            assert answer["error"]
            assert answer["stats"] is None


def test_a_spoilt_line_spoils_nothing_else(run: Run, tmp_path: Path) -> None:
    good = json.dumps({"app": "gpt3-175B", "system": "a100_80g", "execution": execution()})
    unknown = json.dumps({"app": "gpt3-175B", "system": "a100_80", "execution": execution()})
    short = json.dumps({"app": "gpt3-175B", "system": "a100_80g", "execution": {}})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([good, "{", "[1]", unknown, short, "", good]))
    result = run("calculon", "estimate", "--batch", str(path))
    assert result.code == 0
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [answer["ok"] for answer in answers] == [True, False, False, False, False, True]
    assert "not valid JSON" in answers[1]["error"]
    assert "app, system, execution" in answers[2]["error"]
    assert "a100_80" in answers[3]["error"]
    assert answers[4]["error"].count("is missing") == 23
    assert answers[5] == answers[0]
