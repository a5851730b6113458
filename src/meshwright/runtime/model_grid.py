"""The grid on which a model of the zoo is written: its own collectives where it has them, else the partitioner's."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from meshwright.compiler.grid import DeviceGrid
from meshwright.runtime.plan_method import grid_of
from meshwright.schedules import schedule_named
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerSpec
from meshwright.specs.row import PlanRow
from meshwright.strategies import TENSORS
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model


def model_grid(row: PlanRow, model: Model, seq_len: int) -> DeviceGrid | None:
    """The grid of a stage's devices, with blocks where the model writes what its tensor, context or expert ranks send.

    Args:
        row: the plan.
        model: the model as one device has it.
        seq_len: tokens of a sample.
    """
    grid = grid_of(row)
    if grid is None or grid.blocks is not None or not isinstance(model, Decoder):
        return grid
    if row.tp == 1 and row.cp_degree == 1 and row.ep * row.etp == 1:
        return grid
    layers = [layer for layer in model.spec.kinds() if _is_shared_evenly(layer, row.tp)]
    whole = schedule_named(row.schedule).sections() == 1
    tokens = row.cp_degree * (row.tp if row.sp or model.spec.is_moe else 1)
    shared = not model.spec.vocab % row.tp and not seq_len % tokens
    if not whole or not shared or len(layers) < len(model.spec.kinds()):
        return grid
    keys = gcd(row.tp, *(layer.attention.kv_heads for layer in layers if isinstance(layer.attention, Attention)))
    blocks = TENSORS[row.tensor].written(row.tp, shares_tokens=row.sp and row.tp > 1, key_ranks=keys)
    if blocks is not None and row.tp_overlap == "halves":
        blocks = replace(blocks, parts=2)
    return grid_of(row, blocks)


def _is_shared_evenly(layer: LayerSpec, tp: int) -> bool:
    """Whether a layer has plain attention, and an MLP or experts behind it, in parts that ranks share evenly."""
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, Attention) or attention.heads % tp:
        return False
    if isinstance(mlp, (DenseMlp, MoeMlp)) and mlp.tensor_width % tp:
        return False
    return attention.kv_heads % tp == 0 or tp % attention.kv_heads == 0
