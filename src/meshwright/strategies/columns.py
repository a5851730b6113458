"""Columns of degrees: one row per plan or strategy, as cuts, prices and bounds read them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from meshwright.shapes import Bool, Float, Int
from meshwright.specs.dispatchers import Trait, codes_with, dispatcher_code
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.operators import Region, StreamTokens
from meshwright.specs.strategy import EXPERT_OVERLAPS, ExpertOverlap, TensorOverlap

Column = Float[np.ndarray, "rows"] | Int[np.ndarray, "rows"] | float
"""A number per row, or one for all rows."""

OVERLAPS: tuple[TensorOverlap, ...] = ("none", "bulk", "ring", "halves")
"""Codes of `StrategyColumns.tp_overlap`."""

BEST_OVERLAP = len(EXPERT_OVERLAPS)
"""Code of `StrategyColumns.ep_overlap`: as little of exchanges exposed as any compute could leave, for bounds."""

Compressions = np.ndarray
"""Words, one per row, such as `powersgd4`, empty for gradients as they are."""


class HiddenShares(NamedTuple):
    """What part of a tensor collective the product beside it may hide."""

    compute: Float[np.ndarray, "rows"]
    """Part of the product that is there to hide it."""
    exposed: Float[np.ndarray, "rows"]
    """Part of the collective that stays exposed."""


@dataclass(frozen=True, kw_only=True)
class StrategyColumns:
    """One strategy per row. Rows of any origin: a grid of the search, or the distinct strategies of one plan.

    What every operator of a layer asks for again is computed once, so that there are no slots.
    """

    tp: Int[np.ndarray, "rows"]
    sp: Bool[np.ndarray, "rows"]
    tp_overlap: Int[np.ndarray, "rows"]
    """Index into OVERLAPS."""
    context: Int[np.ndarray, "rows kinds"]
    """Degree of each kind of `CONTEXTS`, innermost first."""
    ep: Int[np.ndarray, "rows"]
    etp: Int[np.ndarray, "rows"]
    mbs: Int[np.ndarray, "rows"] | Float[np.ndarray, "rows"]
    """Sequences per micro-batch; a fraction for a section that a schedule cuts it into. Such sections do equal work."""
    capacity: Float[np.ndarray, "rows"]
    """Capacity factor, NaN where no token is dropped."""
    ep_chunks: Int[np.ndarray, "rows"]
    """Pieces in which dispatch, experts and combine are pipelined."""
    offload_weights: Float[np.ndarray, "rows"]
    """Part of a layer's weights that a rank fetches from its host whenever it computes with them."""
    offload_activations: Float[np.ndarray, "rows"]
    seq_len: int
    imbalance: float
    """Tokens of the fullest expert rank over the mean, where `load` does not say it."""
    tensor: str = "1d"
    """Tensor strategy of all rows, by its name in `TENSORS`."""
    dispatcher: Int[np.ndarray, "rows"] | None = None
    """`dispatcher_code` of each row; None where every row exchanges all copies of its tokens."""
    ep_overlap: Int[np.ndarray, "rows"] | None = None
    """Index into EXPERT_OVERLAPS, or BEST_OVERLAP; None where nothing runs beside any exchange."""
    weights_on_disk: Bool[np.ndarray, "rows"] | None = None
    """Weights that are away are on disks, not in host memory; None where no row's are."""
    data_ranks: Int[np.ndarray, "rows"] | None = None
    """Ranks that wait for the one with most attended pairs; None where all rows of a step are alike."""
    load: ExpertLoad | None = None
    """How tokens spread over experts; None where `imbalance` says it."""
    shadowed: Int[np.ndarray, "rows"] | None = None
    """Hottest experts of each layer that every expert rank holds; None where no row has any."""
    placed: Bool[np.ndarray, "rows"] | None = None
    """Experts are placed by load instead of in blocks; None where no row's are."""
    whole_tokens: Bool[np.ndarray, "rows"] | None = None
    """Tensor ranks that hold the same tokens send each its part of them alone; None where no row's do."""
    leaving: Float[np.ndarray, "rows"] | None = None
    """Largest share of tokens that leave the innermost domain, 1 for any; None where no row states one."""
    stashed: Bool[np.ndarray, "rows"] | None = None
    """What exchanges brought is kept for backward; None where no row's is."""
    prioritised: Bool[np.ndarray, "rows"] | None = None
    """Exchanges go before gradients that share their links; None where no row's do."""
    compression: Compressions | None = None
    """How gradients are made small, as plans write it; None where no row's are."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tp)

    @cached_property
    def cp(self) -> Int[np.ndarray, "rows"]:
        """Context degree over all levels."""
        return ranks_of(self.context)

    @cached_property
    def tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens of one micro-batch on one context rank: mbs * seq / cp."""
        return self.mbs * self.seq_len / self.cp

    @cached_property
    def sequence_tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens in the sequence region: cut by tp with sequence parallelism."""
        return self.tokens / np.where(self.sp, self.tp, 1)

    @cached_property
    def rings(self) -> HiddenShares:
        """Hidden shares of collectives that go piece by piece beside a product, on rows of rings."""
        return self._hidden(self.tp_overlap == OVERLAPS.index("ring"))

    @cached_property
    def overlapped(self) -> HiddenShares:
        """Hidden shares of collectives beside a product that does not need them, on rows with any overlap."""
        return self._hidden(self.tp_overlap != OVERLAPS.index("none"))

    @cached_property
    def halved(self) -> Bool[np.ndarray, "rows"] | None:
        """Rows whose layers compute micro-batches in halves, None where none do."""
        found = (self.tp_overlap == OVERLAPS.index("halves")) & (self.tp > 1)
        return found if found.any() else None

    def _hidden(self, where: Bool[np.ndarray, "rows"]) -> HiddenShares:
        """A ring exposes one of tp pieces."""
        first_piece = np.where(self.tp_overlap == OVERLAPS.index("ring"), 1.0 / self.tp, 0.0)
        return HiddenShares(compute=where.astype(float), exposed=np.where(where, first_piece, 1.0))

    @property
    def boundary_tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens a rank sends to the next stage: tensor ranks hold the same or their part, and each sends its part.

        Source: Narayanan et al. 2021, section 4.1 (scatter/gather).
        """
        return self.tokens / self.tp

    def at(self, tokens: StreamTokens | None) -> StrategyColumns:
        """The same strategies on the tokens of another stream; on the text's for None.

        Sequences that context ranks share out whole, such as images, lie on each rank undivided: the fullest one holds
        ceil(sequences / cp) of them, and all ranks the same one where there are fewer than ranks.
        """
        if tokens is None:
            return self
        sequences = self.mbs * tokens.sequences
        if not tokens.whole:
            return replace(self, mbs=sequences, seq_len=tokens.length, data_ranks=None)
        fullest = np.where(sequences > 1, np.ceil(sequences / self.cp), sequences)
        alone = np.ones_like(self.context)
        return replace(self, mbs=fullest, seq_len=tokens.length, context=alone, data_ranks=None)

    def of_experts(self, experts: int) -> StrategyColumns:
        """The same strategies on layers with so many experts, whose load may differ from that of others.

        Args:
            experts: the number of experts of these layers, 0 for none.
        """
        own = None if self.load is None or not experts else self.load.over(experts)
        return self if own is self.load or own is None else replace(self, load=own)

    @property
    def routed_tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens that a rank sends to experts: those of its sequence region, its part where tensor ranks hold the same.

        Source: Singh et al. 2023 (DeepSpeed-TED, arXiv 2303.06318), section 5.1 (duplicate token dropping).
        """
        if self.whole_tokens is None:
            return self.sequence_tokens
        return self.sequence_tokens / np.where(self.whole_tokens & ~self.sp, self.tp, 1)

    def local_experts(self, experts: int) -> Float[np.ndarray, "rows"]:
        """Experts that a rank keeps and updates, whichever it computes: E / ep, one at least.

        Args:
            experts: E, of a layer.
        """
        return np.maximum(experts / self.ep, 1.0)

    def received(self, top_k: float) -> Float[np.ndarray, "rows"]:
        """Token copies at the fullest rank's experts: T k times imbalance, or capacity's padding, times etp.

        With capacity c every expert computes c times its balanced share whatever it gets. Where experts move to the
        tokens, a rank computes its own tokens, and none is fuller.
        """
        return self._at_experts(top_k, arriving=False)

    def exchanged(self, top_k: float) -> Float[np.ndarray, "rows"]:
        """Token copies that reach the fullest rank over the network: received ones, less those of shadowed experts."""
        return self._at_experts(top_k, arriving=True)

    def fullest_ranks(
        self, top_k: float
    ) -> tuple[Float[np.ndarray, "rows"] | float, Float[np.ndarray, "rows"] | float]:
        """Token copies that reach the fullest rank over the network, and that it computes, over the mean of all ranks.

        Args:
            top_k: experts of a token.
        """
        if self.load is None:
            # No rank can hold more than the tokens of all.
            full = 1.0 if self.imbalance == 1 else np.minimum(self.imbalance, self.ep)
            return full, full
        from meshwright.strategies.crowding import crowding_of  # few jobs state one

        pairs = self.routed_tokens * top_k * self.etp
        return crowding_of(self.load).rows(self.ep, pairs * self.ep, self.shadowed, self.placed)

    def _at_experts(self, top_k: float, *, arriving: bool) -> Float[np.ndarray, "rows"]:
        pairs = self.routed_tokens * top_k * self.etp
        full = self.fullest_ranks(top_k)[0 if arriving else 1]
        load = np.where(np.isnan(self.capacity), full, self.capacity)
        moved = self.dispatches("moves")
        return pairs * (load if moved is None else np.where(moved, 1.0, load))

    def dispatches(self, trait: Trait) -> Bool[np.ndarray, "rows"] | None:
        """Rows whose dispatcher has this trait, None where no row's has."""
        return self._dispatched(codes_with(trait))

    @property
    def sends_otherwise(self) -> Bool[np.ndarray, "rows"] | None:
        """Rows whose tokens go to experts by no all-to-all of `routing`, None where all do."""
        return self._dispatched(codes_with("sends_otherwise"))

    def dispatches_as(self, name: str) -> Bool[np.ndarray, "rows"] | None:
        """Rows with this dispatcher, None where no row has it."""
        return self._dispatched((dispatcher_code(name),))

    def _dispatched(self, codes: tuple[int, ...]) -> Bool[np.ndarray, "rows"] | None:
        if self.dispatcher is None:
            return None
        if codes not in self._with_codes:
            found = np.isin(self.dispatcher, codes)
            self._with_codes[codes] = found if found.any() else None
        return self._with_codes[codes]

    @cached_property
    def _with_codes(self) -> dict[tuple[int, ...], Bool[np.ndarray, "rows"] | None]:
        """Rows with one of several dispatchers, by their codes: every exchange of a layer asks for the same."""
        return {}

    def overlaps(self, *how: ExpertOverlap) -> Bool[np.ndarray, "rows"] | None:
        """Rows whose exchanges overlap in one of these ways, None where none do."""
        found = (
            None if self.ep_overlap is None else np.isin(self.ep_overlap, [EXPERT_OVERLAPS.index(one) for one in how])
        )
        return None if found is None or not found.any() else found

    def take(self, index: Int[np.ndarray, "picked"]) -> StrategyColumns:
        """The rows of this index."""
        columns = {
            f.name: value[index]
            for f in fields(self)
            if f.name not in ("seq_len", "imbalance", "tensor", "load") and (value := getattr(self, f.name)) is not None
        }
        return replace(self, **columns)


def ranks_of(context: Int[np.ndarray, "rows kinds"]) -> Int[np.ndarray, "rows"]:
    """Product of degrees by kind; column by column, for numpy is slow along short rows."""
    return reduce(np.multiply, context.T)


def local_units(units: int, degree: Int[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    """Units such as heads on one of `degree` ranks: their share, at least one where more ranks than units share it."""
    return np.maximum(np.ceil(units / degree), 1.0)


def local_width(parts: tuple[tuple[int, int], ...], degree: Int[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    """Width of a tensor of (units, width) parts on one of `degree` ranks."""
    width = np.zeros(len(degree))
    for units, unit_width in parts:
        width = width + local_units(units, degree) * unit_width
    return width


def full_width(parts: tuple[tuple[int, int], ...]) -> float:
    """Width of the whole tensor."""
    return float(sum(units * width for units, width in parts))


def region_scale(region: Region, columns: StrategyColumns, top_k: float) -> Float[np.ndarray, "rows"]:
    """What multiplies a tensor's elements per token to give its elements on one rank.

    Args:
        region: how tensor parallelism cuts the tensor (see ops.op).
        columns: strategies, one per row.
        top_k: experts a token visits, for the expert regions.

    Returns:
        Tokens times the share of the width, per row.
    """
    if region == "sequence":
        return columns.sequence_tokens
    if region == "tensor":
        return columns.tokens / columns.tp
    received = columns.received(top_k)
    return received if region == "expert-in" else received / columns.etp
