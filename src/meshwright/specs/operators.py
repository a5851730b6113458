"""Operators by kind. Sizes are of the whole, unsharded layer and per token; strategies cut them.

A *region* says how a tensor is cut by tensor parallelism:

    sequence   residual stream and norms: cut along the sequence with sequence parallelism, replicated without
    tensor     inside a column/row pair: always cut
    expert     tokens that arrived at an expert, cut by the expert-tensor degree
    expert-in  the same tokens at full width

A *module* names what selective recompute may repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import HashedOnce, hashed_once

Region = Literal["sequence", "tensor", "expert", "expert-in"]
Split = Literal["column", "row", "replicated", "expert-column", "expert-row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTokens:
    """Tokens per sample of a stream other than the text (`specs.streams`)."""

    sequences: float
    length: int
    """Tokens of each sequence."""
    whole: bool
    """Context ranks share out whole sequences of it, not parts of each."""

    @property
    def count(self) -> float:
        """Tokens per sample."""
        return self.sequences * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix product with weights: tokens x inputs by inputs x outputs."""

    name: str
    module: str
    inputs: tuple[tuple[int, int], ...]
    """(units, width of a unit): units are what tensor parallelism may split, such as heads."""
    outputs: tuple[tuple[int, int], ...]
    split: Split
    gather: int = 0
    """Width gathered over tensor ranks before it (column split)."""
    reduce: int = 0
    """Width reduced over tensor ranks after it (row split)."""
    bias: int = 0
    """Bias elements."""
    experts: int = 0
    """Routed experts that each hold such a matrix; 0 for none."""
    of_heads: bool = False
    """Makes or takes tensors of attention heads, which ranks can exchange for tokens."""
    tied: bool = False
    """Whether the matrix is the embedding's table."""
    trained: bool = True
    """Whether its weights have gradients."""
    adapter: bool = False
    """Computes in the format of activations, beside a frozen product."""
    stored: str | None = None
    """Format of frozen weights; None for that of trained ones."""
    forward_weight_bytes: float = 0.0
    """Bytes moved per weight before a forward product, to make a stored weight again for example."""
    backward_weight_bytes: float = 0.0
    """Bytes moved per weight before a product of the backward pass."""
    merged: bool = False
    """Whether the frozen weights are added to those of an adapter before each product, so that they have a gradient,
    too, of which the adapter's is made."""
    tokens: StreamTokens | None = None
    """Tokens the operator works on, None for the layer's own: keys and values of cross attention are made of another
    stream."""

    @property
    def parameters(self) -> int:
        """Weights and biases of the whole layer."""
        width_in = sum(units * width for units, width in self.inputs)
        width_out = sum(units * width for units, width in self.outputs)
        return (width_in * width_out + self.bias) * max(1, self.experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAttention:
    """Scores, softmax and weighted values."""

    name: str
    module: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    """Keys that a query sees at most, the last ones or picked ones; None for all."""
    causal: bool
    chunk: int | None = None
    """Tokens of a piece of the sequence beyond which no query sees; None for one piece."""
    capped: bool = False
    """Scores go through a tanh before the softmax."""
    dropout: bool = False
    """Probabilities are dropped before they weigh values."""
    entry: int = 0
    """Tokens that one of the keys beyond the window stands for; 0 for no such keys."""
    picked: int | None = None
    """Largest number of these keys that a query sees; None for all."""
    keys: StreamTokens | None = None
    """Stream whose keys the queries see; None for those of their own sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of every query with all keys before it that pick the keys it attends to (a lightning indexer)."""

    name: str
    module: str
    heads: int
    """Heads whose scores are added up; keys have one head."""
    dim: int
    picked: int
    """Keys that a query attends to."""
    entry: int = 1
    """Tokens that a key stands for."""
    block: int = 1
    """Keys of which one score is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A recurrence over the sequence that carries a state from token to token, computed a chunk of tokens at a time."""

    name: str
    module: str
    heads: int
    """What tensor ranks and all-to-alls share out; all numbers below are of one."""
    state: int
    """Elements of the state, in 32 bits."""
    chunk: int
    """Tokens computed by products; the state is written and read once a chunk."""
    recurrence_flop: float
    """FLOP per token as a recurrence: what the model asks for, whatever the kernel does."""
    forward_flop: float
    """FLOP per token of the products of chunks."""
    backward_flop: float
    forward_scalar_flop: float = 0.0
    """FLOP per token in 32 bits, outside of products."""
    backward_scalar_flop: float = 0.0
    forward_elements: float
    """Read and written per token, the state not included."""
    backward_elements: float
    exchanged: float
    """Inputs and outputs per token, which an exchange of heads for sequence moves."""
    kernels: float = 1.0
    """Kernels that frameworks launch for it forward; twice that backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A memory-bound operator: elements read and written per token."""

    name: str
    module: str
    region: Region
    forward_elements: float
    backward_elements: float
    parameters: int = 0
    """Norm scales and the like, on every tensor rank."""
    cut_parameters: int = 0
    """Scales of heads or channels, shared out by tensor ranks."""
    fp32: bool = False
    """Works on 4-byte elements whatever the precision."""
    reduce: int = 0
    """Width of partial sums reduced over tensor ranks after it (a vocabulary split over them)."""
    kernels: float = 1.0
    """Kernels that frameworks launch for it each way."""
    table: tuple[int, int] | None = None
    """(rows, width) of a lookup table whose rows are split over tensor ranks."""
    trained: bool = True
    """Whether its parameters and table have gradients."""
    exact: bool = False
    """Whether its elements are what its kernels move, so that no framework takes more passes over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Tokens travel to their experts, or back."""

    name: str
    module: str
    width: int
    direction: Literal["dispatch", "combine"]


Op = Linear | CoreAttention | Scores | Scan | Vector | Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor kept from forward to backward."""

    name: str
    elements: float
    """Elements per token of its region; per token and key for scores."""
    role: Literal["activation", "input", "function", "attention", "mask", "fp32"]
    """Which format: `input` of a linear is kept in the compute format (1 byte in fp8), that of an MLP's `function` and
    of core `attention` as the precision says."""
    region: Region
    freed_by: tuple[str, ...] = ()
    """Modules whose selective recompute makes it again."""
    per_key: bool = False
    """Grows with the keys a query sees (score matrices)."""
    weights_of: tuple[str, ...] = ()
    """Linear operators for whose weight gradients alone it is kept; empty where the backward pass needs it anyway."""
    keys: StreamTokens | None = None
    """Stream of the keys; None for those of the sequence itself."""
    tokens: StreamTokens | None = None
    """Stream whose tokens it is kept for; None for the layer's own."""
    of_experts: bool = False
    """Is of the experts' weights: `elements` are those of all experts, whatever the tokens."""


Units = tuple[tuple[int, int], ...]
"""(units, width of a unit), as in `Linear`."""


def column_product(
    name: str,
    inputs: int,
    outputs: Units,
    *,
    module: str = "",
    gather: int | None = None,
    bias: int = 0,
    tokens: StreamTokens | None = None,
) -> Linear:
    """A product whose columns tensor ranks share out: its input is gathered, its output stays cut.

    Args:
        name: the name of the operator.
        inputs: width of its input.
        outputs: what it makes, of which ranks hold whole units.
        module: the module that selective recompute may repeat.
        gather: width gathered before it where that is not its input: 0 where another product gathers the same.
        bias: elements.
        tokens: the tokens it works on, None for the layer's own.
    """
    wide = inputs if gather is None else gather
    return Linear(
        name=name,
        module=module,
        inputs=((1, inputs),),
        outputs=outputs,
        split="column",
        gather=wide,
        bias=bias,
        tokens=tokens,
    )


def row_product(
    name: str, inputs: Units, outputs: int, *, module: str = "", bias: bool = False, of_heads: bool = False
) -> Linear:
    """A product whose rows tensor ranks share out: its input is cut, its partial sums are reduced.

    Args:
        name: the name of the operator.
        inputs: what it takes, of which ranks hold whole units.
        outputs: width of its output.
        module: the module that selective recompute may repeat.
        bias: whether it has one.
        of_heads: whether it takes attention heads.
    """
    return Linear(
        name=name,
        module=module,
        inputs=inputs,
        outputs=((1, outputs),),
        split="row",
        reduce=outputs,
        bias=outputs if bias else 0,
        of_heads=of_heads,
    )


def whole_product(name: str, inputs: int, outputs: int, *, module: str = "", bias: int = 0) -> Linear:
    """A product that every tensor rank holds whole and computes for its own tokens; arguments as `column_product`."""
    return Linear(
        name=name, module=module, inputs=((1, inputs),), outputs=((1, outputs),), split="replicated", bias=bias
    )


def norm_pass(
    name: str, width: int, *, parameters: int = 0, module: str = "layernorm", region: Region = "sequence"
) -> Vector:
    """A norm: read and written forward; backward its input and gradient are read, and two passes written.

    Args:
        name: the name of the operator.
        width: the width of what it works on.
        parameters: scales and shifts.
        module: the module that selective recompute may repeat.
        region: the region of what it works on.
    """
    return Vector(
        name=name,
        module=module,
        region=region,
        forward_elements=2 * width,
        backward_elements=4 * width,
        parameters=parameters,
    )


def activation_pass(name: str, width: int, *, module: str = "", region: Region = "tensor", columns: int = 1) -> Vector:
    """A function of each element, of two factors where it is gated: they are read, and one is written.

    Args:
        name: the name of the operator.
        width: the width of its output.
        module: the module that selective recompute may repeat.
        region: the region of what it works on.
        columns: factors: 2 for a gated function.
    """
    return Vector(
        name=name,
        module=module,
        region=region,
        forward_elements=(columns + 1) * width,
        backward_elements=(2 * columns + 1) * width,
    )


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork(HashedOnce):
    """One layer: its operators and what they keep."""

    ops: tuple[Op, ...]
    kept: tuple[Kept, ...]
    input_width: float
    """Width of the layer's input, all that full recompute keeps."""
    top_k: float = 0
    """Copies of a token that go to experts."""
    experts: int = 0
    router_groups: tuple[int, int] = (0, 0)
    """Groups of experts, and those of them in which a token has any; zeros where the router knows no groups."""
    wide: bool = False
    """Whether its products run in the format of activations whatever the recipe's."""
    reached: bool = True
    """Whether gradients flow into it; without, it has no backward pass and keeps nothing."""
    tokens: StreamTokens | None = None
    """Stream whose tokens the layer works on; None for the text's."""

    @property
    def parameters(self) -> int:
        """Sum over operators."""
        tables = [op.table for op in self.ops if isinstance(op, Vector) and op.table]
        cut = sum(op.cut_parameters for op in self.ops if isinstance(op, Vector))
        return sum(op.parameters for op in self.ops if isinstance(op, (Linear, Vector))) + sum(
            (rows * width for rows, width in tables), cut
        )
