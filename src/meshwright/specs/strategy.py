"""Who computes a layer: one tagged record per run of layers.

Each family (tensor, context, expert, data, recompute, offload) is an object of its own; a method of the literature is a
choice of their fields. What a field costs is said in `strategies`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from meshwright.specs.check import BY_KIND, Check, HashedOnce, hashed_once
from meshwright.specs.dispatchers import ALLTOALL, DISPATCHERS
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.precision import Precision

TensorOverlap = Literal["none", "bulk", "ring", "halves"]
ExpertOverlap = Literal["none", "shared", "paired", "paired-wgrad"]
Averaging = Literal["synchronous", "elastic", "local", "diloco"]


EXPERT_OVERLAPS: tuple[ExpertOverlap, ...] = get_args(ExpertOverlap)
AVERAGINGS: tuple[Averaging, ...] = get_args(Averaging)
TENSOR_OVERLAPS: dict[TensorOverlap, str] = {"ring": "tpov", "halves": "tpov-halves"}
"""Overlaps of tensor collectives as plans write them; others are the default, or stand in plan files alone."""
STRIPED: Literal["striped"] = "striped"
"""A ring whose ranks have every so many-th token."""
COLLECTIVE = "collective"
"""How weights and gradients of most plans get to other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor1D:
    """Column- then row-split matrices (Megatron-LM), optionally with sequence parallelism."""

    kind: Literal["1d"] = "1d"
    degree: int = 1
    sequence_parallel: bool = True
    """Norms and residual stream sharded along the sequence; without effect at degree 1."""
    overlap: TensorOverlap = "bulk"
    """`bulk`: backward collectives hide behind the other gradient's GEMM, as Megatron-LM does unasked; `ring`: forward
    and backward collectives cut in chunks and run beside the GEMM they feed; `halves`: collectives of one half of a
    micro-batch run beside the layer's work on the other (Domino); `none`: all exposed."""

    def __post_init__(self) -> None:
        check = Check("tensor 1d")
        check.whole("degree", self.degree)
        check.done()

    @property
    def name(self) -> str:
        """Name of the strategy in the catalogue."""
        return "1d"

    @property
    def shards_sequence(self) -> bool:
        """Whether ranks of a group share the tokens of the residual stream."""
        return self.sequence_parallel and self.degree > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNamed:
    """A tensor strategy of the catalogue (`strategies.TENSORS`), with its parameters."""

    kind: Literal["named"] = "named"
    name: str
    degree: int
    """Devices of one tensor group."""
    parameters: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check = Check(f"tensor {self.name}")
        check.whole("degree", self.degree)
        check.done()

    @property
    def shards_sequence(self) -> bool:
        """Every rank of a group has tokens, or parts of them, of its own."""
        return self.degree > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPerOperator:
    """Every operator sharded its own way on a logical mesh, kept in a table elsewhere (Alpa, nnScaler)."""

    kind: Literal["per-operator"] = "per-operator"
    mesh: tuple[int, ...]
    reference: str
    """Content hash or file of the sharding table."""

    @property
    def degree(self) -> int:
        """Devices of the logical mesh."""
        return math.prod(self.mesh)

    @property
    def name(self) -> str:
        """Name of the strategy."""
        return self.kind

    @property
    def shards_sequence(self) -> bool:
        """True for more than one rank: how each operator shards is in the table, which is not read here."""
        return self.degree > 1


Tensor = Tensor1D | TensorNamed | TensorPerOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallel:
    """One level of context parallelism, innermost first: `(a2a, 2), (p2p, 4)` is the hierarchical form."""

    kind: str
    """Name in the catalogue (`strategies.CONTEXTS`): `p2p` ring of keys and values, `a2a` heads for sequence (Ulysses),
    `ag` gathered keys and values, `burst` ring of queries in backward, `tree` gathered queries."""
    degree: int
    layout: Literal["zigzag", "striped", "contiguous"] = "zigzag"
    """Tokens of each rank: two pieces, one from either end; every so many-th one; or one piece."""

    @classmethod
    def of(cls, name: str, degree: int) -> ContextParallel:
        """The level of a name in the catalogue, where a ring in stripes has one of its own."""
        return cls(kind="p2p", degree=degree, layout=STRIPED) if name == STRIPED else cls(kind=name, degree=degree)

    @property
    def name(self) -> str:
        """Name in the catalogue and in the one-line form of plans."""
        return STRIPED if (self.kind, self.layout) == ("p2p", STRIPED) else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallel:
    """Who holds the experts and how tokens reach them; folds over tensor, context and data ranks."""

    ep: int = 1
    etp: int = 1
    """Tensor degree inside an expert."""
    dispatcher: str = ALLTOALL
    """How tokens and experts meet: a name of `specs.dispatchers`."""
    capacity_factor: float | None = None
    """None drops no token."""
    expert_shards: int = 1
    """Expert-data shards the experts' own parameters are gathered from (Tutel's r = 0, FSDP experts)."""
    overlap_degree: int = 1
    """Chunks in which dispatch, experts and combine are pipelined."""
    overlap: ExpertOverlap = "none"
    """`shared`: exchanges run beside the shared experts; `paired`: a forward and the backward of another micro-batch
    run together, each beside the exchanges of the other (combined 1F1B, DualPipe); `paired-wgrad`: likewise, with
    gradients of weights put off until an exchange has nothing else beside it."""
    shadowed: int = 0
    """Hottest experts of each layer that are copied to every rank (FasterMoE)."""
    placement: tuple[int, ...] = ()
    """Rank of each expert, the same in all layers; empty for blocks in order."""
    placed_by_load: bool = False
    """Whether in each layer the most loaded expert goes first, to the least loaded rank with a free slot (SmartMoE)."""
    drop_duplicates: bool = False
    """Drop the copies tensor ranks hold before dispatch (DeepSpeed-TED)."""
    stash_collectives: bool = False
    """Keep dispatched tokens so that recompute repeats no exchange (DeepSpeed-TED)."""
    prioritised: bool = False
    """Exchanges cut in micro-operations that go before gradient traffic (Lina)."""
    locality: float | None = None
    """Largest share of tokens that may leave the innermost domain; changes routing (FasterMoE)."""

    def __post_init__(self) -> None:
        check = Check("expert")
        check.all_whole(self, "ep", "etp", "overlap_degree", "expert_shards")
        check.one_of("overlap", self.overlap, EXPERT_OVERLAPS)
        check.one_of("dispatcher", self.dispatcher, tuple(DISPATCHERS))
        check.whole("shadowed", self.shadowed, 0)
        if self.locality is not None and check.positive("locality", self.locality):
            check.that(self.locality <= 1, "locality", self.locality, "is a share of the tokens, at most 1")
        if self.capacity_factor is not None:
            check.positive("capacity_factor", self.capacity_factor)
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Replicas of the layer and what they shard between them (over data x context ranks)."""

    replicate: int = 1
    """Groups that hold the same shards."""
    shard: int = 1
    """Ranks one copy of the sharded states is spread over; replicate x shard = dp."""
    zero: int = 0
    """What is sharded: 0 nothing, 1 optimizer, 2 + gradients, 3 + weights."""
    family: Literal["zero", "fsdp"] = "zero"
    """`fsdp` keeps the fp32 shard itself as the main copy."""
    reshard: bool = True
    """Free gathered weights after forward (zero 3 only)."""
    overlap: bool = True
    gather_dtype: str | None = None
    """Format in which weights cross the network; None for the precision's weights (ZeRO++ qwZ: int8)."""
    reduce_dtype: str | None = None
    """Format in which gradients cross; None for the precision's (ZeRO++ qgZ: int4)."""
    prefetch: int = 1
    """Layers whose weights are gathered ahead of the one at work, where they are gathered layer by layer."""
    secondary_shard: int = 0
    """Ranks of a second weight copy for backward (ZeRO++ hpZ); 0 for none."""
    compression: str = ""
    """How gradients are made small before replicas sum them: a name of `strategies.COMPRESSIONS` and its setting, such
    as `powersgd4`; empty for gradients as they are."""
    averaging: Averaging = "synchronous"
    """`local`: replicas take steps of their own and are averaged after `averaging_steps` of them (local SGD); `diloco`:
    the mean of their ways is the gradient of an outer optimizer with momentum; `elastic`: replicas drift and are pulled
    to a reference copy (AvgPipe)."""
    averaging_steps: int = 1
    """Optimizer steps from one averaging to the next; 1 where every step sums gradients."""
    passing: str = COLLECTIVE
    """How weights and gradients get to other ranks, else a name of `strategies.PASSINGS`: `ring` passes whole layers
    from neighbour to neighbour while each rank runs another one (WeiPipe; zero 3 only)."""
    across: int = 0
    """Ranks of all pipelines together that hold one copy of the sharded states, each pipeline with its own share of the
    batch (ZeRO over unlike devices: Poplar, Cephalo); 0 where every pipeline holds its own."""

    def __post_init__(self) -> None:
        check = Check("data")
        check.whole("across", self.across, 0)
        check.whole("replicate", self.replicate)
        check.whole("shard", self.shard)
        check.one_of("zero", str(self.zero), ("0", "1", "2", "3"))
        for role in ("gather_dtype", "reduce_dtype"):
            check.one_of(role, getattr(self, role), (None, *DTYPE_BYTES))
        check.one_of("averaging", self.averaging, AVERAGINGS)
        check.whole("averaging_steps", self.averaging_steps)
        check.whole("secondary_shard", self.secondary_shard, 0)
        check.whole("prefetch", self.prefetch, 0)
        check.done()

    @property
    def sends_otherwise(self) -> bool:
        """Whether ranks send each other something else than whole gradients and weights, in another format, or at other
        times."""
        other = self.compression or self.averaging != "synchronous" or self.averaging_steps != 1 or self.secondary_shard
        return bool(other or self.gather_dtype or self.reduce_dtype or self.prefetch != 1)

    @property
    def degree(self) -> int:
        """Data-parallel degree."""
        return self.replicate * self.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What backward computes again."""

    kind: Literal["none", "selective", "full", "grouped", "optimal"] = "none"
    """`selective` repeats the named modules, `full` the layer from its input, `grouped` runs of `group` layers from one
    kept input, `optimal` follows a table (Checkmate)."""
    modules: tuple[str, ...] = ()
    """Modules that `selective` repeats: core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, shared_experts; or
    half_products alone: everything but attention, exchanges and every second product."""
    group: int = 1
    reference: str = ""

    def __post_init__(self) -> None:
        check = Check("recompute")
        known = RECOMPUTE_MODULES
        for module in self.modules:
            check.one_of("modules", module, known)
        alone = HALF_PRODUCTS not in self.modules or len(self.modules) == 1
        check.that(
            alone, "modules", self.modules, f"{HALF_PRODUCTS} repeats parts of all modules, so it cannot be combined"
        )
        check.whole("group", self.group)
        check.done()


HALF_PRODUCTS = "half_products"
LAST_PRODUCT = "last product"
"""Module of operators of a layer that full recompute leaves out under some frameworks."""
"""Everything of a layer but attention, exchanges and every second product, as torchtitan's selective recompute."""
RECOMPUTE_MODULES = (
    *("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"),
    HALF_PRODUCTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares of each kind of state that live outside device memory between uses."""

    weights: float = 0.0
    activations: float = 0.0
    optimizer: float = 0.0
    gradients: float = 0.0
    """Sent to the optimizer on the host as backward makes them, so that the device keeps a bucket (ZeRO-Offload)."""
    tier: Literal["host", "nvme"] = "host"
    """Where weights and optimizer states live: the host's memory, or its disks (ZeRO-Infinity). Activations and
    gradients are in its memory either way."""
    delayed_update: bool = False
    """The optimizer on the host runs one step behind (ZeRO-Offload DPU)."""

    def __post_init__(self) -> None:
        check = Check("offload")
        for name in OFFLOADED:
            value = getattr(self, name)
            if check.positive(name, value, zero=True):
                check.that(value <= 1, name, value, "is a share and cannot exceed 1")
        check.that(
            self.gradients <= self.optimizer,
            "gradients",
            self.gradients,
            f"leave for the optimizer on the host, which updates {self.optimizer:g} of the parameters",
        )
        moved = self.optimizer + self.weights
        check.that(
            self.tier == "host" or moved > 0, "tier", self.tier, "holds weights or optimizer states, and none are moved"
        )
        check.that(
            not self.delayed_update or self.optimizer > 0,
            "delayed_update",
            self.delayed_update,
            "is of an optimizer on the host, and none is moved",
        )
        check.done()


OFFLOADED = ("weights", "activations", "optimizer", "gradients")
"""What may leave the device, in the order of the letters of `off-waog`."""


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStrategy(HashedOnce):
    """How one run of layers is spread over the devices of its worker."""

    tensor: Annotated[Tensor, BY_KIND] = Tensor1D()
    context: tuple[ContextParallel, ...] = ()
    expert: ExpertParallel = ExpertParallel()
    data: DataParallel = DataParallel()
    recompute: Recompute = Recompute()
    offload: Offload = Offload()
    precision: Precision | None = None
    """None for the workload's."""
    optimizer_tile: int = 0
    """Parameters updated at a time, 0 for all (DeepSpeed-TED)."""

    @property
    def tp(self) -> int:
        """Tensor degree."""
        return self.tensor.degree

    @property
    def cp(self) -> int:
        """Context degree."""
        return math.prod(level.degree for level in self.context)

    @property
    def dp(self) -> int:
        """Data degree."""
        return self.data.degree

    @property
    def devices(self) -> int:
        """Devices a worker with this strategy has: tp x cp x dp."""
        return self.tp * self.cp * self.dp
