"""Lengths of sequences, and how sequences fill the rows that a step computes.

A row is `seq_len` tokens, real ones and padding. Packed sequences do not see each other; padding is computed as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from meshwright.errors import InputError, unknown_name
from meshwright.specs.check import Check

Lengths = tuple[tuple[int, float], ...]
"""(length, share of the sequences), ascending; shares sum to 1."""

PACKINGS: dict[str, str] = {
    "pack": "sequences packed into rows, longest first, each where least space is left",
    "pad": "one sequence a row, padded to its end",
    "concat": "sequences one after the other, cut where a row ends, all tokens of a row seeing each other",
    "dynapipe": "sorted sequences grouped into micro-batches of near-equal time, each padded to its longest",
    "bins": "sequences padded to the upper edge of their bin, as many of a bin in a row as fit",
}
"""How sequences fill rows."""
DYNAMIC = "dynapipe"
"""The packing whose micro-batches differ in size."""
FIRST_EDGE = 128
"""Upper edge of the first bin; each of the others is twice the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How sequences fill rows, and the upper edges of bins."""

    name: str
    edges: tuple[int, ...] = ()

    @classmethod
    @lru_cache(maxsize=64)
    def read(cls, text: str) -> Packing:
        """The packing of `pack`, `pad`, `bins` or `bins:512,2048`.

        Raises:
            InputError: no such packing, or edges that are no ascending lengths.
        """
        name, colon, after = text.partition(":")
        if name not in PACKINGS:
            raise InputError(unknown_name("packing", name[:40], PACKINGS), code="MW206")
        if not colon:
            return cls(name=name)
        edges = tuple(int(edge) if edge.strip().isdecimal() else 0 for edge in after.split(","))
        if name != "bins" or min(edges) < 1 or list(edges) != sorted(set(edges)):
            why = "edges are ascending lengths" if name == "bins" else f"{name} has no edges"
            fix = "for example bins:512,2048,8192"
            raise InputError(what=f"packing is {text[:60]!r}", why=why, fix=fix, field="packing", code="MW206")
        return cls(name=name, edges=edges)

    def upper_edges(self, seq_len: int) -> tuple[int, ...]:
        """Edges of all bins of rows of so many tokens, the last one the row itself."""
        edges = self.edges or tuple(FIRST_EDGE << power for power in range(max(seq_len // FIRST_EDGE, 1).bit_length()))
        return (*(edge for edge in edges if edge < seq_len), seq_len)


def check_lengths(check: Check, lengths: Lengths) -> None:
    """Note what is wrong with a distribution of lengths."""
    for length, share in lengths:
        if not (isinstance(length, int) and length > 0 and math.isfinite(share) and share > 0):
            check.that(False, "sequence_lengths", (length, share), "is a length of at least 1 and a share above 0")
            return
    order = [length for length, _ in lengths]
    check.that(order == sorted(set(order)), "sequence_lengths", order[:4], "must be ascending, each length once")
    total = sum(share for _, share in lengths)
    check.that(abs(total - 1.0) < 1e-6, "sequence_lengths", total, "must have shares that sum to 1")


def mean_length(lengths: Lengths) -> float:
    """Tokens of a sequence, on average."""
    return sum(length * share for length, share in lengths)


def describe_lengths(lengths: Lengths) -> dict[str, object]:
    """A distribution in numbers: mean, median, longest."""
    below = accumulate(share for _, share in lengths)
    median = next((length for (length, _), total in zip(lengths, below, strict=True) if total >= 0.5), lengths[-1][0])
    return {"mean": mean_length(lengths), "median": median, "longest": lengths[-1][0]}
