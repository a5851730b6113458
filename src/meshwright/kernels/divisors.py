"""Divisors of degrees and batches."""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """Divisors, ascending: those up to the square root by trial, the others as their cofactors.

    Args:
        number: at least 1.
    """
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
