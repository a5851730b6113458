"""What every strategy speaks: columns of degrees in, local operators and collectives out.

A strategy rewrites an operator of the whole layer into what one device does (`LocalGemm`, `LocalAttention`) and the
collectives around it (`Call`). It knows sizes, never seconds. `TensorStrategy` and `ContextStrategy` are what a file
of this folder implements; the catalogues in `__init__` list them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from meshwright.shapes import Bool, Float, Int
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Region, StreamTokens, Vector
from meshwright.specs.strategy import DISPATCHERS, EXPERT_OVERLAPS, Dispatcher, ExpertOverlap, TensorOverlap

if TYPE_CHECKING:
    from meshwright.kernels.exchange import Routing
    from meshwright.strategies.blocks import TensorBlocks

Column = Float[np.ndarray, "rows"] | Int[np.ndarray, "rows"] | float
"""A number per row, or one for all rows."""

Compressions = np.ndarray
"""Words, one per row, such as `powersgd4`, empty for gradients as they are."""

Phase = Literal["forward", "input_gradient", "weight_gradient"]
Category = Literal["tp", "cp", "ep"]
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send"]

OVERLAPS: tuple[TensorOverlap, ...] = ("none", "bulk", "ring")
"""Codes of `StrategyColumns.tp_overlap`."""

BEST_OVERLAP = len(EXPERT_OVERLAPS)
"""Code of `StrategyColumns.ep_overlap`: as little of exchanges exposed as any compute could leave, for bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyColumns:
    """One strategy per row. Rows of any origin: a grid of the search, or the distinct strategies of one plan."""

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
    """Index into DISPATCHERS; None where every row exchanges all copies of its tokens."""
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
    compression: Compressions | None = None
    """How gradients are made small, as plans write it; None where no row's are."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tp)

    @property
    def cp(self) -> Int[np.ndarray, "rows"]:
        """Context degree over all levels."""
        return ranks_of(self.context)

    @property
    def tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens of one micro-batch on one context rank: mbs * seq / cp."""
        return self.mbs * self.seq_len / self.cp

    @property
    def sequence_tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens in the sequence region: cut by tp with sequence parallelism."""
        return self.tokens / np.where(self.sp, self.tp, 1)

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

    @property
    def routed_tokens(self) -> Float[np.ndarray, "rows"]:
        """Tokens that a rank sends to experts: those of its sequence region, its part where tensor ranks hold the same.

        Source: Singh et al. 2023 (DeepSpeed-TED, arXiv 2303.06318), section 5.1 (duplicate token dropping).
        """
        if self.whole_tokens is None:
            return self.sequence_tokens
        return self.sequence_tokens / np.where(self.whole_tokens & ~self.sp, self.tp, 1)

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
        moved = self.dispatches("move-experts")
        return pairs * (load if moved is None else np.where(moved, 1.0, load))

    def dispatches(self, how: Dispatcher) -> Bool[np.ndarray, "rows"] | None:
        """Rows with this dispatcher, None where no row has it."""
        code = DISPATCHERS.index(how)
        found = None if self.dispatcher is None else self.dispatcher == code
        return None if found is None or not found.any() else found

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective of one phase."""

    kind: Kind
    category: Category
    phase: Literal["forward", "backward"]
    group: str
    """Name of a communication group: `ep`, `etp`, one of the tensor strategy, or `cp_` and a kind of context."""
    payload_bytes: Column
    """S of kernels.collectives, per row."""
    once: Bool[np.ndarray, "rows"] | None = None
    """Rows of an all-to-all of tokens in which one copy of a token enters a domain, and there a rank."""
    routing: Routing | None = None
    """How the copies of a token are spread, where some rows send one."""
    by_level: Bool[np.ndarray, "rows"] | None = None
    """Rows of an all-to-all that goes level by level, first inside domains; None where no row's must."""
    leaving: Column | None = None
    """Largest share of an all-to-all that leaves the innermost domain; None where none is stated."""
    repeats: Column = 1.0
    beside: Phase | None = None
    """The compute of the same operator that may hide it; None exposes it."""
    beside_share: Column = 1.0
    """Part of that compute that is there to hide it."""
    head_share: Column = 0.0
    """Part of the communication that starts before or ends after that compute and stays exposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGemm:
    """A matrix product on one device, [m, k] by [k, n], `groups` times; backward follows from the sizes."""

    m: Column
    n: Column
    k: Column
    groups: Column
    parameters: Column
    expert: bool
    replicated: Column = 0.0
    """Of the parameters: whole on every tensor rank, each with the gradient of its own tokens, to be summed."""
    fetched: Column = 0.0
    """Weights of other ranks that are here while it computes."""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttention:
    """Core attention on one device."""

    batch: Column
    heads: Column
    kv_heads: Column
    query_len: Column
    key_len: Column
    pairs: Column
    """Attended pairs of one sequence and head that fall to this rank."""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScores:
    """Scores that pick keys, on one device."""

    pairs: Column
    """Of all its sequences; each is scored by every head."""
    picked_pairs: Column
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScan:
    """A recurrence on one device."""

    tokens: Column
    heads: Column
    calls: tuple[Call, ...] = ()


Degrees = Mapping[str, Int[np.ndarray, "rows"]]
"""Columns tp, sp, cp, cp_heads, pp, vpp, ep, etp, dp, mbs of equal length. `cp_heads`: ranks among which the levels of
context that exchange heads for sequence share heads."""


@dataclass(frozen=True, slots=True)
class DegreeRule:
    """One constraint between degrees and a model."""

    name: str
    holds: Callable[[Degrees], Bool[np.ndarray, "rows"]]
    why: str
    fix: str
    field: str
    nearest: Callable[[Mapping[str, int]], str] | None = None
    """The remedy for the degrees of one row, where it depends on them; `fix` elsewhere."""


Group = tuple[Int[np.ndarray, "rows"], Int[np.ndarray, "rows"]]
"""Stride between the ranks of a communication group, and their number."""


class TensorStrategy(ABC):
    """A way to cut the operators of a layer over the ranks of a tensor group."""

    name: ClassVar[str]
    """In plans: `tp4-NAME`, and `--pin tensor=NAME`."""
    summary: ClassVar[str]
    """One line of help."""
    overlaps: ClassVar[tuple[TensorOverlap, ...]] = ("bulk",)
    """Values of the axis tp_overlap."""
    runs: ClassVar[bool] = False
    """Whether the compiler splits programs this way."""

    @abstractmethod
    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """A dense linear operator on one rank, with its collectives; `activation_bytes` per element sent."""

    @abstractmethod
    def vector_calls(self, op: Vector, columns: StrategyColumns, activation_bytes: float) -> tuple[Call, ...]:
        """The collectives of a memory-bound operator."""

    @abstractmethod
    def groups(self, columns: StrategyColumns) -> dict[str, Group]:
        """The communication groups that its calls name."""

    def head_ranks(self, tp: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """Ranks among which attention heads are shared; the others of a tensor group share sequences."""
        return tp

    def weight_ranks(self, tp: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """Ranks that share tables and cut vectors of weights; groups of them hold the same."""
        return tp

    def kept_beside(self, op: Linear, columns: StrategyColumns) -> Float[np.ndarray, "rows"] | None:
        """Elements that a product keeps from forward to backward beyond a rank's own input; None where none."""
        return None

    def blocks(self, tp: int) -> TensorBlocks | None:
        """How ranks hold the operands of products, from which the runtime writes them; None where nothing runs them."""
        return None

    def rules(self, model: ModelSpec, seq_len: int) -> tuple[DegreeRule, ...]:
        """What a model and a sequence length ask of the degrees beyond what holds for every strategy."""
        return ()


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of an element that crosses the network."""

    weights: float = 0.0
    gradients: float = 0.0


class ExpertMethod(ABC):
    """A way in which weights of experts come to ranks that do not own them."""

    holds: ClassVar[bool] = False
    """Whether what came stays on the device until backward."""

    @abstractmethod
    def visitors(self, op: Linear, columns: StrategyColumns) -> Float[np.ndarray, "rows"] | None:
        """Experts of others that a rank computes; None where no row has any."""

    @abstractmethod
    def calls(self, op: Linear, columns: StrategyColumns, one: Column, formats: WeightBytes) -> tuple[Call, ...]:
        """The collectives of one matrix, of `one` elements per expert, forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlock:
    """The state of a recurrence at the end of one rank's tokens, of which context parallelism makes calls."""

    state_bytes: Column
    """Of the sequences and heads of one rank."""
    heads_bytes: Column
    """Inputs and outputs of the rank's own tokens, of all heads of its tensor rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Keys and values of one rank, of which context parallelism makes calls."""

    tokens_bytes: Column
    """Keys and values of the tokens that one rank of the level holds, of the heads it computes."""
    backward_bytes: Column
    """Of them what is summed over the ranks in backward: their gradients, and they again where they are sent again."""
    heads_bytes: Column
    """Queries, keys, values and outputs of the rank's own tokens, of all heads of its tensor rank."""


class ContextStrategy(ABC):
    """A way in which attention sees the whole of a sequence whose tokens are spread over ranks."""

    name: ClassVar[str]
    """In plans: `cp4-NAME`, and `--pin cp_kind=NAME`."""
    summary: ClassVar[str]
    swaps_heads: ClassVar[bool] = False
    """Each rank computes whole sequences of fewer heads."""
    gathers: ClassVar[bool] = False
    """A rank holds the keys and values of all ranks at once."""
    runs: ClassVar[bool] = False
    """Whether the runtime has its attention."""

    @abstractmethod
    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """The collectives around core attention, forward and backward, of no bytes where `degree` is 1."""

    def state_calls(self, block: StateBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """The collectives around a recurrence: its state goes from rank to rank in the order of the sequence.

        Rank r holds pieces r and 2 C - 1 - r of the sequence, so that a state makes 2 (C - 1) hops, its gradient as
        many; nothing hides them. Source: Sun et al. 2024 (LASP, arXiv 2404.02882), section 3.
        """
        sent, hops = block.state_bytes * (degree > 1), 2.0 * (degree - 1)
        return tuple(
            Call(kind="send", category="cp", phase=phase, group=f"cp_{self.name}", payload_bytes=sent, repeats=hops)
            for phase in ("forward", "backward")
        )


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
