"""Kinds of layers: what each computes, moves and keeps, in columns.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0 (github.com/calculon-ai/calculon).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.calculon.inputs import RS_AG
from meshwright.calculon.layers import Amount, BlockKeys, Flag, Layer, TensorComm

MASK_BYTES = 1
"""Bytes of a dropout mask's element."""


@dataclass(slots=True, kw_only=True)
class Builder:
    """Layers are added in the order in which they run."""

    keys: BlockKeys
    fixed: bool
    layers: list[Layer] = field(default_factory=list)

    def add(
        self,
        name: str,
        *,
        matrix: bool = False,
        flop: tuple[Amount | float, Amount | float, Amount | float] = (0.0, 0.0, 0.0),
        inputs: Amount | float,
        outputs: Amount | float,
        kept: Amount | float,
        grad: Amount | float,
        weights: Amount | float = 0.0,
        fw_bytes: Amount | float | None = None,
        agrad_bytes: Amount | float | None = None,
        kept_bytes: Amount | float | None = None,
        grad_bytes: Amount | float | None = None,
        recomputed: Flag | bool = False,
        comm_redone: Flag | bool = False,
        reused: bool = False,
        keeps_input: Flag | bool = True,
        keeps_output: Flag | bool = True,
        comm: TensorComm | None = None,
    ) -> None:
        """A layer; amounts not given follow from the elements: traffic in + out + weights forward, weights + kept +
        grad backward."""
        shape, element = self.keys.tensor_par.shape, self.keys.element_bytes
        backward = (weights + kept + grad) * element
        amounts = {
            "fw_flop": flop[0],
            "agrad_flop": flop[1],
            "wgrad_flop": flop[2],
            "inputs": inputs,
            "outputs": outputs,
            "weights": weights,
            "fw_bytes": (inputs + outputs + weights) * element if fw_bytes is None else fw_bytes,
            "agrad_bytes": backward if agrad_bytes is None else agrad_bytes,
            "wgrad_bytes": np.where(np.asarray(weights) > 0, backward, 0.0),
            "kept_bytes": kept * element if kept_bytes is None else kept_bytes,
            "grad_bytes": grad * element if grad_bytes is None else grad_bytes,
        }
        flags = {
            "recomputed": recomputed,
            "comm_redone": comm_redone,
            "keeps_input": keeps_input,
            "keeps_output": keeps_output,
        }
        self.layers.append(
            Layer(
                name=name,
                matrix=matrix,
                reused=reused,
                comm=comm,
                **{key: _column(value, np.float64, shape) for key, value in amounts.items()},
                **{key: _column(value, np.bool_, shape) for key, value in flags.items()},
            )
        )

    def linear(
        self,
        name: str,
        m: Amount,
        n: Amount | float,
        q: Amount | float,
        *,
        recomputed: Flag,
        reused: bool = False,
        keeps_input: Flag | bool = True,
    ) -> None:
        """Matrix product (m x n) (n x q) with weights n q; no bias."""
        flop = 2 * m * n * q
        self.add(
            name,
            matrix=True,
            flop=(flop, flop, flop),
            inputs=m * n,
            outputs=m * q,
            kept=m * n,
            grad=m * q,
            weights=n * q + 0.0 * m,
            recomputed=recomputed,
            reused=reused,
            keeps_input=keeps_input,
        )

    def overlapped_linear(
        self,
        name: str,
        m: Amount,
        n: Amount | float,
        q: Amount | float,
        *,
        gather_first: bool,
        recomputed: Flag,
        comm_redone: Flag,
        keeps_input: Flag | bool = True,
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
        self.add(
            name,
            matrix=True,
            flop=(flop, flop, flop),
            inputs=m * n,
            outputs=m * q,
            kept=kept,
            grad=grad,
            weights=n * q,
            recomputed=recomputed,
            comm_redone=comm_redone,
            keeps_input=keeps_input,
            comm=TensorComm(
                gather_first=gather_first,
                size_bytes=(m * n if gather_first else m * q) * self.keys.element_bytes,
                overlapped=True,
            ),
        )

    def batch_matmul(
        self, name: str, batch: Amount, m: float, n: float, q: float, *, recomputed: Flag, keeps_output: Flag | bool
    ) -> None:
        """Products of two activations; both gradients count as activation gradients."""
        flop = 2 * batch * m * n * q
        self.add(
            name,
            matrix=True,
            flop=(flop, 2 * flop, 0.0),
            inputs=batch * (m * n + n * q),
            outputs=batch * m * q,
            kept=batch * (m * n + n * q),
            grad=batch * m * q,
            recomputed=recomputed,
            keeps_output=keeps_output,
        )

    def flash_attention(
        self, name: str, batch: Amount, seq: float, size: float, *, dropout: bool, recomputed: Flag
    ) -> None:
        """Attention in one kernel: the score matrix is never stored or moved, and the backward pass makes it again.

        Two products forward and five backward. Q, K, V and one 4-byte log-sum per query are kept; softmax (and dropout)
        run on the vector engine and move nothing.

        Source: Dao, "FlashAttention-2", 2023, algorithms 1 and 2.
        """
        flop = 2 * batch * seq * seq * size
        tokens = batch * seq * size
        element = self.keys.element_bytes
        self.add(
            f"{name}_Flash",
            matrix=True,
            flop=(2 * flop, 5 * flop, 0.0),
            inputs=3 * tokens,
            outputs=tokens,
            kept=3 * tokens,
            grad=tokens,
            fw_bytes=4 * tokens * element + 4 * batch * seq,
            agrad_bytes=8 * tokens * element + 4 * batch * seq,
            kept_bytes=3 * tokens * element + 4 * batch * seq,
            recomputed=recomputed,
        )
        scores = batch * seq * seq
        forward, backward = 5 + dropout, 8 + dropout
        self.add(
            f"{name}_Flash_SoftMax",
            flop=(forward * scores, (forward + backward) * scores, 0.0),
            inputs=0.0,
            outputs=0.0,
            kept=0.0,
            grad=0.0,
            recomputed=recomputed,
        )

    def norm(self, name: str, x: Amount, hidden: int, *, rms: bool, recomputed: Flag) -> None:
        """LayerNorm with scale and shift, or RMSNorm with scale only."""
        flop = (4 * x, 9 * x, 3 * x) if rms else (9 * x, 14 * x, 7 * x)
        self.add(
            name,
            flop=flop,
            inputs=x,
            outputs=x,
            kept=x,
            grad=x,
            weights=float(hidden if rms else 2 * hidden),
            recomputed=recomputed,
            keeps_input=False,
            reused=True,
        )

    def dropout(self, name: str, x: Amount, *, recomputed: Flag, keeps_input: Flag | bool = True) -> None:
        """Dropout; keeps its mask only.

        B8: its gradient is counted at one byte per element, as the mask is.
        """
        moved = 2 * x * self.keys.element_bytes + x
        self.add(
            name,
            flop=(x, x, 0.0),
            inputs=x,
            outputs=x,
            kept=x,
            grad=x,
            fw_bytes=moved,
            agrad_bytes=moved,
            kept_bytes=x * MASK_BYTES,
            grad_bytes=x * (self.keys.element_bytes if self.fixed else MASK_BYTES),
            recomputed=recomputed,
            keeps_input=keeps_input,
        )

    def gelu(self, name: str, x: Amount, *, recomputed: Flag) -> None:
        """GeLU. B9: fused it keeps nothing, but moves as much as alone."""
        kept = np.where(self.keys.fused, 0.0, x)
        moved = 2 * x * self.keys.element_bytes
        self.add(
            name,
            flop=(8 * x, 13 * x, 0.0),
            inputs=x,
            outputs=x,
            kept=kept,
            grad=kept,
            fw_bytes=moved,
            agrad_bytes=moved,
            recomputed=recomputed,
        )

    def swiglu(self, name: str, x: Amount, *, recomputed: Flag) -> None:
        """SwiGLU of gate and up, x elements each; fused it keeps the two, alone the gate's activation too."""
        kept = np.where(self.keys.fused, 2 * x, 3 * x)
        moved = np.where(self.keys.fused, 3 * x, 5 * x) * self.keys.element_bytes
        self.add(
            name,
            flop=(6 * x, 11 * x, 0.0),
            inputs=2 * x,
            outputs=x,
            kept=kept,
            grad=np.where(self.keys.fused, 0.0, 2 * x),
            fw_bytes=moved,
            agrad_bytes=moved + 2 * x * self.keys.element_bytes,
            recomputed=recomputed,
        )

    def softmax(self, name: str, x: Amount, *, recomputed: Flag, keeps_output: Flag) -> None:
        """Softmax; its backward pass moves as much as its forward pass."""
        moved = 2 * x * self.keys.element_bytes
        self.add(
            name,
            flop=(5 * x, 8 * x, 0.0),
            inputs=x,
            outputs=x,
            kept=x,
            grad=x,
            fw_bytes=moved,
            agrad_bytes=moved,
            recomputed=recomputed,
            keeps_output=keeps_output,
        )

    def rotary(self, name: str, x: Amount, *, recomputed: Flag) -> None:
        """Rotary embedding in place: three flop per element each way; keeps nothing."""
        moved = 2 * x * self.keys.element_bytes
        self.add(
            name,
            flop=(3 * x, 3 * x, 0.0),
            inputs=x,
            outputs=x,
            kept=0.0,
            grad=0.0,
            fw_bytes=moved,
            agrad_bytes=moved,
            recomputed=recomputed,
        )

    def residual(self, name: str, x: Amount, *, recomputed: Flag) -> None:
        """Sum of two activations."""
        self.add(
            name,
            flop=(x, 2 * x, 0.0),
            inputs=2 * x,
            outputs=x,
            kept=2 * x,
            grad=x,
            recomputed=recomputed,
            keeps_input=False,
            reused=True,
        )

    def fork(self, name: str, x: Amount, users: int, *, recomputed: Flag, keeps_input: Flag | bool = True) -> None:
        """An activation with several readers: free forward, a sum of gradients backward."""
        self.add(
            name,
            flop=(0.0, users * x, 0.0),
            inputs=x,
            outputs=0.0,
            kept=x,
            grad=0.0,
            fw_bytes=0.0,
            agrad_bytes=x * self.keys.element_bytes * (users + 1),
            recomputed=recomputed,
            keeps_input=keeps_input,
        )

    def tensor_comm(
        self, name: str, x: Amount, *, gather_first: bool, comm_redone: Flag, keeps_input: Flag | bool = True
    ) -> None:
        """A collective on its own, nothing with one tensor rank; its reduction runs on the vector engine.

        Where sums are all-reduced, the other direction is the identity and moves nothing.
        """
        t, element = self.keys.tensor_par, self.keys.element_bytes
        x = np.where(t > 1, x, 0.0)
        reduced = x * (t - 1) / t
        rs_ag = self.keys.comm_type == RS_AG
        both, one_rank = 2 * x * element, x * element / t
        self.add(
            name,
            flop=(0.0, reduced, 0.0) if gather_first else (reduced, 0.0, 0.0),
            inputs=x,
            outputs=x,
            kept=x,
            grad=x,
            fw_bytes=np.where(rs_ag, both, 0.0) if gather_first else both,
            agrad_bytes=both if gather_first else np.where(rs_ag, both, 0.0),
            kept_bytes=np.where(rs_ag, one_rank, 0.0 if gather_first else x * element),
            grad_bytes=np.where(rs_ag, one_rank, x * element if gather_first else 0.0),
            comm_redone=comm_redone,
            keeps_input=keeps_input,
            comm=TensorComm(gather_first=gather_first, size_bytes=x * element, overlapped=False),
        )


def _column(value: Any, kind: type, shape: tuple[int, ...]) -> np.ndarray:
    """A value of every block."""
    column: np.ndarray = np.asarray(value, dtype=kind)
    return column if column.shape == shape else np.full(shape, column)
