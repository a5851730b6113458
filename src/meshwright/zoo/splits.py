"""Which axes of a weight ranks split: columns into a layer's matrices, rows out of them, heads, tokens, experts.

Source: Shoeybi et al. 2019, Megatron-LM, section 3. Every expert is split by expert tensor ranks as an MLP is by tensor
ranks. What is added to the stream whole (norms, positions, biases of outputs, routers) is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.compiler.grid import Axes, DeviceGrid, Ranks
from meshwright.strategies.blocks import Names, TensorBlocks

AXES: dict[tuple[str, str], Mapping[int, Ranks]] = {
    ("attention", "q"): {1: Ranks.TENSOR},
    ("attention", "k"): {1: Ranks.TENSOR},
    ("attention", "v"): {1: Ranks.TENSOR},
    ("attention", "q_bias"): {0: Ranks.TENSOR},
    ("attention", "k_bias"): {0: Ranks.TENSOR},
    ("attention", "v_bias"): {0: Ranks.TENSOR},
    ("attention", "out"): {0: Ranks.TENSOR},
    ("mlp", "up"): {1: Ranks.TENSOR},
    ("mlp", "gate"): {1: Ranks.TENSOR},
    ("mlp", "up_bias"): {0: Ranks.TENSOR},
    ("mlp", "gate_bias"): {0: Ranks.TENSOR},
    ("mlp", "down"): {0: Ranks.TENSOR},
    ("experts", "up"): {0: Ranks.EXPERT, 2: Ranks.EXPERT_TENSOR},
    ("experts", "gate"): {0: Ranks.EXPERT, 2: Ranks.EXPERT_TENSOR},
    ("experts", "up_bias"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "gate_bias"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "down"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "down_bias"): {0: Ranks.EXPERT},
    ("experts", "shared_up"): {1: Ranks.TENSOR},
    ("experts", "shared_gate"): {1: Ranks.TENSOR},
    ("experts", "shared_down"): {0: Ranks.TENSOR},
    ("experts", "shared_up_bias"): {0: Ranks.TENSOR},
    ("experts", "shared_gate_bias"): {0: Ranks.TENSOR},
    ("embedding", "tokens"): {0: Ranks.TENSOR},
    ("head", "projection"): {1: Ranks.TENSOR},
    ("head", "bias"): {0: Ranks.TENSOR},
}
"""Axes by the last two names of a path."""


def split_axes(path: str) -> Mapping[int, Ranks]:
    """Axes of a value of the state that ranks split; its moments are split alike.

    Args:
        path: the path as `0.weights.layers.3.mlp.up`; layers of the perceptron have a number in place of a name, and
            take columns and rows in turn.
    """
    *_, owner, name = ("", *path.split("."))
    if not owner.isdigit() or name not in ("weight", "bias"):
        return AXES.get((owner, name), {})
    columns = int(owner) % 2 == 0
    if name == "weight":
        return {int(columns): Ranks.TENSOR}
    return {0: Ranks.TENSOR} if columns else {}


def expert_axes(name: str) -> Mapping[int, Ranks]:
    """Axes that ranks split of a weight of a layer's experts.

    Args:
        name: the name of the weight.
    """
    return AXES.get(("experts", name), {})


INTO = (
    ("attention", "q"),
    ("attention", "k"),
    ("attention", "v"),
    ("mlp", "up"),
    ("mlp", "gate"),
    ("head", "projection"),
)
OUT = (("attention", "out"), ("mlp", "down"))
INNER = ("q_bias", "k_bias", "v_bias", "up_bias", "gate_bias", "bias")
"""Vectors added to inner tensors; others are of the width of the stream, in their last axis."""
OF_KEYS = ("k", "v", "k_bias", "v_bias")
"""What has an axis for heads of keys and values, which several ranks may hold alike."""
OF_HEADS = ("q_norm", "k_norm")
"""Vectors of one head, whole on every rank."""


def block_split(grid: DeviceGrid, path: str) -> Mapping[int, Ranks | Axes]:
    """Axes of the grid along each axis of a value of the state, where products are written block by block.

    Args:
        grid: the grid with blocks.
        path: the path as `split_axes` takes it.
    """
    *_, owner, name = ("", *path.split("."))
    if owner == "experts":
        return expert_axes(name)
    assert grid.blocks is not None
    return {at: axes for at, names in _names(grid.blocks, owner, name).items() if (axes := grid.block_axes(names))}


def _names(blocks: TensorBlocks, owner: str, name: str) -> Mapping[int, Names]:
    """Axes of the tensor group that split a weight."""
    into, out = blocks.into, blocks.out
    heads = blocks.inner.width if blocks.keys is None else blocks.keys
    if name in OF_KEYS:
        into = replace(into, columns=heads)
    if (owner, name) in INTO:
        rows = (*into.rows, *into.row_shards)
        # Heads are shared among ranks whole; what shards columns besides takes a part of each head.
        return (
            {0: rows, 1: into.columns, 2: into.column_shards}
            if owner == "attention"
            else {0: rows, 1: (*into.columns, *into.column_shards)}
        )
    if (owner, name) in OUT:
        columns = (*out.columns, *out.column_shards)
        return {0: (*out.rows, *out.row_shards), (2 if owner == "attention" else 1): columns}
    if (owner, name) == ("embedding", "tokens"):
        return {0: blocks.table, 1: blocks.stream.width}
    if name in INNER:
        return {0: heads if name in OF_KEYS else blocks.inner.width}
    if name in OF_HEADS or owner not in ("embedding", "attention", "mlp", "attention_norm", "mlp_norm", "norm"):
        return {}
    return {int(name == "positions"): blocks.stream.width}
