"""`calculon search`, `sweep` and `what-if` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from tests.cli.conftest import Run

SMALL = {
    "hidden": 3072, "feedforward": 12288, "seq_size": 1024, "attn_heads": 24, "attn_size": 128, "num_blocks": 12,
}  # fmt: skip


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_search_answers_as_promised(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(
        capsys,
        "calculon",
        "search",
        app,
        "a100_80g",
        "--procs",
        "16",
        "--batch",
        "16",
        "--dtype",
        "float16",
        "--space",
        "optimal-execution",
        "--no-tp-overlap",
        "--no-dp-overlap",
        "--top",
        "3",
    )
    assert code == 0
    assert found["schema"] == "meshwright.calculon-search/1"
    assert {"space", "priced", "feasible", "pruned", "optimal"} <= set(found["search"])
    assert found["search"]["optimal"] is True
    assert len(found["best"]) == 3
    assert all(len(one["execution"]) == 23 and len(one["stats"]) == 96 for one in found["best"])
    rates = [one["stats"]["sample_rate"] for one in found["best"]]
    assert rates == sorted(rates, reverse=True)
    assert {one["execution"]["tensor_par_overlap"] for one in found["best"] + found["pareto"]} == {"none"}
    assert set(found["pareto"][0]["objectives"]) == {"sample_time_s", "tier1_bytes", "tier2_bytes", "num_procs"}


def test_the_same_question_gives_the_same_bytes(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        words = [app, "a100_80g", "--procs", "8", "--batch", "8", "--pin", "tp=2"]
        _, found = answer(capsys, "calculon", "search", *words)
        found.pop("timing")
        texts.append(json.dumps(found))
    assert texts[0] == texts[1]


def test_search_for_people_shows_plan_space_and_rules(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calculon", "search", app, "a100_80g", "--procs", "8", "--batch", "8", "--pin", "tp=2"]) == 0
    text = capsys.readouterr().out
    for words in ("8 = tp2 x pp", "micro-batches", "executions of optimal-execution", "Front of time per sample"):
        assert words in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--procs", "0", "--batch", "x"], 2, ["--procs", "--batch"]),
        (["--batch", "8"], 2, ["--procs is missing"]),
        (["--procs", "8", "--batch", "8", "--space", "fulll", "--dtype", "float6"], 2, ["did you mean full", "float6"]),
        (["--procs", "8", "--batch", "8", "--dtype", "float8"], 2, ["a100_80g has no float8"]),
        (["--procs", "8", "--batch", "8", "--pin", "recompute=ful"], 2, ["did you mean full"]),
        (["--procs", "64", "--batch", "2", "--pin", "tp=1", "--pin", "pp=1"], 3, ["batch of 2", "data degree"]),
        (["--procs", "7", "--batch", "7", "--pin", "data_par_net=0"], 3, ["a network is smaller than its groups"]),
        (["--procs", "8", "--batch", "8", "--ray", "head"], 2, ["no address"]),
    ],
)
def test_bad_questions_are_told(
    app: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: list[str]
) -> None:
    assert main(["calculon", "search", app, "a100_80g", *words]) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in says:
        assert word in error


def test_ray_may_stand_alone(app: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def search(request: Any) -> Any:
        asked["ray"] = request.search.ray
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.app.calculon.calculon_search", search)
    assert main(["calculon", "search", app, "a100_80g", "--procs", "8", "--batch", "8", "--ray", "--json"]) == 130
    assert asked["ray"] == "auto"
    assert json.loads(capsys.readouterr().out)["exit_code"] == 130


def test_sweep_writes_a_file_and_lists_its_designs(
    app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "s.parquet"
    words = ["calculon", "sweep", app, "a100_80g", "--procs", "4,8", "--batch", "8", "--pin", "tp=2", "-o", str(path)]
    code, found = answer(capsys, *words)
    assert code == 0
    assert found["schema"] == "meshwright.calculon-sweep/1"
    assert [design["num_procs"] for design in found["designs"]] == [4, 8]
    assert path.exists()
    assert main(words) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0
    assert "2 designs found there already" in capsys.readouterr().out


def test_what_if_draws_a_tornado(app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "t.svg"
    words = ["calculon", "what-if", app, "a100_80g", "--procs", "8", "--batch", "8", "--factors", "2"]
    assert main([*words, "--pin", "tp=2", "--pin", "pp=2", "--svg", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "matrix.float16.tflops" in text
    assert "Tornado" in text
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    "words",
    [
        ["search", "gpt3-175", "a100", "--procs", "x"],
        ["what-if", "gpt3-175", "a100", "--procs", "x"],
        ["sweep", "gpt3-175B,gpt3-175", "a100", "--procs", "512,x", "-o", "sweep.parquet"],
    ],
    ids=lambda words: words[0],
)
def test_bad_counts_names_and_spaces_are_told_together(run: Run, words: list[str]) -> None:
    ran = run("calculon", *words, "--batch", "0", "--space", "ful", "--dtype", "flot16", "--pin", "tensr=3", "--json")
    assert ran.code == 2
    told = [problem["what"] for problem in ran.document["problems"]]
    for what in ("'x'", "'0'", "'gpt3-175'", "'a100'", "'ful'", "'flot16'", "'tensr'"):
        assert sum(what in one for one in told) == 1, what
