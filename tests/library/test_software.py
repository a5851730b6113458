"""Frameworks by name and time: which generation is meant, what it changes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import plan
from meshwright.errors import InputError, UnsupportedError
from meshwright.library.calibration import calibration
from meshwright.library.software import (
    canonical,
    generation_of,
    generations_of,
    measured_as,
    numbers_name,
    own_numbers,
    published_software,
    software,
    software_names,
)
from meshwright.specs.calibration import NOTHING, Fitted
from meshwright.specs.software import DEFAULT_SOFTWARE, SoftwareGeneration


@pytest.mark.parametrize("line", software_names())
def test_generations_of_a_line_are_dated_in_order_and_the_newest_is_its_own_numbers(line: str) -> None:
    known = generations_of(line)

    assert [one.since for one in known] == sorted({one.since for one in known})
    newest = known[-1]
    assert (newest.host, newest.passes, newest.hidden, newest.young_products) == (1.0, 1.0, 1.0, 1.0)
    assert all(one.what and one.source for one in known)
    assert software(line, NOTHING) == published_software(line)


@pytest.mark.parametrize(
    ("when", "since"),
    [
        ("2025-06", "2025-01"),
        ("2025-06-17", "2025-01"),
        ("25.04", "2025-01"),
        ("25.04.02", "2025-01"),
        ("2025", "2025-09"),
        ("0.12", "2025-01"),
        ("r0.12.1", "2025-01"),
        ("2026-10", "2026-01"),
    ],
)
def test_a_time_is_a_month_a_release_or_a_version(when: str, since: str) -> None:
    assert generation_of(f"megatron-core@{when}").since == since


def test_the_newest_generation_goes_by_the_name_of_its_line() -> None:
    assert canonical("megatron-core@2026-10") == canonical(DEFAULT_SOFTWARE) == DEFAULT_SOFTWARE
    assert canonical("megatron-core@25.05") == "megatron-core@2025-01"


@pytest.mark.parametrize(
    "name", ["megatron-core@2010-01", "megatron-core@2199-01", "megatron-core@yesterday", "megatron-core@2025-13"]
)
def test_times_before_the_line_or_not_understood_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="megatron-core"):
        generation_of(name)


def test_an_unknown_framework_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnsupportedError, match="megatorn"):
        canonical("megatorn@2025-06")


def test_a_generation_changes_what_it_states() -> None:
    newest = published_software(DEFAULT_SOFTWARE)
    stated = SoftwareGeneration(
        since="2025-01", what="", source="", young=("blackwell",), host=2.0, hidden=0.5, young_products=0.8
    )
    then = stated.of(newest)

    assert then.operator_s == 2 * newest.operator_s
    assert then.overlap == newest.overlap / 2
    assert then.products_on("blackwell") == 0.8
    assert then.products_on("hopper") == 1.0


def test_fitted_ratios_replace_those_of_the_library() -> None:
    half = Fitted(value=0.5, low=0.4, high=0.6, prior=1.0)
    known = replace(calibration(), numbers=(("software.megatron-core@2025-01.young_products", half),))

    assert software("megatron-core@25.05", known).products_on("blackwell") == 0.5
    assert software("megatron-core@24.05", known).products_on("blackwell") == 1.0
    assert software("megatron-core", known).products_on("blackwell") == 1.0


def test_a_plan_names_the_generation_it_assumes() -> None:
    found = plan("llama-3.1-8b", gpus="8xH100", software="megatron-core@25.04", pin=("tp=8",), top=1)
    said = {assumption.name: assumption.value for assumption in found.assumptions}

    assert said["software"] == "megatron-core from 2025-01 on, before 2025-09"
    assert found.to_dict()["inputs"]["workload"]["software"] == "megatron-core@2025-01"


def test_a_line_like_another_one_shares_its_numbers_but_for_those_it_states() -> None:
    assert numbers_name("nanotron@2025-06") == "pytorch-eager"
    assert measured_as("pytorch-eager-no-sync@2023-05") == canonical("pytorch-eager@2023-05")
    assert (measured_as("nanotron"), measured_as("torchtitan")) == ("nanotron", "torchtitan")
    assert numbers_name("megatron-core-graphs@2025-06") == "megatron-core@2025-01"
    assert numbers_name("megatron-core@2025-06") == "megatron-core@2025-01"
    assert {"flash", "link_share", "adds_gradients"} <= own_numbers("nanotron")
    assert own_numbers("megatron-core-graphs") == {"like", "operator_s", "launches_experts", "source"}
    assert not own_numbers("pytorch-eager")
