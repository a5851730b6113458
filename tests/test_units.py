"""Numbers as text: one rule for a quantity, and shares that sum to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.units import (
    GIB,
    MOST_DIGITS,
    number_or_word,
    of_capacity,
    percent,
    percents,
    rounded,
    scaled,
    seconds,
    signed_percent,
    slower,
    usd,
    whole_number,
)


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-6, 1e6), min_size=1, max_size=11))
def test_shares_of_a_whole_sum_to_100(parts: dict[str, float]) -> None:
    shares = percents(parts)
    assert sum(round(10 * float(share.removesuffix("%"))) for share in shares.values()) == 1000
    assert list(shares) == sorted(shares, key=lambda name: -parts[name])


def test_the_largest_remainder_takes_what_is_missing() -> None:
    assert percents({"a": 1.0, "b": 1.0, "c": 1.0}) == {"a": "33.4%", "b": "33.3%", "c": "33.3%"}
    assert percents({"a": 0.0}) == {}
    assert percents({"a": 1.0, "b": 1e-9}) == {"a": "100.0%"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rounded(1187.0), "1,190"),
        (rounded(52.34), "52.3"),
        (scaled(15e12), "15T"),
        (percent(0.8851), "89%"),
        (percent(0.0461), "4.6%"),
        (percent(0.0001), "under 0.1%"),
        (signed_percent(0.21), "+21%"),
        (signed_percent(-0.0001), "-0.0%"),
        (of_capacity(65.5 * GIB, 79.1 * GIB), "65.5 of 79.1 GiB"),
        (usd(0.054), "0.054 USD"),
        (usd(1203.7), "1,204 USD"),
        (slower(0.21), "21% slower"),
        (slower(-0.032), "3.2% faster"),
        (slower(0.0), "the same time"),
    ],
)
def test_a_quantity_is_written_in_one_way(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("rounding_error", [0.0, 7e-15, -1e-17])
def test_what_rounds_to_no_time_is_no_time(rounding_error: float) -> None:
    assert seconds(rounding_error) == "0 s"


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "1e3", "1_000", " 1", "x", "9" * (MOST_DIGITS + 1), "9" * 5000]
)
def test_what_is_no_whole_number_stays_a_word(text: str) -> None:
    assert whole_number(text) is None
    assert number_or_word(text) == text


@given(st.integers(0, 10**MOST_DIGITS - 1))
def test_a_whole_number_is_read_as_it_was_written(number: int) -> None:
    assert whole_number(str(number)) == number_or_word(str(number)) == number
