"""Values by their kind: the same rule for a text and for a number."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.kinds import (
    PAIRS,
    Choice,
    Count,
    Devices,
    Duration,
    FieldKind,
    Number,
    Numbers,
    SequenceLength,
    Texts,
    Whole,
)


@pytest.mark.parametrize(
    ("text", "number"), [("15T", 15e12), ("1.5e12", 1.5e12), ("4_096", 4096), ("2k", 2e3), (7, 7.0)]
)
def test_counts_are_read(text: str | int, number: float) -> None:
    assert Count().read("tokens", text) == number


@pytest.mark.parametrize(
    "value", ["", "x", "-1", -1, 0, float("nan"), float("inf"), "1e999", "1" * 400, True, None, "0"]
)
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(InputError) as caught:
        Count().read("tokens", value)
    assert caught.value.problems[0].field == "tokens"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("32k", 32_768), ("128K", 131_072), ("1M", 2**20), ("1.5k", 1536), ("4_096", 4096), (8192, 8192)],
)
def test_k_of_a_sequence_length_is_1024(text: str | int, tokens: int) -> None:
    assert SequenceLength().read("--seq", text) == tokens


@pytest.mark.parametrize("value", ["", "k", "0k", "1.0001k", "1b", "2T", "1" * 400 + "k", 2.5, True, None])
def test_what_is_no_sequence_length_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="32k"):
        SequenceLength().read("--seq", value)


@pytest.mark.parametrize("value", ["1.5", 10**13, 2.5])
def test_sequences_are_whole(value: object) -> None:
    with pytest.raises(InputError, match="gbs"):
        Count(whole=True).read("gbs", value)


@pytest.mark.parametrize(
    ("kind", "text", "value", "read"),
    [
        (Whole(), "8", 8, 8),
        (Whole(), "1e6", 1_000_000, 1_000_000),
        (Number(), "2,000.5", 2000.5, 2000.5),
        (Number(zero=True), "0", 0, 0.0),
        (Count(), "15T", 15e12, 15e12),
        (Count(whole=True), "4M", 4_000_000, 4_000_000),
        (Duration(), "2min", 120, 120.0),
        (Texts(commas=True), "a, b", ["a", "b"], ("a", "b")),
        (Texts(), "tp=4,8", ["tp=4,8"], ("tp=4,8",)),
        (Texts(annotation=PAIRS), "tp=4,8", {"tp": [4, 8]}, ("tp=4,8",)),
        (Devices(), "8xH100,4xL40S", {"H100": 8, "L40S": 4}, "8xH100,4xL40S"),
        (Numbers(each=Whole()), "512,1024", [512, 1024], (512, 1024)),
        (Choice(names=("time", "cost"), noun="objective"), "cost", "cost", "cost"),
    ],
)
def test_a_text_and_a_value_read_alike(kind: FieldKind, text: str, value: object, read: object) -> None:
    assert kind.read("--it", text) == kind.read("it", value) == read


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [
        (Whole(high=1000), "1001", "from 1 to 1,000"),
        (Whole(), True, "whole number"),
        (Number(), 0, "above 0"),
        (Number(zero=True), -1, "at least 0"),
        (Duration(), "soon", "above 0"),
        (Numbers(each=Number()), "1,x", "above 0"),
    ],
)
def test_what_breaks_the_rule_names_field_rule_and_remedy(kind: FieldKind, value: object, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        kind.read("--it", value)
    (problem,) = caught.value.problems
    assert problem.field == "--it"
    assert problem.what.startswith("--it is ")
    assert rule in problem.why
    assert problem.fix


def test_a_choice_says_the_nearest_name_as_wrong_input_or_as_not_supported() -> None:
    with pytest.raises(InputError, match="cost"):
        Choice(names=("time", "cost"), noun="objective").read("", "costs")
    with pytest.raises(UnsupportedError, match="megatron"):
        Choice(names=("megatron",), noun="target", supported=False).read("", "megatrn")
