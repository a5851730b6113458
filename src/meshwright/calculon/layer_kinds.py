"""Kinds of layers: what each computes, moves and keeps, in columns.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0 (github.com/calculon-ai/calculon).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.calculon.inputs import RS_AG
from meshwright.calculon.layers import Amount, BlockKeys, Layer, TensorComm

MASK_BYTES = 1
"""Bytes of a dropout mask's element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a layer computes and holds, in elements; bytes that are not given follow from the elements."""

    flop: tuple[Amount | float, Amount | float, Amount | float] = (0.0, 0.0, 0.0)
    """Forward, for the gradient of activations, for the gradient of weights."""
    inputs: Amount | float = 0.0
    outputs: Amount | float = 0.0
    kept: Amount | float = 0.0
    grad: Amount | float = 0.0
    weights: Amount | float = 0.0
    fw_bytes: Amount | float | None = None
    """Moved; in + out + weights by default."""
    agrad_bytes: Amount | float | None = None
    """Moved; weights + kept + grad by default."""
    kept_bytes: Amount | float | None = None
    grad_bytes: Amount | float | None = None


@dataclass(slots=True, kw_only=True)
class Builder:
    """Layers are added in the order in which they run.

    Every kind takes the flags of a layer: recomputed, comm_redone, reused, keeps_input, keeps_output.
    """

    keys: BlockKeys
    fixed: bool
    layers: list[Layer] = field(default_factory=list)

    def add(
        self, name: str, sizes: Sizes, *, matrix: bool = False, comm: TensorComm | None = None, **flags: Any
    ) -> None:
        """Any layer."""
        shape, element = self.keys.tensor_par.shape, self.keys.element_bytes
        backward = (sizes.weights + sizes.kept + sizes.grad) * element
        forward = (sizes.inputs + sizes.outputs + sizes.weights) * element
        amounts = {
            **dict(zip(("fw_flop", "agrad_flop", "wgrad_flop"), sizes.flop, strict=True)),
            "inputs": sizes.inputs,
            "outputs": sizes.outputs,
            "weights": sizes.weights,
            "fw_bytes": forward if sizes.fw_bytes is None else sizes.fw_bytes,
            "agrad_bytes": backward if sizes.agrad_bytes is None else sizes.agrad_bytes,
            "wgrad_bytes": np.where(np.asarray(sizes.weights) > 0, backward, 0.0),
            "kept_bytes": sizes.kept * element if sizes.kept_bytes is None else sizes.kept_bytes,
            "grad_bytes": sizes.grad * element if sizes.grad_bytes is None else sizes.grad_bytes,
        }
        reused = bool(flags.pop("reused", False))
        columns = {"recomputed": False, "comm_redone": False, "keeps_input": True, "keeps_output": True, **flags}
        self.layers.append(
            Layer(
                name=name,
                matrix=matrix,
                reused=reused,
                comm=comm,
                **{key: _column(value, np.float64, shape) for key, value in amounts.items()},
                **{key: _column(value, np.bool_, shape) for key, value in columns.items()},
            )
        )

    def linear(self, name: str, m: Amount, n: Amount | float, q: Amount | float, **flags: Any) -> None:
        """Matrix product (m x n) (n x q) with weights n q; no bias."""
        flop = 2 * m * n * q
        weights = n * q + 0.0 * m
        sizes = Sizes(flop=(flop, flop, flop), inputs=m * n, outputs=m * q, kept=m * n, grad=m * q, weights=weights)
        self.add(name, sizes, matrix=True, **flags)

    def overlapped_linear(
        self, name: str, m: Amount, n: Amount | float, q: Amount | float, *, gather_first: bool, **flags: Any
    ) -> None:
        """Linear in tiles, one per tensor rank, each sent while the next one computes."""
        t = self.keys.tensor_par
        rs_ag = self.keys.comm_type == RS_AG
        if gather_first:
            q = q / t
            kept = np.where(rs_ag, np.floor(m * n / t), m * n)
            grad = np.where(rs_ag, m * q, 0.0)
        else:
            n = n / t
            kept = np.where(rs_ag, m * n, 0.0)
            grad = np.where(rs_ag, 2 * np.floor(m * q / t), 2 * m * q)
        flop = 2 * m * n * q
        size_bytes = (m * n if gather_first else m * q) * self.keys.element_bytes
        sizes = Sizes(flop=(flop, flop, flop), inputs=m * n, outputs=m * q, kept=kept, grad=grad, weights=n * q)
        comm = TensorComm(gather_first=gather_first, size_bytes=size_bytes, overlapped=True)
        self.add(name, sizes, matrix=True, comm=comm, **flags)

    def batch_matmul(self, name: str, batch: Amount, m: float, n: float, q: float, **flags: Any) -> None:
        """Products of two activations; both gradients count as activation gradients."""
        flop = 2 * batch * m * n * q
        read, written = batch * (m * n + n * q), batch * m * q
        sizes = Sizes(flop=(flop, 2 * flop, 0.0), inputs=read, outputs=written, kept=read, grad=written)
        self.add(name, sizes, matrix=True, **flags)

    def flash_attention(
        self, name: str, batch: Amount, seq: float, size: float, *, dropout: bool, **flags: Any
    ) -> None:
        """Attention in one kernel: the score matrix is never stored or moved, and the backward pass makes it again.

        Two products forward and five backward. Q, K, V and one 4-byte log-sum per query are kept; softmax (and dropout)
        run on the vector engine and move nothing.

        Source: Dao, "FlashAttention-2", 2023, algorithms 1 and 2.
        """
        flop = 2 * batch * seq * seq * size
        tokens = batch * seq * size
        element, sums = self.keys.element_bytes, 4 * batch * seq
        sizes = Sizes(
            flop=(2 * flop, 5 * flop, 0.0),
            inputs=3 * tokens,
            outputs=tokens,
            kept=3 * tokens,
            grad=tokens,
            fw_bytes=4 * tokens * element + sums,
            agrad_bytes=8 * tokens * element + sums,
            kept_bytes=3 * tokens * element + sums,
        )
        self.add(f"{name}_Flash", sizes, matrix=True, **flags)
        scores = batch * seq * seq
        forward, backward = 5 + dropout, 8 + dropout
        self.add(f"{name}_Flash_SoftMax", Sizes(flop=(forward * scores, (forward + backward) * scores, 0.0)), **flags)

    def pointwise(
        self, name: str, x: Amount, sizes: Sizes, *, moved: Amount | float | None = None, **flags: Any
    ) -> None:
        """A layer that does little per element.

        Args:
            name: the name of the layer.
            x: elements.
            sizes: flop and elements per element; bytes and weights as they are.
            moved: elements moved per element, forward and backward.
            flags: the flags of the layer.
        """
        moved_bytes = None if moved is None else moved * x * self.keys.element_bytes
        forward, gradient, weights = sizes.flop
        whole = replace(
            sizes,
            flop=(forward * x, gradient * x, weights * x),
            inputs=sizes.inputs * x,
            outputs=sizes.outputs * x,
            kept=sizes.kept * x,
            grad=sizes.grad * x,
            fw_bytes=moved_bytes if sizes.fw_bytes is None else sizes.fw_bytes,
            agrad_bytes=moved_bytes if sizes.agrad_bytes is None else sizes.agrad_bytes,
        )
        self.add(name, whole, **flags)

    def norm(self, name: str, x: Amount, hidden: int, *, rms: bool, **flags: Any) -> None:
        """LayerNorm with scale and shift, or RMSNorm with scale only."""
        flop, weights = ((4, 9, 3), float(hidden)) if rms else ((9, 14, 7), float(2 * hidden))
        sizes = Sizes(flop=flop, inputs=1, outputs=1, kept=1, grad=1, weights=weights)
        self.pointwise(name, x, sizes, keeps_input=False, reused=True, **flags)

    def dropout(self, name: str, x: Amount, **flags: Any) -> None:
        """Dropout; keeps its mask only.

        B8: its gradient is counted at one byte per element, as the mask is.
        """
        moved = 2 * x * self.keys.element_bytes + x
        grad_bytes = x * (self.keys.element_bytes if self.fixed else MASK_BYTES)
        sizes = Sizes(
            flop=(1, 1, 0),
            inputs=1,
            outputs=1,
            kept=1,
            grad=1,
            fw_bytes=moved,
            agrad_bytes=moved,
            kept_bytes=x * MASK_BYTES,
            grad_bytes=grad_bytes,
        )
        self.pointwise(name, x, sizes, **flags)

    def gelu(self, name: str, x: Amount, **flags: Any) -> None:
        """GeLU. B9: fused it keeps nothing, but moves as much as alone."""
        kept = np.where(self.keys.fused, 0.0, 1.0)
        self.pointwise(name, x, Sizes(flop=(8, 13, 0), inputs=1, outputs=1, kept=kept, grad=kept), moved=2, **flags)

    def swiglu(self, name: str, x: Amount, **flags: Any) -> None:
        """SwiGLU of gate and up, x elements each; fused it keeps the two, alone the gate's activation too."""
        fused, element = self.keys.fused, self.keys.element_bytes
        moved = np.where(fused, 3.0, 5.0)
        sizes = Sizes(
            flop=(6, 11, 0),
            inputs=2,
            outputs=1,
            kept=np.where(fused, 2.0, 3.0),
            grad=np.where(fused, 0.0, 2.0),
            agrad_bytes=moved * x * element + 2 * x * element,
        )
        self.pointwise(name, x, sizes, moved=moved, **flags)

    def softmax(self, name: str, x: Amount, **flags: Any) -> None:
        """Softmax; its backward pass moves as much as its forward pass."""
        self.pointwise(name, x, Sizes(flop=(5, 8, 0), inputs=1, outputs=1, kept=1, grad=1), moved=2, **flags)

    def rotary(self, name: str, x: Amount, **flags: Any) -> None:
        """Rotary embedding in place: three flop per element each way; keeps nothing."""
        self.pointwise(name, x, Sizes(flop=(3, 3, 0), inputs=1, outputs=1), moved=2, **flags)

    def residual(self, name: str, x: Amount, **flags: Any) -> None:
        """Sum of two activations."""
        sizes = Sizes(flop=(1, 2, 0), inputs=2, outputs=1, kept=2, grad=1)
        self.pointwise(name, x, sizes, keeps_input=False, reused=True, **flags)

    def fork(self, name: str, x: Amount, users: int, **flags: Any) -> None:
        """An activation with several readers: free forward, a sum of gradients backward."""
        summed = x * self.keys.element_bytes * (users + 1)
        self.pointwise(name, x, Sizes(flop=(0, users, 0), inputs=1, kept=1, fw_bytes=0.0, agrad_bytes=summed), **flags)

    def tensor_comm(self, name: str, x: Amount, *, gather_first: bool, **flags: Any) -> None:
        """A collective on its own, nothing with one tensor rank; its reduction runs on the vector engine.

        Where sums are all-reduced, the other direction is the identity and moves nothing.
        """
        t, element = self.keys.tensor_par, self.keys.element_bytes
        x = np.where(t > 1, x, 0.0)
        reduced = x * (t - 1) / t
        rs_ag = self.keys.comm_type == RS_AG
        both, one_rank = 2 * x * element, x * element / t
        sizes = Sizes(
            flop=(0.0, reduced, 0.0) if gather_first else (reduced, 0.0, 0.0),
            inputs=x,
            outputs=x,
            kept=x,
            grad=x,
            fw_bytes=np.where(rs_ag, both, 0.0) if gather_first else both,
            agrad_bytes=both if gather_first else np.where(rs_ag, both, 0.0),
            kept_bytes=np.where(rs_ag, one_rank, 0.0 if gather_first else x * element),
            grad_bytes=np.where(rs_ag, one_rank, x * element if gather_first else 0.0),
        )
        self.add(
            name, sizes, comm=TensorComm(gather_first=gather_first, size_bytes=x * element, overlapped=False), **flags
        )


def _column(value: Any, kind: type, shape: tuple[int, ...]) -> np.ndarray:
    """A value of every block."""
    column: np.ndarray = np.asarray(value, dtype=kind)
    return column if column.shape == shape else np.full(shape, column)
