"""An MLP behind which each layer adds an embedding of its own of the token (PLE: Gemma 3n and Gemma 4).

The layer looks its token up in its part of a second table, adds a product of the first embeddings, multiplies both by
a gate, and a product brings the result back to the residual stream. Shapes as in `modeling_gemma3n.py` and
`modeling_gemma4.py` of transformers 5.23, read 2026-11-29. Each layer is counted with its columns of the table and of
the product of the embeddings, so that pipeline stages hold those of their layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import FeedForward, LayerContext, PartWork
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.operators import Kept, Vector, norm_pass, whole_product


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInput(FeedForward):
    """An MLP, and an embedding of the layer's own behind it."""

    kind: Literal["per-layer-input"] = "per-layer-input"
    mlp: DenseMlp
    width: int
    """Width of the layer's embedding."""
    rows: int
    """Words of the second table."""

    def __post_init__(self) -> None:
        check = Check("per-layer input")
        check.all_whole(self, "width", "rows")
        check.done()

    def parameters(self, hidden: int) -> int:
        """Parameters of the MLP, columns of the table, three products and a norm."""
        return self.mlp.parameters(hidden) + self.rows * self.width + 3 * hidden * self.width + hidden

    def active_parameters(self, hidden: int) -> int:
        """A token visits one row of the table."""
        return self.parameters(hidden) - (self.rows - 1) * self.width

    @property
    def input_width(self) -> int:
        """Width of the layer's embedding."""
        return self.width

    @property
    def tensor_width(self) -> int:
        """Hidden width of the MLP."""
        return self.mlp.tensor_width

    def describe(self) -> dict[str, object]:
        """The MLP's sizes, and those of the embedding."""
        return {**self.mlp.describe(), "per_layer_input": self.width, "per_layer_rows": self.rows}

    def work(self, context: LayerContext) -> PartWork:
        """The MLP; lookup and product of the embeddings; gate, product and norm."""
        hidden, width = context.hidden, self.width
        dense = self.mlp.work(context)
        lookup = Vector(
            name="mlp per-layer lookup",
            module="",
            region="sequence",
            forward_elements=3 * width,
            backward_elements=3 * width,
            reduce=width,
            table=(self.rows, width),
        )
        # Lookup, normed product and gate are read, and the gated sum is written.
        gated = Vector(
            name="mlp per-layer gating",
            module="",
            region="sequence",
            forward_elements=6 * width,
            backward_elements=12 * width,
            kernels=4.0,
        )
        names = ("mlp per-layer projection", "mlp per-layer gate", "mlp per-layer out")
        ops = (
            lookup,
            whole_product(names[0], hidden, width),
            whole_product(names[1], hidden, width),
            gated,
            whole_product(names[2], width, hidden),
            norm_pass("mlp per-layer norm", hidden, parameters=hidden),
        )
        kept = (
            _kept("per-layer gate input", hidden, weights_of=names[1:2]),
            _kept("per-layer factors", 3 * width),
            _kept("per-layer out input", width, weights_of=names[2:]),
            _kept("per-layer norm input", hidden),
        )
        return PartWork(ops=(*dense.ops, *ops), kept=(*dense.kept, *kept))


def _kept(name: str, elements: int, *, weights_of: tuple[str, ...] = ()) -> Kept:
    role: Literal["input", "activation"] = "input" if weights_of else "activation"
    return Kept(name=name, elements=elements, role=role, region="sequence", weights_of=weights_of)
