"""How much a search looks at of the pipelines through islands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceEffort:
    """How much is looked at of the pipelines through the same islands; twice, with chunks and without."""

    bisected: int = 192
    """Stage sequences of one order whose pace is searched."""
    refined: int = 96
    """Bisected stage sequences whose pace is searched to the end."""
    all_orders: int = 4
    """Islands up to which all their orders are tried; of more, those that start elsewhere and run either way."""
    turned: bool = True
    """Whether those that start elsewhere are; else one order and its reverse."""
    reordered: int = 40
    """Stage sequences that are looked at in every order."""
    split: int = 64
    """Stage sequences whose layers are split exactly, at most."""
    split_always: int = 6
    parted: int = 48
    """Quickest pipelines whose first or last island is also tried at both ends."""
    divided_uses: int = 24
    """Uses of shares of islands whose layers are split exactly."""
    divided_split: int = 4
    """Stage sequences of each of them, at most."""
    beside: SequenceEffort | None = None
    """Effort for islands beside others, through which only the first few pipelines are put in a set; else the same."""


BESIDE = SequenceEffort(
    bisected=96, refined=48, all_orders=3, turned=False, reordered=8, split=8, split_always=4, parted=8
)
THOROUGH = SequenceEffort(beside=BESIDE)
QUICK = SequenceEffort(
    bisected=40,
    refined=16,
    all_orders=2,
    turned=False,
    reordered=10,
    split=6,
    split_always=3,
    parted=24,
    divided_uses=10,
    divided_split=2,
)
"""Effort for an answer within a second: of three islands or more only one order and its reverse."""
