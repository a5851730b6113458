"""What recurrent mixers share: products that make their inputs, a short convolution, the scan, the product out.

A recurrence is computed a chunk of C tokens at a time. With N the width of keys and P that of values of a head,
multiply-adds counted twice, whole C x C tiles as kernels compute them, per token:

    sum of decayed outer products   2 C N scores, 2 C P weighted values, 4 N P for the state: made, and read
    delta rule                      6 C N + 4 C P + 6 N P + C C / 3: scores of keys among themselves, the inverse of a
                                    triangle, keys and values times it, and what the state already holds taken off

Source: Dao and Gu 2024 (Mamba-2, arXiv 2405.21060), section 6; Yang et al. 2024 (arXiv 2406.06484), section 3.2.
Backward takes two products for each, and makes scores and states again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

from meshwright.specs.layers.base import LayerContext, Mixer, PartWork
from meshwright.specs.operators import Kept, Linear, Op, Scan, Vector

STATE_BYTES = 4.0
"""States are kept in 32 bits."""

# Elements of 16 bits that kernels with a decay per channel move for each of them, and elements moved backward for each
# one forward: fitted to public timings of FLA's kernels on H800 and B200 (`tests/estimate/scan_points.py`).
PER_DECAY = {"sum": 48.0, "delta": 16.0}
BACKWARD_ELEMENTS = 6.0


class RecurrentMixer(Mixer):
    """A mixer whose tokens see earlier ones through a state of fixed size."""

    __slots__ = ()
    recurrent = True

    @property
    def state_elements(self) -> int:
        """Elements of the state of all heads, in 32 bits."""
        return 0

    @property
    def window_elements(self) -> int:
        """Earlier inputs of a convolution or a shift that the next token needs."""
        return 0

    def state_bytes(self, seq_len: int, element_bytes: float = 2.0) -> float:
        """The same however long the sequence is; arguments as `Mixer.state_bytes`."""
        return self.state_elements * STATE_BYTES + self.window_elements * element_bytes


class ConvolvedMixer(RecurrentMixer):
    """A mixer whose inputs pass a causal convolution over the last `conv_kernel` tokens."""

    __slots__ = ()
    conv_kernel: int

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels of the convolution."""

    @property
    def window_elements(self) -> int:
        """Every channel of all tokens under the kernel but the newest."""
        return (self.conv_kernel - 1) * self.channels


class ChannelMixer(RecurrentMixer):
    """A mixer whose channels are independent of each other: each is a head of its own."""

    __slots__ = ()
    width: int

    @property
    def heads(self) -> int:
        """Channels."""
        return self.width


class SquareStateMixer(RecurrentMixer):
    """Keys and values of one width: the state of a head is head_dim x head_dim."""

    __slots__ = ()
    heads: int
    head_dim: int
    chunk: int

    @property
    def width(self) -> int:
        """Columns of all heads."""
        return self.heads * self.head_dim

    @property
    def state_elements(self) -> int:
        """head_dim x head_dim per head."""
        return self.width * self.head_dim

    def describe(self) -> dict[str, object]:
        """Heads and their width."""
        return {"heads": self.heads, "head_dim": self.head_dim, "chunk": self.chunk}


def convolution(channels: int, kernel: int, *, bias: bool = False, more: int = 0) -> Vector:
    """A causal convolution of each channel over the last tokens, with its activation: read once, written once.

    Args:
        channels: the number of channels of all heads.
        kernel: tokens.
        bias: one per channel.
        more: parameters of heads that the same kernels read.
    """
    return Vector(
        name="convolution",
        module="",
        region="tensor",
        forward_elements=2 * channels,
        backward_elements=4 * channels,
        cut_parameters=channels * (kernel + bias) + more,
    )


def gated_norm(width: int, *, parameters: int = 0, cut_parameters: int = 0, gate: bool = True) -> Vector:
    """A norm over each head of the scan's output, and its gate.

    Args:
        width: the width of all heads.
        parameters: scales that every tensor rank holds.
        cut_parameters: scales that they share out.
        gate: whether another tensor multiplies it.
    """
    read = 2 if gate else 1
    return Vector(
        name="gated norm",
        module="layernorm",
        region="tensor",
        forward_elements=(read + 1) * width,
        backward_elements=(2 * read + 2) * width,
        parameters=parameters,
        cut_parameters=cut_parameters,
    )


def chunked_scan(
    name: str,
    *,
    heads: int,
    keys: tuple[float, int, int],
    chunk: int,
    rule: Literal["sum", "delta"] = "sum",
    decays: int = 1,
) -> Scan:
    """A scan by products of chunks.

    Args:
        name: the name of the operator.
        heads: the number of heads of values.
        keys: how many heads of keys there are for a head of values (a group of heads may share them), the width of a
            key, the width of a value.
        chunk: tokens.
        rule: a decayed sum of outer products, or the delta rule.
        decays: numbers per token and head that say how fast the state fades.
    """
    share, n, p = keys
    state = n * p
    scores, values = 2.0 * chunk * n, 2.0 * chunk * p
    if rule == "sum":
        forward = share * scores + values + 4.0 * state
        again = share * scores + 2.0 * state
        recurrence = 4.0 * state
        elements = 3.0 * p + 3.0 * share * n
        kernels = 5.0
    else:
        forward = 3.0 * scores + 2.0 * values + 6.0 * state + chunk * chunk / 3.0
        again = 2.0 * scores + values + 4.0 * state
        recurrence = 6.0 * state
        elements = 7.0 * n + 6.0 * p + 4.0 * chunk
        kernels = 6.0
    elements += decays * (PER_DECAY[rule] if decays > 1 else 2.0)
    return Scan(
        name=name,
        module="",
        heads=heads,
        state=state,
        chunk=chunk,
        recurrence_flop=recurrence,
        forward_flop=forward,
        backward_flop=2.0 * forward + again,
        forward_elements=elements,
        backward_elements=BACKWARD_ELEMENTS * elements,
        exchanged=2.0 * share * n + 2.0 * p + decays,
        kernels=kernels,
    )


def recurrent_work(
    context: LayerContext,
    ops: tuple[Op, ...],
    tensors: Mapping[str, float],
    out: int,
    wide: Mapping[str, float] | None = None,
) -> PartWork:
    """Operators of a recurrent mixer and what they keep.

    Args:
        context: the layer around it.
        ops: the operators in forward order.
        tensors: the tensors of heads, kept for the backward pass: elements per token by name.
        out: width of the input of the product out.
        wide: the same of those kept in 32 bits.
    """
    products = [op for op in ops if isinstance(op, Linear)]
    of_stream = tuple(op.name for op in products if op.inputs == ((1, context.hidden),))
    kept = (
        Kept(
            name="mixer input",
            elements=context.hidden,
            role="input",
            region="sequence",
            freed_by=("layernorm",),
            weights_of=of_stream,
        ),
        *(Kept(name=name, elements=size, role="activation", region="tensor") for name, size in tensors.items()),
        *(Kept(name=name, elements=size, role="fp32", region="tensor") for name, size in (wide or {}).items()),
        Kept(name="mixer out input", elements=out, role="input", region="tensor", weights_of=(products[-1].name,)),
    )
    return PartWork(ops=ops, kept=kept)
