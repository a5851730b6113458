"""Sequences into rows of equal room, and what unequal rows cost: lengths in, rows and expectations out."""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import lru_cache

import numpy as np

from meshwright.shapes import Float, Int

SEARCHED = 18
"""Most sequences for which every packing that could save a row is tried."""
DEALT = 1 << 16
"""Terms that are dealt out one by one; more rounds of them only even ranks out further."""
_GRID = 256
_SUMMED = 64
"""Most terms whose sum is convolved; of more the sum is near enough to a normal one with its skewness."""


def best_fit(lengths: Int[np.ndarray, " sequences"], room: int) -> Int[np.ndarray, " sequences"]:
    """The row of each sequence: longest first, each into the row with the least space that is enough.

    At most 11/9 of the fewest rows, and a few more; mostly the fewest.

    Args:
        lengths: the lengths from 1 to `room`.
        room: tokens of a row.

    Returns:
        Row of each sequence, numbered from 0.

    Source: Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM J. Comput. 1974 (best fit decreasing).
    """
    order = np.argsort(-lengths, kind="stable")
    left: list[tuple[int, int]] = []
    """(space left, row), ascending."""
    rows = np.zeros(len(lengths), dtype=np.int64)
    used = 0
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(left, (length, -1))
        if place < len(left):
            space, row = left.pop(place)
        else:
            space, row, used = room, used, used + 1
        rows[number] = row
        if space > length:
            insort(left, (space - length, row))
    return rows


def fewest_rows(lengths: Int[np.ndarray, " sequences"], room: int) -> Int[np.ndarray, " sequences"]:
    """The row of each sequence in as few rows as possible, proved for up to `SEARCHED` sequences; else `best_fit`.

    Best fit first; where it needs more rows than the lower bound, all packings in fewer rows are tried, longest first,
    rows of equal space once.

    Args:
        lengths: the lengths from 1 to `room`.
        room: tokens of a row.

    Returns:
        Row of each sequence, numbered from 0.

    Source: Martello and Toth, "Knapsack Problems", 1990, chapter 8 (the bound L2, branch and bound).
    """
    rows = best_fit(lengths, room)
    count = int(rows.max(initial=-1)) + 1
    least = least_rows(lengths, room)
    if count == least or len(lengths) > SEARCHED:
        return rows
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order].tolist()
    for tried in range(least, count):
        found = _packed(ordered, [room] * tried, 0, [0] * len(ordered))
        if found is not None:
            rows[order] = found
            return rows
    return rows


def least_rows(lengths: Int[np.ndarray, " sequences"], room: int) -> int:
    """Rows without which sequences cannot do: the bound L2 of Martello and Toth, at least the sum over the room.

    For every a up to half the room: sequences longer than room - a stand alone, those longer than half the room in rows
    of their own, and what those of at least a exceed the space beside them needs more rows.

    Args:
        lengths: the lengths from 1 to `room`.
        room: tokens of a row.
    """
    found = -(-int(lengths.sum()) // room)
    for small in {0, *(length for length in lengths.tolist() if 2 * length <= room)}:
        alone = int((lengths > room - small).sum())
        large = lengths[(lengths <= room - small) & (2 * lengths > room)]
        rest = lengths[(2 * lengths <= room) & (lengths >= small)]
        over = int(rest.sum()) - (len(large) * room - int(large.sum()))
        found = max(found, alone + len(large) + max(0, -(-over // room)))
    return found


def _packed(ordered: list[int], spaces: list[int], number: int, rows: list[int]) -> list[int] | None:
    """Rows of the sequences from a number on in these spaces, None where they do not fit."""
    if number == len(ordered):
        return list(rows)
    length, tried = ordered[number], set()
    if sum(ordered[number:]) > sum(spaces):
        return None
    for row, space in enumerate(spaces):
        if space < length or space in tried:
            continue
        tried.add(space)
        spaces[row] -= length
        rows[number] = row
        found = _packed(ordered, spaces, number + 1, rows)
        spaces[row] += length
        if found is not None:
            return found
    return None


def drawn_lengths(
    lengths: Int[np.ndarray, " lengths"], shares: Float[np.ndarray, " lengths"], count: int
) -> Int[np.ndarray, " sequences"]:
    """Lengths of so many sequences in the proportions of their shares, ascending: the quantiles (i + 1/2) / count.

    Args:
        lengths: ascending.
        shares: the shares of the sequences, summing to 1.
        count: how many.
    """
    at = (np.arange(count) + 0.5) / count
    return lengths[np.minimum(np.searchsorted(np.cumsum(shares), at), len(lengths) - 1)]


def strata(
    lengths: Int[np.ndarray, " lengths"], shares: Float[np.ndarray, " lengths"], count: int
) -> Float[np.ndarray, " sequences"]:
    """Lengths with the mean of a distribution: each the mean of one of `count` strata of equal share.

    Args:
        lengths: ascending.
        shares: the shares of the sequences, summing to 1.
        count: how many.
    """
    risen = np.concatenate(([0.0], np.cumsum(shares)))
    total = np.concatenate(([0.0], np.cumsum(shares * lengths)))
    cuts = np.interp(np.linspace(0.0, risen[-1], count + 1), risen, total)
    return np.asarray(np.diff(cuts) * count)


def fullest_of(values: tuple[float, ...], shares: tuple[float, ...], terms: int, ranks: int) -> float:
    """Expected load of the fullest of equal ranks over the mean load, each rank the sum of random terms.

        E[max of R sums of n values] / (n E[value]),  with F the distribution of one sum: E[max] = sum of (1 - F^R)

    Up to 64 terms the distribution is convolved on a grid; of more it is normal with its own skewness (Cornish-Fisher).

    Args:
        values: the values of one term, at least 0.
        shares: probability of each value; they sum to 1.
        terms: n.
        ranks: R.

    Returns:
        A ratio of at least 1; 1 for one rank or equal values.
    """
    if ranks < 2 or len(values) < 2:
        return 1.0
    return _fullest_of(values, shares, terms, ranks)


@lru_cache(maxsize=4096)
def dealt_out(values: tuple[float, ...], shares: tuple[float, ...], terms: int, ranks: int) -> float:
    """Load of the fullest of equal ranks over the mean, where a scheduler deals out terms by their size.

    Terms in the proportions of their shares, heaviest first, are dealt to ranks to and fro: each gets as many.

    Args:
        values: the values of one term, at least 0.
        shares: probability of each value; they sum to 1.
        terms: the number of terms of each rank.
        ranks: how many.

    Returns:
        A ratio of at least 1.
    """
    if ranks < 2 or len(values) < 2:
        return 1.0
    rounds = min(terms, max(2, DEALT // ranks))
    order = np.argsort(values)
    place = drawn_lengths(np.arange(len(order)), np.array(shares)[order], rounds * ranks)
    sample = np.array(values)[order][place[::-1]].reshape(rounds, ranks)
    sample[1::2] = sample[1::2, ::-1]
    sums = sample.sum(axis=0)
    return float(sums.max() / sums.mean())


@lru_cache(maxsize=4096)
def _fullest_of(values: tuple[float, ...], shares: tuple[float, ...], terms: int, ranks: int) -> float:
    value, share = np.array(values), np.array(shares)
    mean = float(share @ value)
    apart = value - mean
    spread = float(share @ apart**2) ** 0.5
    if not spread > 1e-9 * mean:
        return 1.0
    if terms <= _SUMMED:
        low, step = value.min(), (value.max() - value.min()) / (_GRID - 1)
        at = (value - low) / step
        below = np.minimum(at.astype(np.int64), _GRID - 2)
        size = 1 << (terms * (_GRID - 1) + 1).bit_length()
        mass = np.bincount(below, share * (1 - (at - below)), size)
        mass += np.bincount(below + 1, share * (at - below), size)
        whole = np.fft.irfft(np.fft.rfft(mass) ** terms, size)
        risen = np.clip(np.cumsum(whole), 0.0, 1.0)
        last = terms * (_GRID - 1)
        return float((terms * low + step * (1.0 - risen[:last] ** ranks).sum()) / (terms * mean))
    skewness = float(share @ apart**3) / spread**3 / terms**0.5
    z = np.linspace(-9.0, 9.0, 3601)
    density = np.exp(-0.5 * z * z)
    normal = np.cumsum(density) / density.sum()
    greatest = np.diff(normal**ranks, prepend=0.0)
    expected = float(greatest @ (z + skewness * (z * z - 1.0) / 6.0))
    return max(1.0, 1.0 + expected * spread / (terms**0.5 * mean))
