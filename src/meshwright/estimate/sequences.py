"""What a step of unequal sequences computes: rows filled by a packing, their attended pairs, and how uneven ranks are.

rows     sequences in rows of seq_len tokens; what is left of a row is padding
pairs    of a row: the sum over its sequences, which do not see each other, so sum(l^2) and not (sum l)^2
load     attended pairs of the fullest rank over the mean, expected over random rows
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from meshwright.estimate.attended import attended_pairs
from meshwright.estimate.result import Filling
from meshwright.shapes import Float, Int
from meshwright.specs.lengths import DYNAMIC, Lengths, Packing
from meshwright.specs.operators import CoreAttention
from meshwright.specs.workload import Workload

DRAWN = 8192
"""Sequences that are packed to see what rows look like."""
WHOLE = CoreAttention(
    name="attention", module="attention", heads=1, kv_heads=1, head_dim=1, value_dim=1, window=None, causal=True
)
"""Causal attention without a window."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they come, and how often."""

    seq_len: int
    row: Int[np.ndarray, " parts"]
    """Which row a part of a row belongs to."""
    length: Int[np.ndarray, " parts"]
    """Tokens that attention sees as one sequence, padding included."""
    count: Float[np.ndarray, " parts"]
    """Sequences of that length in the row."""
    share: Float[np.ndarray, " rows"]
    """How often each row comes; sums to 1."""
    tokens: float
    """Real tokens of a row, on average."""
    sequences: float
    """Of a row, on average."""

    @property
    def filled(self) -> float:
        """Real tokens over all tokens of a row."""
        return self.tokens / self.seq_len

    def each(self, op: CoreAttention) -> Float[np.ndarray, " rows"]:
        """Attended pairs of each row and head."""
        key = (op.window, op.chunk, op.causal)
        if key not in self._pairs:
            lengths, index = np.unique(self.length, return_inverse=True)
            pairs = np.array([attended_pairs(op, float(length)) for length in lengths.tolist()])
            self._pairs[key] = np.bincount(self.row, pairs[index] * self.count, len(self.share))
        return self._pairs[key]

    def pairs(self, op: CoreAttention) -> float:
        """Attended pairs of a row and head, on average."""
        return float(self.share @ self.each(op))

    def load(
        self, op: CoreAttention, ranks: Int[np.ndarray, " plans"], rows: Int[np.ndarray, " plans"]
    ) -> Float[np.ndarray, " plans"]:
        """Expected pairs of the fullest of so many ranks over the mean, each of so many random rows.

        Args:
            op: the attention.
            ranks: data-parallel ranks that wait for each other.
            rows: of each rank until they do.
        """
        from meshwright.kernels.packing import fullest_of  # few jobs have unequal sequences

        values, shares = self._spread(op)
        pairs, index = np.unique(np.stack([ranks, rows], axis=1), axis=0, return_inverse=True)
        found = [fullest_of(values, shares, int(terms), int(count)) for count, terms in pairs.tolist()]
        return np.array(found)[index.reshape(-1)]

    def _spread(self, op: CoreAttention) -> tuple[tuple[float, ...], tuple[float, ...]]:
        values, index = np.unique(self.each(op), return_inverse=True)
        return tuple(values.tolist()), tuple(np.bincount(index, self.share).tolist())

    @cached_property
    def _pairs(self) -> dict[tuple[int | None, int | None, bool], np.ndarray]:
        return {}


def rows_of(workload: Workload) -> Rows | None:
    """The rows of a workload, None where every sequence fills its own."""
    if not workload.sequence_lengths:
        return None
    return _rows(workload.sequence_lengths, workload.packing, workload.seq_len)


def tokens_of_step(workload: Workload) -> float:
    """Real tokens that a step trains, padding left out."""
    rows = rows_of(workload)
    return workload.tokens_per_step if rows is None else rows.tokens * workload.global_batch


def filling_of(workload: Workload, data_ranks: int) -> Filling | None:
    """What an answer says of unequal sequences, None where all are alike.

    Args:
        workload: the step.
        data_ranks: of the plan.
    """
    rows = rows_of(workload)
    if rows is None:
        return None
    each = max(workload.global_batch // data_ranks, 1)
    return Filling(
        packing=workload.packing,
        tokens_per_step=rows.tokens * workload.global_batch,
        sequences_per_step=rows.sequences * workload.global_batch,
        padding=1.0 - rows.filled,
        cut=sum(share for length, share in workload.sequence_lengths if length > workload.seq_len),
        fullest_rank=float(rows.load(WHOLE, np.array([data_ranks]), np.array([each]))[0]),
    )


def pairs_of_row(op: CoreAttention, workload: Workload) -> float:
    """Query-key pairs of a row and head that the mask leaves, on average; packed sequences do not see each other."""
    rows = rows_of(workload)
    return attended_pairs(op, float(workload.seq_len)) if rows is None else rows.pairs(op)


def fullest_pairs(
    op: CoreAttention, data_ranks: Int[np.ndarray, " plans"], workload: Workload
) -> Float[np.ndarray, " plans"]:
    """Expected pairs over a step of the fullest data-parallel rank over the mean: 1 where all rows are alike."""
    rows = rows_of(workload)
    if rows is None:
        return np.ones(len(data_ranks))
    each = np.maximum(workload.global_batch // np.maximum(data_ranks, 1), 1)
    return rows.load(op, data_ranks, each)


@lru_cache(maxsize=64)
def _rows(lengths: Lengths, packing: str, seq_len: int) -> Rows:
    """What is longer than a row is cut to it."""
    from meshwright.kernels.packing import drawn

    own = np.array([length for length, _ in lengths])
    share = np.array([share for _, share in lengths])
    length = np.minimum(own, seq_len)
    how = Packing.read(packing)
    if how.name == "concat":
        mean = float(share @ length)
        one = np.array([1.0])
        return Rows(
            seq_len=seq_len,
            row=np.array([0]),
            length=np.array([seq_len]),
            count=one,
            share=one,
            tokens=float(seq_len),
            sequences=seq_len / mean,
        )
    if how.name in ("pack", DYNAMIC):
        return _packed(drawn(length, share, DRAWN), seq_len)
    edges = np.array(how.upper_edges(seq_len)) if how.name == "bins" else np.array([seq_len])
    place = np.searchsorted(edges, length)
    many = seq_len // edges
    sequences = np.bincount(place, share, len(edges))
    rows = sequences / many
    used = np.flatnonzero(rows)
    total = rows.sum()
    return Rows(
        seq_len=seq_len,
        row=np.arange(len(used)),
        length=edges[used],
        count=many[used].astype(float),
        share=rows[used] / total,
        tokens=float(share @ length / total),
        sequences=float(1.0 / total),
    )


def _packed(lengths: Int[np.ndarray, " sequences"], seq_len: int) -> Rows:
    from meshwright.kernels.packing import fewest_rows

    row = fewest_rows(lengths, seq_len)
    rows = int(row.max()) + 1
    # Sequences of one length in a row count together.
    code, count = np.unique(row * (seq_len + 1) + lengths, return_counts=True)
    return Rows(
        seq_len=seq_len,
        row=code // (seq_len + 1),
        length=code % (seq_len + 1),
        count=count.astype(float),
        share=np.full(rows, 1.0 / rows),
        tokens=float(lengths.sum() / rows),
        sequences=len(lengths) / rows,
    )
