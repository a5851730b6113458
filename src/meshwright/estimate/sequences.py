"""What a step of unequal sequences computes: rows filled by a packing, their attended pairs, and how uneven ranks are.

rows     sequences in rows of seq_len tokens; what is left of a row is padding
pairs    of a row: the sum over its sequences, which do not see each other, so sum(l^2) and not (sum l)^2
load     attended pairs of the fullest rank over the mean, expected over random rows

An encoder of text reads a sequence of e l / s tokens beside one of l, where s and e are the rows of decoder and
encoder: both rows hold the same samples, and tokens of one sample see those of another in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from meshwright.estimate.result import Filling
from meshwright.kernels.compute import entry_pairs, score_pairs
from meshwright.shapes import Float, Int
from meshwright.specs.lengths import DYNAMIC, Lengths, Packing
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import CoreAttention, Scores
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import StrategyColumns, ranks_of

DRAWN = 8192
"""Sequences that are packed to see what rows look like."""
WHOLE = CoreAttention(
    name="attention", module="attention", heads=1, kv_heads=1, head_dim=1, value_dim=1, window=None, causal=True
)
"""Causal attention without a window."""


def attended_pairs(op: CoreAttention, seq_len: float) -> float:
    """Pairs of one sequence and head.

    Args:
        op: core attention; its window counts the keys a query sees, a chunk cuts the sequence into pieces that do not
            see each other.
        seq_len: tokens.

    Returns:
        Sum over the pieces of `score_pairs`, and of keys that stand for several tokens; all keys for every query where
        they are those of another stream.
    """
    if op.keys is not None:
        return seq_len * op.keys.count
    window = float(op.window) if op.window else np.inf

    def pairs(tokens: float) -> float:
        return float(score_pairs(tokens, tokens, window=window, causal=op.causal))

    if op.entry:
        most = np.inf if op.picked is None else float(op.picked)
        return pairs(seq_len) + entry_pairs(int(seq_len), op.entry, most)
    if not op.chunk or op.chunk >= seq_len:
        return pairs(seq_len)
    whole, rest = divmod(seq_len, op.chunk)
    return whole * pairs(float(op.chunk)) + (pairs(rest) if rest else 0.0)


@dataclass(frozen=True, eq=False)
class SequenceRows:
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
    """Sequences of a row, on average."""

    @property
    def filled(self) -> float:
        """Real tokens over all tokens of a row."""
        return self.tokens / self.seq_len

    def each(self, op: CoreAttention) -> Float[np.ndarray, " rows"]:
        """Attended pairs of each row and head."""
        key = (op.window, op.chunk, op.causal, op.entry, op.picked)
        if key not in self._pairs:
            lengths, index = np.unique(self.length, return_inverse=True)
            pairs = np.array([attended_pairs(op, float(length)) for length in lengths.tolist()])
            self._pairs[key] = np.bincount(self.row, pairs[index] * self.count, len(self.share))
        return self._pairs[key]

    def pairs(self, op: CoreAttention) -> float:
        """Attended pairs of a row and head, on average."""
        return float(self.share @ self.each(op))

    def load(
        self,
        op: CoreAttention,
        ranks: Int[np.ndarray, " plans"],
        rows: Int[np.ndarray, " plans"],
        *,
        dealt: bool = False,
    ) -> Float[np.ndarray, " plans"]:
        """Expected pairs of the fullest of so many ranks over the mean, each of so many random rows.

        Args:
            op: the attention.
            ranks: data-parallel ranks that wait for each other.
            rows: the rows of each rank until they do.
            dealt: rows are dealt out by their pairs, instead of drawn at random.
        """
        from meshwright.kernels.packing import dealt_out, fullest_of  # few jobs have unequal sequences

        values, shares = self._spread(op)
        share_out = dealt_out if dealt else fullest_of
        pairs, index = np.unique(np.stack([ranks, rows], axis=1), axis=0, return_inverse=True)
        found = [share_out(values, shares, int(terms), int(count)) for count, terms in pairs.tolist()]
        return np.array(found)[index.reshape(-1)]

    def _spread(self, op: CoreAttention) -> tuple[tuple[float, ...], tuple[float, ...]]:
        values, index = np.unique(self.each(op), return_inverse=True)
        return tuple(values.tolist()), tuple(np.bincount(index, self.share).tolist())

    @cached_property
    def _pairs(self) -> dict[tuple[int | None, int | None, bool, int, int | None], np.ndarray]:
        return {}


def rows_of(workload: Workload, length: float | None = None) -> SequenceRows | None:
    """The rows of a workload, None where every sequence fills its own.

    Args:
        workload: the step.
        length: tokens of a row, where they are an encoder's.
    """
    if not workload.sequence_lengths:
        return None
    if length in (None, workload.seq_len):
        return _rows(workload.sequence_lengths, workload.packing, workload.seq_len)
    return _rows_of_encoder(workload.sequence_lengths, workload.packing, workload.seq_len, int(length))


def with_encoder_of(model: ModelSpec, seq_len: int, length: int) -> ModelSpec:
    """The model as it reads one sequence: its encoder of text has tokens in proportion to the decoder's.

    Args:
        model: its streams have the lengths of a row.
        seq_len: tokens of the decoder's row.
        length: tokens of the sequence in the decoder.
    """
    if length == seq_len or not model.streams:
        return model
    own = (max(round((stream.length or 1) * length / seq_len), 1) for stream in model.streams)
    return replace(
        model, streams=tuple(replace(stream, length=n) for stream, n in zip(model.streams, own, strict=True))
    )


def tokens_of_step(workload: Workload) -> float:
    """Real tokens that a step trains, padding left out."""
    rows = rows_of(workload)
    return workload.tokens_per_step if rows is None else rows.tokens * workload.global_batch


def filling_of(workload: Workload, data_ranks: int) -> Filling | None:
    """What an answer says of unequal sequences, None where all are alike.

    Args:
        workload: the step.
        data_ranks: the number of data ranks of the plan.
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


def scored_pairs(op: Scores, workload: Workload) -> tuple[float, float]:
    """Pairs that an indexer scores in a row of a workload, and those it picks.

    Args:
        op: the scores; a key may stand for several tokens.
        workload: the step.
    """
    alone, seq = replace(WHOLE, window=1), float(workload.seq_len)
    entries = (replace(alone, entry=op.entry, picked=picked) for picked in (None, op.picked))
    every, picked = (pairs_of_row(one, workload, seq) - pairs_of_row(alone, workload, seq) for one in entries)
    return every, picked


def pairs_of_row(op: CoreAttention, workload: Workload, length: float) -> float:
    """Query-key pairs of a row and head that the mask leaves, on average; packed sequences do not see each other.

    Args:
        op: the attention; cross attention sees the encoder's tokens of its own sequence.
        workload: the step.
        length: tokens of a row of the queries.
    """
    rows = rows_of(workload, length)
    if rows is None:
        return attended_pairs(op, length)
    return rows.pairs(_within(op)) * (1.0 if op.keys is None else op.keys.count / length)


def _within(op: CoreAttention) -> CoreAttention:
    """Cross attention as attention within a sequence, whose pairs are in proportion to it."""
    return op if op.keys is None else replace(op, keys=None, causal=False)


def fullest_pairs(op: CoreAttention, columns: StrategyColumns, workload: Workload) -> Float[np.ndarray, " plans"]:
    """Expected pairs over a step of the fullest rank over the mean: 1 where all rows are alike.

    Context ranks share the pairs of a row evenly, unless each sequence has ranks of its own: then they are ranks among
    which pairs differ as well, and a scheduler deals sequences out by their pairs.
    """
    rows, ranks = rows_of(workload, columns.seq_len), columns.data_ranks
    if rows is None or ranks is None:
        return np.ones(columns.rows)
    op = _within(op)
    each = np.maximum(workload.global_batch // np.maximum(ranks, 1), 1)
    if not workload.dynamic_cp:
        step = rows.load(op, ranks, each)
        # Ranks that exchange tokens for experts wait for each other in every layer.
        together = np.clip(columns.ep * columns.etp // (columns.tp * columns.cp), 1, ranks)
        return np.maximum(step, rows.load(op, together, _rows_at_once(columns))) if (together > 1).any() else step
    found = np.ones(columns.rows)
    for degree in np.unique(columns.cp).tolist():
        own = np.flatnonzero(columns.cp == degree)
        found[own] = parts_of(workload, degree).load(op, ranks[own] * degree, each[own], dealt=True)
    return found


def lockstep_pairs(op: CoreAttention, columns: StrategyColumns, workload: Workload) -> Float[np.ndarray, " plans"]:
    """`fullest_pairs` where data-parallel ranks wait for each other layer by layer, as those of FSDP do."""
    rows, ranks = rows_of(workload, columns.seq_len), columns.data_ranks
    if rows is None or ranks is None or workload.dynamic_cp:
        return np.ones(columns.rows)
    return rows.load(_within(op), ranks, _rows_at_once(columns))


def _rows_at_once(columns: StrategyColumns) -> Int[np.ndarray, " plans"]:
    return np.maximum(columns.mbs, 1).astype(np.int64)


def dynamic_levels(
    columns: StrategyColumns, workload: Workload
) -> Iterator[tuple[StrategyColumns, Float[np.ndarray, " plans"]]]:
    """The strategies with fewer context ranks, and the share of the tokens whose sequences are cut over so many.

    Args:
        columns: strategies, one per row.
        workload: packed sequences, each on as few ranks of its group as it needs.

    Returns:
        Pairs, one for each number of ranks above 1: columns whose groups are that small, with as many tokens on a rank.
    """
    degrees = columns.cp
    spans = {degree: spans_of(workload, degree) for degree in np.unique(degrees).tolist()}
    for ranks in sorted({ranks for own in spans.values() for ranks in own if ranks > 1}):
        share = np.array([spans[degree].get(ranks, 0.0) for degree in degrees.tolist()])
        left, levels = np.full(columns.rows, ranks), []
        for level in columns.context.T:
            levels.append(np.clip(left, 1, level))
            left = -(-left // np.maximum(level, 1))
        fewer = np.stack(levels, axis=1)
        yield replace(columns, context=fewer, mbs=columns.mbs * ranks_of(fewer) / degrees), share


def spans_of(workload: Workload, degree: int) -> dict[int, float]:
    """Share of the tokens by the ranks that their sequence is cut over.

    A sequence of l tokens gets the least divisor k of the degree c with l / k <= seq_len / c.

    Args:
        workload: lengths and row.
        degree: the degree of the context group.

    Source: Wang et al., "FlexSP", 2025 (arXiv 2412.01523); Ge et al., "ByteScale", 2025 (arXiv 2502.21231), section 4.
    """
    found: dict[int, float] = {}
    total = 0.0
    for length, share in workload.sequence_lengths:
        tokens = min(length, workload.seq_len)
        ranks = ranks_for(tokens, workload.seq_len, degree)
        found[ranks] = found.get(ranks, 0.0) + share * tokens
        total += share * tokens
    return {ranks: tokens / total for ranks, tokens in found.items()}


def ranks_for(length: int, seq_len: int, degree: int) -> int:
    """Ranks of a context group that a sequence needs: the least divisor of the degree that is enough."""
    return next(k for k in range(1, degree + 1) if degree % k == 0 and length * degree <= seq_len * k)


def parts_of(workload: Workload, degree: int) -> SequenceRows:
    """What one rank of a context group computes at a time, where each sequence has as few ranks as it needs."""
    return _parts(workload.sequence_lengths, workload.seq_len, degree)


@lru_cache(maxsize=256)
def _parts(lengths: Lengths, seq_len: int, degree: int) -> SequenceRows:
    from meshwright.kernels.packing import best_fit, drawn_lengths

    own = np.array([min(length, seq_len) for length, _ in lengths])
    sample = drawn_lengths(own, np.array([share for _, share in lengths]), DRAWN)
    known = {length: ranks_for(length, seq_len, degree) for length in np.unique(sample).tolist()}
    ranks = np.array([known[length] for length in sample.tolist()])
    room = -(-seq_len // degree)
    whole, cut = np.repeat(sample, ranks), np.repeat(ranks, ranks)
    row = best_fit(-(-whole // cut), room)
    rows = int(row.max()) + 1
    return SequenceRows(
        seq_len=room,
        row=row,
        length=whole,
        count=1.0 / cut,
        share=np.full(rows, 1.0 / rows),
        tokens=float((whole / cut).sum() / rows),
        sequences=len(sample) / rows,
    )


@lru_cache(maxsize=64)
def _rows_of_encoder(lengths: Lengths, packing: str, seq_len: int, own: int) -> SequenceRows:
    """Rows of an encoder, of the same samples as the decoder's."""
    rows = _rows(lengths, packing, seq_len)
    length = np.maximum(np.rint(rows.length * (own / seq_len)), 1).astype(np.int64)
    return replace(rows, seq_len=own, length=length, tokens=rows.tokens * own / seq_len)


@lru_cache(maxsize=64)
def _rows(lengths: Lengths, packing: str, seq_len: int) -> SequenceRows:
    """What is longer than a row is cut to it."""
    from meshwright.kernels.packing import drawn_lengths

    own = np.array([length for length, _ in lengths])
    share = np.array([share for _, share in lengths])
    length = np.minimum(own, seq_len)
    how = Packing.read(packing)
    if how.name == "concat":
        mean = float(share @ length)
        one = np.array([1.0])
        return SequenceRows(
            seq_len=seq_len,
            row=np.array([0]),
            length=np.array([seq_len]),
            count=one,
            share=one,
            tokens=float(seq_len),
            sequences=seq_len / mean,
        )
    if how.name in ("pack", DYNAMIC):
        return _packed(drawn_lengths(length, share, DRAWN), seq_len)
    edges = np.array(how.upper_edges(seq_len)) if how.name == "bins" else np.array([seq_len])
    place = np.searchsorted(edges, length)
    many = seq_len // edges
    sequences = np.bincount(place, share, len(edges))
    rows = sequences / many
    used = np.flatnonzero(rows)
    total = rows.sum()
    return SequenceRows(
        seq_len=seq_len,
        row=np.arange(len(used)),
        length=edges[used],
        count=many[used].astype(float),
        share=rows[used] / total,
        tokens=float(share @ length / total),
        sequences=float(1.0 / total),
    )


def _packed(lengths: Int[np.ndarray, " sequences"], seq_len: int) -> SequenceRows:
    from meshwright.kernels.packing import fewest_rows

    row = fewest_rows(lengths, seq_len)
    rows = int(row.max()) + 1
    # Sequences of one length in a row count together.
    code, count = np.unique(row * (seq_len + 1) + lengths, return_counts=True)
    return SequenceRows(
        seq_len=seq_len,
        row=code // (seq_len + 1),
        length=code % (seq_len + 1),
        count=count.astype(float),
        share=np.full(rows, 1.0 / rows),
        tokens=float(lengths.sum() / rows),
        sequences=len(lengths) / rows,
    )
