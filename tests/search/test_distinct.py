"""Distinct combinations are those numpy finds, however wide the keys are, and can be looked up again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.distinct import COUNTED, MOST_NARROW, distinct

NUMBERS = np.random.default_rng(11)
ROWS = 200_000
KEYS = {
    "flags and codes": [NUMBERS.random(ROWS) < 0.5, NUMBERS.integers(0, 3, ROWS).astype(np.int8)],
    "degrees": [2 ** NUMBERS.integers(0, 10, ROWS), NUMBERS.integers(1, 13, ROWS), np.full(ROWS, 512)],
    "more digits than a narrow integer holds": [NUMBERS.integers(1, 90, ROWS) for _ in range(3)],
    "a digit wider than a narrow integer": [NUMBERS.permutation(ROWS), NUMBERS.integers(0, 2, ROWS)],
    "negative and huge values": [NUMBERS.choice([-(2**40), -1, 2**40], ROWS), NUMBERS.integers(0, 5, ROWS)],
    "more than 64 bits hold": [NUMBERS.permutation(ROWS) for _ in range(4)],
    "too many to count": [NUMBERS.integers(0, 4000, ROWS), NUMBERS.integers(0, 4000, ROWS)],
}


@pytest.mark.parametrize("name", KEYS)
def test_rows_of_one_number_have_one_combination(name: str) -> None:
    keys = KEYS[name]
    found = distinct(keys)
    columns = np.stack([key.astype(np.int64) for key in keys])
    assert len(found.example) == np.unique(columns, axis=1).shape[1]
    assert np.array_equal(columns[:, found.example[found.index]], columns)
    if found.numbering is None:
        assert name in ("too many to count", "more than 64 bits hold")
        return
    some = NUMBERS.permutation(ROWS)[:1000]
    assert np.array_equal(found.numbering.of([key[some] for key in keys]), found.index[some])


def test_no_rows_have_no_combination() -> None:
    found = distinct([np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)])
    assert found.example.size == found.index.size == 0


@st.composite
def columns(draw: st.DrawFn) -> list[np.ndarray]:
    """A few keys of rows: flags, small and large ranges, negative ones, values at the edges of how they are held."""
    edges = [
        0,
        1,
        7,
        8,
        9,
        MOST_NARROW - 1,
        MOST_NARROW,
        MOST_NARROW + 1,
        COUNTED - 1,
        COUNTED,
        2**40,
        -1,
        -9,
        -(2**40),
    ]
    rows = draw(st.integers(1, 40))
    keys = []
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            keys.append(np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows))))
        else:
            some = st.sampled_from(draw(st.lists(st.sampled_from(edges), min_size=1, max_size=6)))
            keys.append(np.array(draw(st.lists(some, min_size=rows, max_size=rows)), dtype=np.int64))
    return keys


@given(keys=columns())
def test_rows_are_numbered_as_their_tuples_are(keys: list[np.ndarray]) -> None:
    """Two rows have one number exactly where they are equal; a number's example has it; other rows find theirs."""
    rows = list(zip(*(key.tolist() for key in keys), strict=True))
    found = distinct(keys)
    assert len(found.example) == len(set(rows))
    for row, number in zip(rows, found.index.tolist(), strict=True):
        assert rows[found.example[number]] == row
    assert found.index[found.example].tolist() == list(range(len(found.example)))
    if found.numbering is not None:
        backwards = [key[::-1] for key in keys]
        assert found.numbering.of(backwards).tolist() == found.index[::-1].tolist()


@pytest.mark.parametrize("wide", [2**16, 2**16 - 1, 2**13 + 1])
@pytest.mark.parametrize("keys", [2, 4, 5, 6])
def test_a_first_key_counts_however_many_bits_follow(wide: int, keys: int) -> None:
    """A number that wrapped round would lose it."""
    row = np.arange(2 * wide)
    found = distinct([row // wide, *[row % wide] * keys])
    assert len(found.example) == 2 * wide
    assert np.array_equal(np.sort(found.index), row)


def test_narrow_digits_around_wide_ones_keep_their_places() -> None:
    """A wide digit between narrow ones, more narrow ones than one narrow number holds, and digits of one value."""
    chance = np.random.default_rng(4)
    rows = 90_000
    wide, few, one = chance.permutation(rows), chance.integers(0, 3, rows), np.full(rows, 5)
    for keys in ([few, wide, few[::-1]], [one, wide], [wide, one, few], [few] * 12, [one], [one, few, one]):
        found = distinct(keys)
        together = np.stack(keys)
        assert len(found.example) == np.unique(together, axis=1).shape[1]
        assert np.array_equal(together[:, found.example[found.index]], together)
