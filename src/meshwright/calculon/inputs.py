"""The three inputs of an estimate: the application (a model), the system (hardware) and the execution (a strategy)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from meshwright.shapes import Float, Int

STRUCTURES = ("gpt", "llama")
"""Block structures: gpt has GeLU, LayerNorm and dropout; llama a gated MLP, RMSNorm, rotary embedding, no dropout."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "datatype": ("float8", "float16", "bfloat16", "float32"),
        "attention_type": ("multihead", "multiquery", "grouped", "flash"),
        "activation_recompute": ("full", "attn_only", "none"),
        "tensor_par_comm_type": ("ar", "p2p_rs_ag", "rs_ag"),
        "tensor_par_overlap": ("none", "ring", "pipe"),
    }
)
"""Execution keys that are a choice, with their values; a column holds the position here."""

DATATYPE_BYTES = (1, 2, 2, 4)
"""Bytes of an element, by code of `datatype`."""

MULTIHEAD, MULTIQUERY, GROUPED, FLASH = range(4)
FULL, ATTN_ONLY, NONE = range(3)
AR, P2P_RS_AG, RS_AG = range(3)
NO_OVERLAP, RING, PIPE = range(3)

OPERATIONS = ("p2p", "reduce_scatter", "all_gather", "all_reduce")
"""Operations of a network."""

PROCESSING_MODES = ("no_overlap", "roofline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A transformer as Calculon's application file describes it, with three keys that are ours and optional."""

    name: str = ""
    hidden: int
    feedforward: int
    seq_size: int
    attn_heads: int
    attn_size: int
    """Size of one head; heads times size need not be the hidden size."""
    num_blocks: int
    structure_type: str = "gpt"
    """One of STRUCTURES. Not a key of Calculon's."""
    kv_heads: int | None = None
    """Key and value heads of attention_type grouped, and of flash where given. Not a key of Calculon's."""
    vocab_size: int | None = None
    """Tokens in the vocabulary; none prices no embedding and no head, as Calculon. Not a key of Calculon's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyCurve:
    """A step function of efficiency: of the thresholds at most x, the highest one's efficiency."""

    thresholds: tuple[float, ...]
    """Descending to 0; flop of an operation, or bytes of an access."""
    efficiencies: tuple[float, ...]
    """Share of the peak, in (0, 1], per threshold."""

    def at(self, amount: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Efficiency of operations of this many flop, or accesses of this many bytes."""
        rising = np.asarray(self.thresholds[::-1])
        return np.asarray(self.efficiencies[::-1])[np.searchsorted(rising, amount, side="right") - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A peak rate and the share of it that operations of a size reach."""

    peak: float
    """flop/s of an engine, bytes/s of a memory."""
    curve: EfficiencyCurve

    def time_s(self, amount: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Seconds of operations of these sizes: amount / (peak * efficiency)."""
        return amount / (self.peak * self.curve.at(amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One tier of memory of a processor."""

    capacity_bytes: float
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network tier."""

    bandwidth_bytes_per_s: float
    efficiency: float
    size: int
    """Processors that one instance connects."""
    latency_s: float
    must_be_filled: bool
    """The groups mapped on it must divide its size."""
    processor_usage: float
    """Share of the processor that communication takes while it runs, in [0, 1)."""
    operations: Mapping[str, tuple[float, float]]
    """(scalar, offset) per operation: bytes sent are size * scalar * (1 + offset / group)."""

    def time_s(
        self, operation: str, size_bytes: Float[np.ndarray, "..."], group: Int[np.ndarray, "..."] | int
    ) -> Float[np.ndarray, "..."]:
        """Seconds of one operation: latency + size * scalar * (1 + offset / group) / (bandwidth * efficiency).

        The latency is paid once whatever the group. A transfer of nothing still pays it.
        """
        scalar, offset = self.operations[operation]
        sent_bytes = size_bytes * scalar * (1 + offset / group)
        return self.latency_s + sent_bytes / (self.bandwidth_bytes_per_s * self.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Processors, their memories and their networks, as Calculon's system file describes them."""

    name: str = ""
    matrix: Mapping[str, Rate]
    """Matrix engine per datatype, flop/s."""
    vector: Mapping[str, Rate]
    """Vector engine per datatype, flop/s."""
    mem1: Memory
    mem2: Memory
    """Second tier, for offload; capacity 0 where there is none."""
    processing_mode: str
    """One of PROCESSING_MODES: flop time and memory time add, or the longer one counts."""
    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One way to run an application: Calculon's 23 execution keys."""

    num_procs: int
    tensor_par: int
    pipeline_par: int
    data_par: int
    tensor_par_net: int
    pipeline_par_net: int
    data_par_net: int
    batch_size: int
    microbatch_size: int
    datatype: str
    fused_activation: bool
    attention_type: str
    activation_recompute: str
    pipeline_interleaving: int
    optimizer_sharding: bool
    tensor_par_comm_type: str
    tensor_par_overlap: str
    seq_par_ag_redo: bool
    data_par_overlap: bool
    weight_offload: bool
    activations_offload: bool
    optimizer_offload: bool
    training: bool
