"""Studies: what a table states, which combinations it has, and everything that is wrong with it at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.studies.file import read_study
from meshwright.errors import InputError, UnsupportedError

TWO = {"model": "llama-3-8b", "gpus": ["8xH100", "16xH100"]}


def test_every_combination_is_asked_once_the_last_axis_quickest() -> None:
    study = read_study({"model": ["gpt2", "llama-3-8b"], "gpus": "8xH100", "seq": [1024, "2k"], "gbs": 64})
    asked = [dict(question.values) for question in study.questions()]
    assert [(one["model"], one["seq_len"]) for one in asked] == [
        ("gpt2", 1024),
        ("gpt2", 2048),
        ("llama-3-8b", 1024),
        ("llama-3-8b", 2048),
    ]
    assert study.size == len(asked) == 4
    assert {one["global_batch"] for one in asked} == {64}
    assert [question.number for question in study.questions()] == [0, 1, 2, 3]


def test_numbers_of_a_device_vary_only_on_clusters_that_have_it() -> None:
    next_one = {"like": "H100", "memory_gib": [80, 120, 160], "node": {"scaleup_gb_s": [450, 900]}}
    study = read_study({**TWO, "gpus": ["8xH100", "8xnext", "8xH100,8xnext"], "gpu": {"next": next_one}})
    asked = [dict(question.values) for question in study.questions()]
    assert study.size == len(asked) == 1 + 6 + 6
    alone = [one for one in asked if one["gpus"] == "8xH100"]
    assert [(one["next.memory_gib"], one["next.node.scaleup_gb_s"]) for one in alone] == [(None, None)]


def test_a_study_is_as_long_as_its_questions_not_as_the_product_of_idle_numbers() -> None:
    many = {"like": "H100", "memory_gib": list(range(80, 1080)), "node": {"scaleup_gb_s": list(range(1, 1001))}}
    study = read_study({**TWO, "gpus": ["8xone", "8xH100"], "gpu": {"one": {**many, "node": {}}}})
    assert study.size == len(list(study.questions())) == 1001
    assert read_study({**TWO, "gpus": ["8xone", "8xtwo"], "gpu": {"one": many, "two": many}}).size == 2 * 10**6


def test_the_cluster_of_a_question_has_the_numbers_that_the_study_states() -> None:
    next_one = {"like": "H100", "memory_gib": [120], "node": {"devices": 16, "fabric_gb_s": 100}}
    (question,) = read_study({**TWO, "gpus": "32xnext", "gpu": {"next": next_one}}).questions()
    request: Any = question.request()
    (group,) = request.job.cluster.groups
    assert group.device.name == "next"
    assert group.device.memory_bytes == 120 * 2**30
    assert (group.nodes, group.devices_per_node) == (2, 16)
    assert {domain.size for domain in group.domains if domain.size > 1} == {16, 32}
    assert group.domains[-1].bandwidth_bytes_per_s == 100e9


def test_a_plan_in_the_study_is_priced_and_a_list_in_a_list_is_one_value() -> None:
    assert read_study({**TWO, "plan": ["tp2", "tp4"]}).verb == "estimate"
    study = read_study({**TWO, "pin": ["tp=2", ["tp=4", "pp=2"]]})
    assert study.verb == "plan"
    requests: list[Any] = [question.request() for question in study.questions()]
    assert [request.space.pin for request in requests[:2]] == [("tp=2",), ("tp=4", "pp=2")]


def test_files_beside_the_study_are_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[[group]]\ndevice = "H100"\nnodes = 2\n')
    (tmp_path / "study.toml").write_text('model = "gpt2"\ncluster = ["cluster.toml"]\n')
    (question,) = read_study(tmp_path / "study.toml").questions()
    assert dict(question.values)["cluster"] == str(tmp_path / "cluster.toml")


def test_all_problems_of_a_study_are_told_together() -> None:
    device = {"memory": 80, "memory_gib": ["big"], "node": {"name": 3}}
    wrong = {
        "modell": "gpt2",
        "gpus": ["8xH100"],
        "seq": ["4q"],
        "gbs": [],
        "optimizer": "adam",
        "--optimizer": "lion",
        "output": "x",
        "top": 3,
        "dtype": [["bf16"]],
        "gpu": {"next": device},
    }
    with pytest.raises(InputError) as caught:
        read_study(wrong)
    text = caught.value.render()
    for word in (
        *("modell", "did you mean model?", "'4q'", "gbs has no value", "are both optimizer", "name the file with -o"),
        *("say --top", "['bf16']", "'memory'", "['big']", "node.name"),
    ):
        assert word in text, word


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": ["gpt2", "lama-3-8b"]}, "llama-3-8b"),
        ({"gpus": ["8xH100", "8xH1000"]}, "H100"),
        ({"gpus": ["8xnext"], "gpu": {"next": {"like": "H101"}}}, "H100"),
        ({"gpu": {"next": {"like": "H100"}}}, "no value of gpus names it so"),
        ({"gpu": {"H100": {"memory_gib": -1}}}, "memory_gib"),
        ({"gpus": ["8xH100", "8xnext"], "gpu": {"next": {"like": "H100", "memory_gib": -1}}}, "memory_gib"),
        ({"gpu": {"H100": {"memory_gib": 10**400}}}, "at most 1e+30"),
        ({"gpu": {"H100": {"memory_gib": float("nan")}}}, "at most 1e+30"),
        ({"gpu": 3}, "a table for each device"),
        ({"gpus": None, "cluster": "16xH100", "gpu": {"H100": {"memory_gib": 80}}}, "gpus"),
    ],
)
def test_a_value_that_is_none_is_refused_before_the_sweep_begins(changes: dict[str, Any], said: str) -> None:
    stated = {key: value for key, value in {**TWO, **changes}.items() if value is not None}
    with pytest.raises((InputError, UnsupportedError)) as caught:
        read_study(stated)
    assert said in caught.value.render()


def test_a_problem_of_one_value_is_told_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_study({"model": ["lama-3-8b", "gpt2"], "gpus": ["8xH100", "16xH100", "8xH1000"], "seq": [1024, 2048]})
    assert [problem.what for problem in caught.value.problems] == [
        "unknown model 'lama-3-8b'",
        "unknown device 'H1000'",
    ]


def test_other_studies_have_other_fingerprints() -> None:
    prints = [
        read_study(one).fingerprint(top=top)
        for one in (TWO, {**TWO, "seq": 1024}, {**TWO, "gpus": ["16xH100", "8xH100"]})
        for top in (1, 2)
    ]
    assert len(set(prints)) == 6
    assert read_study(dict(TWO)).fingerprint(top=1) == prints[0]


@given(
    counts=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    clusters=st.lists(st.sampled_from(["8xH100", "8xone", "8xtwo", "8xone,8xtwo"]), min_size=1, unique=True),
)
def test_size_is_the_number_of_different_questions(counts: list[int], clusters: list[str]) -> None:
    numbers = {
        name: {"like": "H100", "memory_gib": [80 + n for n in range(count)]}
        for name, count in zip(("one", "two"), counts, strict=False)
        if any(name in text for text in clusters)
    }
    table = {
        "model": "gpt2",
        "gpus": clusters,
        "gpu": numbers,
        "seq": [128 * (n + 1) for n in range(counts[2])],
        "gbs": [64 * (n + 1) for n in range(counts[3])],
    }
    study = read_study(table)
    asked = [question.values for question in study.questions()]
    assert len(set(asked)) == len(asked) == study.size
    assert study.size <= math.prod(len(axis.values) for axis in study.axes)
