"""What every strategy speaks: columns of degrees in, local operators and collectives out.

A strategy rewrites an operator of the whole layer into what one device does (`LocalGemm`, `LocalAttention`) and the
collectives around it (`Call`). It knows sizes, never seconds. `TensorStrategy` and `ContextStrategy` are what a file
of this folder implements, and `WeightPassing` for data ranks; the catalogues in `__init__` list them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from meshwright.errors import Problem
from meshwright.shapes import Array, Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Exchange, Linear, Vector
from meshwright.specs.strategy import LayerStrategy, TensorOverlap
from meshwright.strategies.columns import Column, StrategyColumns

if TYPE_CHECKING:
    from meshwright.kernels.exchange import Routing
    from meshwright.strategies.blocks import TensorBlocks


Phase = Literal["forward", "input_gradient", "weight_gradient"]
Category = Literal["tp", "cp", "ep"]
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send"]


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
    """Share of the parameters that is whole on every tensor rank, each with a gradient of its own, of its tokens or
    its heads, to be summed."""
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
    """Pairs of all its sequences; each is scored by every head."""
    picked_pairs: Column
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScan:
    """A recurrence on one device."""

    tokens: Column
    heads: Column
    calls: tuple[Call, ...] = ()


Degrees = Mapping[str, Int[np.ndarray, "rows"]]
"""Columns tp, sp, cp, cp_heads, cp_halves, pp, vpp, ep, etp, dp, mbs of equal length. `cp_heads`: ranks among which the
levels of context that exchange heads for sequence share heads. `cp_halves`: ranks that hold a sequence in zigzag
halves."""


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
    """Name in plans, `tp4-NAME`, and in `--pin tensor=NAME`."""
    summary: ClassVar[str]
    """One line of help."""
    overlaps: ClassVar[tuple[TensorOverlap, ...]] = ("bulk",)
    """Values of the axis tp_overlap."""
    seldom: ClassVar[tuple[TensorOverlap, ...]] = ()
    """Values among these that a search tries only where they are named."""
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

    def written(self, tp: int, *, shares_tokens: bool, key_ranks: int) -> TensorBlocks | None:
        """How ranks hold operands whose collectives a model writes itself, where it can; None where none can.

        Args:
            tp: the ranks of a group.
            shares_tokens: whether ranks share the tokens of the stream.
            key_ranks: the ranks over which heads of keys and values are split; others hold the same.
        """
        return self.blocks(tp)

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


class TokenTraffic(ABC):
    """What a dispatcher sends instead of one all-to-all of every copy of a token, or instead of it with its traits."""

    name: ClassVar[str]
    """Name in `Dispatcher.traffic`."""

    @abstractmethod
    def calls(
        self,
        op: Exchange,
        columns: StrategyColumns,
        copies: float,
        forward_bytes: float,
        backward_bytes: float,
    ) -> tuple[Call, ...]:
        """The collectives of one exchange, forward and backward, of all rows; those of other dispatchers are left out.

        Args:
            op: tokens to experts, or back.
            columns: strategies, one per row.
            copies: the copies of a token that leave a rank, were every one sent.
            forward_bytes: the forward bytes of an element forward.
            backward_bytes: the backward bytes of an element of its gradient.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlock:
    """The state of a recurrence at the end of one rank's tokens, of which context parallelism makes calls."""

    state_bytes: Column
    """Bytes of the state of the sequences and heads of one rank."""
    heads_bytes: Column
    """Inputs and outputs of the rank's own tokens, of all heads of its tensor rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Keys and values of one rank, of which context parallelism makes calls."""

    tokens_bytes: Column
    """Keys and values of the tokens that one rank of the level holds, of the heads it computes."""
    backward_bytes: Column
    """Bytes that are summed over the ranks in backward: gradients of keys and values, and these again where they are
    sent again."""
    heads_bytes: Column
    """Queries, keys, values and outputs of the rank's own tokens, of all heads of its tensor rank."""
    queries_bytes: Column
    """Queries of the tokens that one rank of the level holds, of the heads it computes."""
    outputs_bytes: Column
    """Outputs of these queries."""
    sums_bytes: Column
    """One sum of scores for each of these queries and heads, in at least 32 bits."""


class ContextStrategy(ABC):
    """A way in which attention sees the whole of a sequence whose tokens are spread over ranks."""

    name: ClassVar[str]
    """Name in plans, `cp4-NAME`, and in `--pin cp_kind=NAME`."""
    summary: ClassVar[str]
    swaps_heads: ClassVar[bool] = False
    """Each rank computes whole sequences of fewer heads."""
    gathers: ClassVar[bool] = False
    """A rank holds the keys and values of all ranks at once."""
    gathers_queries: ClassVar[bool] = False
    """A rank holds the queries of all ranks at once, and what its keys give them."""
    searched: ClassVar[bool] = True
    """Whether a search tries it unasked."""
    layout: ClassVar[str] = "zigzag"
    """How tokens are dealt to ranks, a name of `strategies.layouts.LAYOUTS`; empty where heads are exchanged for
    tokens."""
    runs: ClassVar[bool] = False
    """Whether the runtime has its attention."""

    @abstractmethod
    def calls(self, block: AttentionBlock, degree: Int[np.ndarray, "rows"]) -> tuple[Call, ...]:
        """The collectives around core attention, forward and backward, of no bytes where `degree` is 1."""

    def fullest(self, length: float, degree: Int[np.ndarray, "rows"]) -> Column:
        """Pairs that a causal mask leaves the fullest rank over the mean, of sequences of `length` tokens."""
        return 1.0

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


class WeightPassing(ABC):
    """A way in which sharded weights and their gradients get to other ranks that is no collective.

    Groups of whole layers go from a rank to its neighbour, a message of weights or gradients each.
    """

    name: ClassVar[str]
    """Name in `DataParallel.passing`."""

    @abstractmethod
    def problems(self, strategy: LayerStrategy, *, layers: int, workers: int, experts: bool) -> Iterator[Problem]:
        """What a strategy and its pipeline say beside it and cannot have.

        Args:
            strategy: the strategy whose weights are passed on.
            layers: the number of layers of the model.
            workers: the number of workers of the pipeline.
            experts: whether some layers have experts.
        """

    @abstractmethod
    def suits(self, degrees: Degrees, *, layers: int, experts: bool) -> Bool[np.ndarray, "rows"]:
        """Rows of degrees that may have it, for which `problems` are none.

        Args:
            degrees: tp, cp, pp, ep, etp and dp.
            layers: the number of layers of the model.
            experts: whether some layers have experts.
        """

    @abstractmethod
    def waits_s(
        self,
        forward_s: Float[np.ndarray, "plans items"],
        backward_s: Float[np.ndarray, "plans items"],
        count: Float[np.ndarray, " items"],
        edges: Bool[np.ndarray, " items"],
        ranks: Float[np.ndarray, " plans"],
        micro_batches: int,
    ) -> Float[np.ndarray, " plans"]:
        """Seconds of a step beyond a rank's own work.

        Args:
            forward_s: the forward seconds of each item, with what exchanges expose.
            backward_s: the backward seconds of each item, with what exchanges expose.
            count: the count of each item on a rank, which has all of them.
            edges: items that are no layers.
            ranks: the ranks that pass weights to each other.
            micro_batches: the number of micro-batches of a rank.
        """

    @abstractmethod
    def travelling_bytes(self, weight_bytes: Array | float, gradient_bytes: Array | float) -> Array:
        """Bytes of a parameter in the groups that are on a rank beside its own.

        Args:
            weight_bytes: the weight bytes of a weight.
            gradient_bytes: the bytes of a gradient on its way.
        """
