"""Loads of experts as users have them, and what is refused of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.formats.expert_load import expert_load_of
from meshwright.library import models
from meshwright.specs.expert_load import ExpertLoad
from meshwright.zoo.tiny import TINY

COUNTS = ((8.0, 4.0, 2.0, 2.0), (4.0, 4.0, 4.0, 4.0))


def test_one_number_is_the_fullest_rank_over_the_mean() -> None:
    assert [expert_load_of(stated) for stated in ("balanced", "1.3", 1.3, 2)] == [1.0, 1.3, 1.3, 2.0]
    assert expert_load_of("zipf:1.2") == ExpertLoad(zipf=1.2)


@pytest.mark.parametrize(
    "text",
    [
        "8,4,2,2\n4,4,4,4\n",
        "layer,expert,tokens\n"
        + "".join(f"{at},{e},{n}\n" for at, row in enumerate(COUNTS) for e, n in enumerate(row)),
        "layer,e0,e1,e2,e3\n0,8,4,2,2\n1,4,4,4,4\n",
        "".join(json.dumps({"layer": at, "tokens": row}) + "\n" for at, row in enumerate(COUNTS)),
        # Two steps, which are summed.
        "".join(
            json.dumps({"layer": at, "step": step, "tokens": [n / 2 for n in row]}) + "\n"
            for step in (0, 1)
            for at, row in enumerate(COUNTS)
        ),
        json.dumps(COUNTS),
    ],
)
def test_a_file_counts_tokens_by_layer_and_expert(text: str, tmp_path: Path) -> None:
    path = tmp_path / "loads"
    path.write_text(text)
    assert expert_load_of(path) == ExpertLoad(counts=COUNTS)


@pytest.mark.parametrize(
    ("stated", "rule"),
    [
        ("0.5", "at least the mean"),
        ("zip:1", "did you mean zipf"),
        ("zipf:x", "is a number"),
        ("zipf:99", "0 (alike)"),
        ("nowhere.csv", "there is no such file"),
        ([[8, 4], [4, 4]], "routes the tokens of the same step"),
        ([[8, -4]], "no count"),
        ([[0, 0]], "some are above"),
        (True, "states no load"),
    ],
)
def test_what_is_no_load_is_refused_with_its_rule(stated: object, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        expert_load_of(stated)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("8,x\n", "where tokens are counted"),
        ('{"tokens": 3}\n', "holds no tokens"),
        ('{"layer": "a", "tokens": [1]}\n', "no whole number"),
    ],
)
def test_a_bad_line_is_named(line: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(line)
    with pytest.raises(InputError) as caught:
        expert_load_of(path)
    assert "line 1" in str(caught.value)
    assert rule in str(caught.value)


def test_a_load_is_of_as_many_experts_and_layers_as_the_model_has() -> None:
    mixtral = models.spec("mixtral-8x7b")
    assert ExpertLoad(zipf=1.0).of(mixtral).experts == 8
    assert ExpertLoad(counts=((1.0,) * 8,)).of(mixtral).counts == ((1.0,) * 8,)
    for counts, rule in (
        (((1.0,) * 4,), "mixtral-8x7b has 8 in a layer"),
        (((1.0,) * 8,) * 3, "has 32 layers"),
        (((1.0,) * 8, *((1.0, 7.0),) * 31), "layer 1 of the load counts 2 experts"),
    ):
        with pytest.raises(InputError) as caught:
            ExpertLoad(counts=counts).of(mixtral)
        assert rule in str(caught.value)
    with pytest.raises(InputError):
        ExpertLoad(zipf=1.0).of(models.spec("llama-3-8b"))


def test_layers_of_a_pyramid_have_a_load_each(tmp_path: Path) -> None:
    """Two layers of 4 experts and two of 8: rows of as many counts, and a law over each number."""
    rows = ((8.0, 4.0, 2.0, 2.0), (4.0,) * 4, (2.0,) * 8, (9.0, *(1.0,) * 7))
    path = tmp_path / "loads.csv"
    long = [f"{at},{e},{n:g}" for at, row in enumerate(rows) for e, n in enumerate(row)]
    path.write_text("\n".join(["layer,expert,tokens", *long]))
    for stated in (path, rows):
        found = expert_load_of(stated)
        assert isinstance(found, ExpertLoad)
        load = found.of(TINY["pr-moe-tiny"])
        assert load.counts == rows
        assert [load.over(experts).counts for experts in (4, 8)] == [rows[:2], rows[2:]]
        assert [len(layers) for layers in load.by_experts(TINY["pr-moe-tiny"]).values()] == [2, 2]
    law = ExpertLoad(zipf=1.0).of(TINY["pr-moe-tiny"])
    assert [law.over(experts).experts for experts in (4, 8)] == [4, 8]
    for wrong, rule in (
        (rows[:1], "has 4 layers with experts\n  fix: give 4 layers"),
        (rows[::-1], "layer 0 of the load counts 8 experts\n  why: 4 are in it"),
    ):
        with pytest.raises(InputError) as caught:
            ExpertLoad(counts=wrong).of(TINY["pr-moe-tiny"])
        assert rule in str(caught.value)
