"""The price of one transformer block and of its optimizer step, once per distinct block.

Everything here is one micro-batch through one block on one processor. How blocks make a batch is in `batch`.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.block_layers import block_layers
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import (
    DATATYPE_BYTES,
    FULL,
    NO_OVERLAP,
    Application,
    System,
)
from meshwright.calculon.layer_times import Engines, LayerPricer
from meshwright.calculon.layers import (
    ADAM_FLOP_PER_WEIGHT,
    MASTER_BYTES,
    BlockKeys,
    Layer,
    optimizer_bytes_per_weight,
)
from meshwright.search.distinct import Distinct, distinct
from meshwright.shapes import Float, Int

BLOCK_KEYS = (
    "tensor_par", "microbatch_size", "datatype", "fused_activation", "attention_type", "activation_recompute",
    "tensor_par_comm_type", "tensor_par_overlap", "seq_par_ag_redo", "training", "tensor_par_net",
)  # fmt: skip
"""Execution keys that the price of a block depends on."""

OPTIMIZER_KEYS = ("tensor_par", "datatype", "attention_type", "overlap", "shards", "training")
"""What the price of a block's optimizer step depends on: whether tensor traffic overlaps, and into how many parts the
optimizer state is sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockColumns:
    """Distinct blocks: the statistics that a block alone decides, and sums that batches are made of."""

    values: Mapping[str, Float[np.ndarray, "blocks"]]
    """Values by name of STATISTICS (those of a block without its optimizer), and flops_fw_agrad_wgrad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerColumns:
    """Distinct optimizer steps of a block."""

    values: Mapping[str, Float[np.ndarray, "optimizers"]]


def distinct_blocks(columns: ExecutionColumns) -> Distinct:
    """The distinct blocks of executions."""
    return distinct(block_values(columns))


def block_values(columns: ExecutionColumns) -> list[np.ndarray]:
    """What makes a block, by BLOCK_KEYS."""
    return [getattr(columns, name) for name in BLOCK_KEYS]


def distinct_optimizers(columns: ExecutionColumns) -> Distinct:
    """The distinct optimizer steps of executions."""
    return distinct(optimizer_values(columns))


def optimizer_values(columns: ExecutionColumns) -> list[np.ndarray]:
    """What makes an optimizer step, by OPTIMIZER_KEYS."""
    return [
        columns.tensor_par,
        columns.datatype,
        columns.attention_type,
        columns.tensor_par_overlap != NO_OVERLAP,
        np.where(columns.optimizer_sharding, columns.data_par, 1),
        columns.training,
    ]


def price_blocks(app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False) -> BlockColumns:
    """The block of every row; give it one row per distinct block."""
    found: dict[str, np.ndarray] = {}
    for rows, layers, keys in _groups(app, columns, fixed=fixed):
        part = columns.take(rows)
        _merge(found, _block(system, part, keys, layers, fixed=fixed), rows, columns.rows)
    return BlockColumns(values=found)


def price_optimizers(
    app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False
) -> OptimizerColumns:
    """The optimizer step of one block of every row; give it one row per distinct step.

    B11: the step moves its state once, neither gradients nor weights, and at the speed of the first tier even when
    offloaded.
    """
    found: dict[str, np.ndarray] = {}
    for rows, layers, keys in _groups(app, columns, fixed=fixed):
        part = columns.take(rows)
        _merge(found, _optimizer(system, part, keys, layers, fixed=fixed), rows, columns.rows)
    return OptimizerColumns(values=found)


def block_keys(columns: ExecutionColumns) -> BlockKeys:
    """What layers depend on, of every row."""
    return BlockKeys(
        tensor_par=columns.tensor_par,
        microbatch=columns.microbatch_size,
        element_bytes=np.asarray(DATATYPE_BYTES, dtype=np.int64)[columns.datatype],
        fused=columns.fused_activation,
        recompute=columns.activation_recompute,
        comm_type=columns.tensor_par_comm_type,
        redo=columns.seq_par_ag_redo,
    )


def _groups(
    app: Application, columns: ExecutionColumns, *, fixed: bool
) -> list[tuple[Int[np.ndarray, "group"], list[Layer], BlockKeys]]:
    """Rows with the same list of layers."""
    overlap = columns.tensor_par_overlap != NO_OVERLAP
    code = columns.attention_type.astype(np.int64) * 2 + overlap
    groups = []
    for one in np.unique(code):
        rows = np.flatnonzero(code == one)
        keys = block_keys(columns.take(rows))
        layers = block_layers(app, keys, overlap=bool(one % 2), attention=int(one // 2), fixed=fixed)
        groups.append((rows, layers, keys))
    return groups


def _merge(found: dict[str, np.ndarray], part: Mapping[str, np.ndarray], rows: np.ndarray, count: int) -> None:
    for name, value in part.items():
        found.setdefault(name, np.zeros(count))[rows] = value


def _optimizer(
    system: System, columns: ExecutionColumns, keys: BlockKeys, layers: list[Layer], *, fixed: bool
) -> dict[str, np.ndarray]:
    engines = Engines(system=system, datatype=columns.datatype)
    shards = np.where(columns.optimizer_sharding, columns.data_par, 1)
    bytes_per_weight = optimizer_bytes_per_weight(keys.element_bytes)
    names = ("flops", "flops_time", "mem_accessed", "mem_time", "time")
    total = {f"block_optim_{name}": np.zeros(columns.rows) for name in names}
    total["block_optimizer_space"] = np.zeros(columns.rows)
    total["block_weight_grad_space"] = np.zeros(columns.rows)
    for layer in layers:
        flop = ADAM_FLOP_PER_WEIGHT * layer.weights / shards
        state_bytes = bytes_per_weight * layer.weights / shards
        compute_s, memory_s = engines.compute_s(flop, matrix=False), engines.memory_s(state_bytes)
        parts = (flop, compute_s, state_bytes, memory_s, engines.join_s(compute_s, memory_s))
        for name, part in zip(names, parts, strict=True):
            total[f"block_optim_{name}"] += part
        total["block_optimizer_space"] += state_bytes
        # B7: gradients are as narrow as weights and sharded; fixed, four bytes and whole as Megatron-LM keeps them.
        total["block_weight_grad_space"] += layer.weights * (MASTER_BYTES if fixed else keys.element_bytes / shards)
    return {name: np.where(columns.training, value, 0.0) for name, value in total.items()}


def _block(
    system: System, columns: ExecutionColumns, keys: BlockKeys, layers: list[Layer], *, fixed: bool
) -> dict[str, np.ndarray]:
    """The sums over the layers, under Calculon's names."""
    pricer = LayerPricer(system, columns, keys, fixed=fixed)
    zeros = np.zeros(columns.rows)
    sums: defaultdict[str, np.ndarray] = defaultdict(lambda: zeros)
    for layer in layers:
        priced = pricer.price(layer)
        for stage, part in priced.stages.items():
            for name, amount in part.amounts().items():
                sums[f"{stage}_{name}"] = sums[f"{stage}_{name}"] + amount
        for name, amount in priced.stages["fw"].amounts().items():
            # B1: a recomputed layer adds the whole block up to and including itself; its time alone is right.
            again = amount if fixed or name == "time" else sums[f"fw_{name}"]
            sums[f"re_{name}"] = sums[f"re_{name}"] + np.where(layer.recomputed, again, 0.0)
        if layer.comm is not None:
            for (direction, block), traffic in priced.traffic.items():
                for name, amount in traffic.amounts().items():
                    sums[f"{block}_{direction}_{name}"] = sums[f"{block}_{direction}_{name}"] + amount
            sums["overlap_req"] = np.maximum(sums["overlap_req"], priced.overlap_req)
        for name, amount in _stored(layer, columns, keys).items():
            sums[name] = sums[name] + amount
    return _statistics(sums, columns, keys)


def _stored(layer: Layer, columns: ExecutionColumns, keys: BlockKeys) -> dict[str, np.ndarray]:
    """What a layer adds to the bytes of a block, and the flop of sums of tensor traffic."""
    dropped = np.where(layer.keeps_output, 0.0, layer.outputs * keys.element_bytes)
    dropped = dropped + np.where(layer.keeps_input, 0.0, layer.kept_bytes)
    summed = layer.comm is not None and not layer.comm.overlapped
    return {
        "weights": layer.weights * keys.element_bytes,
        "no_sharding": layer.weights * MASTER_BYTES,
        "working": layer.kept_bytes * (not layer.reused),
        "storage": layer.kept_bytes - np.where(columns.training, dropped, 0.0),
        "act_grad": layer.grad_bytes,
        "summed": (layer.fw_flop + np.where(columns.training, layer.agrad_flop, 0.0)) * summed,
    }


def _statistics(sums: Mapping[str, np.ndarray], columns: ExecutionColumns, keys: BlockKeys) -> dict[str, np.ndarray]:
    """The sums under Calculon's names; what inference and full recompute leave out is 0."""
    trained = {name: np.where(columns.training, value, 0.0) for name, value in sums.items()}
    found: dict[str, np.ndarray] = {}
    for name in ("flops", "flops_time", "mem_accessed", "mem_time", "time"):
        found[f"block_fw_{name}"] = sums[f"fw_{name}"]
        for stage in ("re", "agrad", "wgrad"):
            found[f"block_{stage}_{name}"] = trained[f"{stage}_{name}"]
    for block in ("base", "edge"):
        found[f"{block}block_fw_tp_time"] = sums[f"{block}_fw_link"]
        found[f"{block}block_fw_tp_time_exposed"] = sums[f"{block}_fw_exposed"]
        found[f"{block}block_fw_tp_size"] = sums[f"{block}_fw_size"]
        found[f"{block}block_agrad_tp_time"] = trained[f"{block}_agrad_link"]
        found[f"{block}block_agrad_tp_time_exposed"] = trained[f"{block}_agrad_exposed"]
        found[f"{block}block_bw_tp_size"] = trained[f"{block}_agrad_size"]
        found[f"{block}block_recomm_time"] = trained[f"{block}_redo_link"]
        found[f"{block}block_recomm_time_exposed"] = trained[f"{block}_redo_exposed"]
        found[f"{block}block_recomm_size"] = trained[f"{block}_redo_size"]
    found["sum_flops"] = sums["summed"]
    found["tp_bw_overlap_req"] = sums["overlap_req"]
    full = columns.activation_recompute == FULL
    found["block_weight_space"] = sums["weights"]
    found["block_act_working_space"] = sums["working"]
    found["block_act_storage_space"] = np.where(full, 0.0, sums["storage"])
    found["block_act_grad_space"] = trained["act_grad"]
    found["block_weight_grad_space_no_sharding"] = trained["no_sharding"]
    return found
