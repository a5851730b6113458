"""What is trained: layers as a run-length list of periods, so that 120 equal or alternating layers cost nothing.

Parameter counts here are closed forms; `ops` derives the same counts from the operators and a test holds them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from meshwright.specs.by_kind import BY_KIND
from meshwright.specs.check import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention, optionally within a sliding window."""

    kind: Literal["grouped"] = "grouped"
    heads: int
    kv_heads: int
    """Equal to `heads` for multi-head, 1 for multi-query attention."""
    head_dim: int
    window: int | None = None
    """Keys a query sees, itself included; None sees all before it."""
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    gate: bool = False
    """An output gate of the width of the queries (some recent models)."""
    sinks: bool = False
    """One learned sink logit per head (gpt-oss)."""

    def __post_init__(self) -> None:
        check = Check("attention")
        good = [check.whole(name, getattr(self, name)) for name in ("heads", "kv_heads", "head_dim")]
        if self.window is not None:
            check.whole("window", self.window)
        if all(good):
            check.that(
                self.heads % self.kv_heads == 0,
                "kv_heads",
                self.kv_heads,
                f"must divide heads = {self.heads}",
                "use a divisor of the number of query heads",
            )
        check.done()

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections."""
        weights = hidden * (self.query_width * (2 if self.gate else 1) + 2 * self.kv_width) + self.query_width * hidden
        biases = (self.query_width + 2 * self.kv_width if self.qkv_bias else 0) + (hidden if self.out_bias else 0)
        return weights + biases + (2 * self.head_dim if self.qk_norm else 0) + (self.heads if self.sinks else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries and keys/values through low-rank latents (DeepSeek-V2, section 2.1)."""

    kind: Literal["latent"] = "latent"
    heads: int
    q_rank: int | None
    """Width of the query latent; None projects queries directly."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    causal: bool = True

    def __post_init__(self) -> None:
        check = Check("latent attention")
        for name in ("heads", "kv_rank", "nope_dim", "rope_dim", "value_dim"):
            check.whole(name, getattr(self, name))
        if self.q_rank is not None:
            check.whole("q_rank", self.q_rank)
        check.done()

    @property
    def kv_heads(self) -> int:
        """Every head has its own keys and values after the up-projection."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Width of a query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def window(self) -> None:
        """Latent attention has no window."""
        return None

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the attention output."""
        return self.heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """Weights of the down- and up-projections and the norms on the latents."""
        if self.q_rank is None:
            queries = hidden * self.query_width
        else:
            queries = hidden * self.q_rank + self.q_rank + self.q_rank * self.query_width
        latents = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return queries + latents + up + self.value_width * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp:
    """Two matrices, or three when gated."""

    kind: Literal["dense"] = "dense"
    ffn_hidden: int
    gated: bool
    bias: bool = False

    def __post_init__(self) -> None:
        check = Check("MLP")
        check.whole("ffn_hidden", self.ffn_hidden)
        check.done()

    def parameters(self, hidden: int) -> int:
        """Weights and biases."""
        width = self.ffn_hidden * (2 if self.gated else 1)
        return hidden * width + self.ffn_hidden * hidden + (width + hidden if self.bias else 0)

    def active_parameters(self, hidden: int) -> int:
        """All of them."""
        return self.parameters(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp:
    """Mixture of experts: a router, routed experts of which a token visits `top_k`, and an optional shared expert."""

    kind: Literal["moe"] = "moe"
    experts: int
    top_k: int
    ffn_hidden: int
    """Width of one routed expert."""
    gated: bool
    shared_ffn_hidden: int = 0
    """Width of all shared experts together; 0 for none."""
    shared_gate: bool = False
    """A learned scalar gate on the shared expert (Qwen2-MoE)."""
    router_bias: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        check = Check("MoE")
        good = [check.whole(name, getattr(self, name)) for name in ("experts", "top_k", "ffn_hidden")]
        check.whole("shared_ffn_hidden", self.shared_ffn_hidden, 0)
        if all(good):
            check.that(self.top_k <= self.experts, "top_k", self.top_k, f"must not exceed experts = {self.experts}")
        check.done()

    @property
    def matrices(self) -> int:
        """3 matrices per expert when gated, else 2."""
        return 3 if self.gated else 2

    def expert_parameters(self, hidden: int) -> int:
        """Weights and biases of one routed expert."""
        bias = (self.ffn_hidden * (self.matrices - 1) + hidden) if self.bias else 0
        return self.matrices * hidden * self.ffn_hidden + bias

    def unrouted_parameters(self, hidden: int) -> int:
        """Router and shared expert."""
        router = hidden * self.experts + (self.experts if self.router_bias else 0)
        shared = self.matrices * hidden * self.shared_ffn_hidden + (hidden if self.shared_gate else 0)
        return router + shared

    def parameters(self, hidden: int) -> int:
        """All experts, router and shared expert."""
        return self.experts * self.expert_parameters(hidden) + self.unrouted_parameters(hidden)

    def active_parameters(self, hidden: int) -> int:
        """What one token visits."""
        return self.top_k * self.expert_parameters(hidden) + self.unrouted_parameters(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One transformer layer."""

    attention: Annotated[Attention | LatentAttention, BY_KIND]
    mlp: Annotated[DenseMlp | MoeMlp, BY_KIND]
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms: int = 2
    """Norms of width hidden: 2 usually, 4 with post-norms (Gemma 2), 1 when attention and MLP share one."""
    parallel_block: bool = False
    """Attention and MLP read the same input (GPT-NeoX, Falcon)."""
    dropout: bool = False

    def parameters(self, hidden: int) -> int:
        """Everything in the layer."""
        return self.attention.parameters(hidden) + self.mlp.parameters(hidden) + self.norm_parameters(hidden)

    def active_parameters(self, hidden: int) -> int:
        """What one token visits."""
        return self.attention.parameters(hidden) + self.mlp.active_parameters(hidden) + self.norm_parameters(hidden)

    def norm_parameters(self, hidden: int) -> int:
        """Scales, and shifts for LayerNorm."""
        return self.norms * hidden * (2 if self.norm == "layernorm" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A period of layers repeated: 48 equal layers are one period of one, alternating kinds one period of two."""

    layers: tuple[LayerSpec, ...]
    repeats: int

    def __post_init__(self) -> None:
        check = Check("layer run")
        check.that(len(self.layers) > 0, "layers", self.layers, "must hold at least one layer")
        check.whole("repeats", self.repeats)
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only (or encoder) transformer language model."""

    name: str
    family: str
    hidden: int
    vocab: int
    max_seq_len: int
    runs: tuple[LayerRun, ...]
    tied_embeddings: bool
    """The head uses the embedding's weights."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary or ALiBi."""
    embedding_norm: bool = False
    final_norm: Literal["rmsnorm", "layernorm"] | None = "rmsnorm"
    head_bias: bool = False
    mtp_layers: int = 0
    """Multi-token-prediction modules after the last layer (DeepSeek-V3, section 2.2)."""
    source: str = ""
    """Where the shape comes from."""
    notes: tuple[str, ...] = ()
    """What of the model is left out or planned differently; printed with the answer."""

    def __post_init__(self) -> None:
        check = Check(f"model {self.name}")
        for name in ("hidden", "vocab", "max_seq_len"):
            check.whole(name, getattr(self, name))
        check.whole("learned_positions", self.learned_positions, 0)
        check.whole("mtp_layers", self.mtp_layers, 0)
        check.that(len(self.runs) > 0, "runs", self.runs, "must hold at least one layer")
        check.done()

    @property
    def num_layers(self) -> int:
        """Transformer layers, multi-token-prediction modules not counted."""
        return sum(len(run.layers) * run.repeats for run in self.runs)

    def layers(self) -> Iterator[LayerSpec]:
        """The layers in order."""
        for run in self.runs:
            for _ in range(run.repeats):
                yield from run.layers

    def kinds(self) -> tuple[LayerSpec, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(layer for run in self.runs for layer in run.layers))

    def kind_counts(self) -> Counter[LayerSpec]:
        """How often each distinct layer occurs."""
        counts: Counter[LayerSpec] = Counter()
        for run in self.runs:
            for layer in run.layers:
                counts[layer] += run.repeats
        return counts

    def last_layer(self) -> LayerSpec:
        """The kind a multi-token-prediction module copies."""
        return self.runs[-1].layers[-1]

    def _norm(self, norm: str | None) -> int:
        return 0 if norm is None else self.hidden * (2 if norm == "layernorm" else 1)

    @property
    def embedding_parameters(self) -> int:
        """Token and position tables and the norm after them."""
        norm = 2 * self.hidden if self.embedding_norm else 0
        return (self.vocab + self.learned_positions) * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Output projection (0 when tied), its bias and the final norm."""
        projection = 0 if self.tied_embeddings else self.vocab * self.hidden
        return projection + (self.vocab if self.head_bias else 0) + self._norm(self.final_norm)

    @property
    def parameters(self) -> int:
        """All parameters; multi-token-prediction modules are not counted, as model cards do."""
        layers = sum(count * layer.parameters(self.hidden) for layer, count in self.kind_counts().items())
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters one token visits: top-k instead of all experts."""
        layers = sum(count * layer.active_parameters(self.hidden) for layer, count in self.kind_counts().items())
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def mtp_parameters(self) -> int:
        """Multi-token-prediction modules: a layer, a 2h-by-h projection and three norms each; the tables are shared."""
        layer = self.last_layer().parameters(self.hidden)
        return self.mtp_layers * (layer + 2 * self.hidden * self.hidden + 3 * self._norm(self.final_norm or "rmsnorm"))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(isinstance(layer.mlp, MoeMlp) for layer in self.kinds())

    def describe(self) -> dict[str, object]:
        """The `model` entry of a plan set."""
        return {
            "name": self.name,
            "family": self.family,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "layers": self.num_layers,
            "mtp_layers": self.mtp_layers,
            "hidden": self.hidden,
            "vocab": self.vocab,
            "max_seq_len": self.max_seq_len,
        }
