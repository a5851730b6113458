"""Distinct combinations are those numpy finds, however wide the keys are, and can be looked up again."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.search.distinct import distinct

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
