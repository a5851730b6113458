"""One execution's block layer by layer, under the names of Calculon's layer listing."""

from __future__ import annotations

import numpy as np

from meshwright.calculon.block_layers import block_layers
from meshwright.calculon.blocks import block_keys
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import NO_OVERLAP, Application, Execution, System
from meshwright.calculon.layer_times import Engines, LayerPricer, PricedLayer, Stage
from meshwright.calculon.layers import (
    ADAM_FLOP_PER_WEIGHT,
    BlockKeys,
    Layer,
    optimizer_bytes_per_weight,
)

Value = str | int | float


def layer_list(
    app: Application, system: System, execution: Execution, *, fixed: bool = False
) -> list[dict[str, Value]]:
    """The 48 fields of every layer, in the order in which they run.

    Args:
        app: the application.
        system: the system.
        execution: a legal execution.
        fixed: repair the errors of the original.
    """
    columns = ExecutionColumns.from_executions([execution])
    keys = block_keys(columns)
    overlap = bool(columns.tensor_par_overlap[0] != NO_OVERLAP)
    pricer = LayerPricer(system, columns, keys, fixed=fixed)
    layers = block_layers(app, keys, overlap=overlap, attention=int(columns.attention_type[0]), fixed=fixed)
    shards = execution.data_par if execution.optimizer_sharding else 1
    return [_fields(layer, pricer.price(layer), pricer.engines, keys, shards, fixed=fixed) for layer in layers]


def _fields(
    layer: Layer, priced: PricedLayer, engines: Engines, keys: BlockKeys, shards: int, *, fixed: bool
) -> dict[str, Value]:
    element = int(keys.element_bytes[0])
    found: dict[str, Value] = {
        "name": layer.name,
        "inputs_size": _plain(layer.inputs),
        "outputs_size": _plain(layer.outputs),
    }
    tiles = int(keys.tensor_par[0]) if layer.comm is not None and layer.comm.overlapped else 1
    for stage, traffic, comm in (
        ("fw", "fw", "fw_tp_comm"),
        ("agrad", "agrad", "bw_tp_comm"),
        ("wgrad", "redo", "recomm"),
    ):
        found.update(_stage(stage, priced.stages[stage]))
        sent = {block: priced.traffic[traffic, block] for block in ("base", "edge")}
        for block, one in sent.items():
            found[f"{block}block_{comm}_tile"] = _plain(one.size_bytes / tiles)
        for block, one in sent.items():
            found[f"{block}block_{comm}_size"] = _plain(one.size_bytes)
        for block, one in sent.items():
            found[f"{block}block_{comm}_time"] = _plain(one.link_s)
        for block, one in sent.items():
            shown_s = priced.redo_exposed_s[block] if traffic == "redo" and not fixed else one.exposed_s
            found[f"{block}block_{comm}_time_exposed"] = _plain(shown_s)
    flop = ADAM_FLOP_PER_WEIGHT * layer.weights / shards
    state = optimizer_bytes_per_weight(keys.element_bytes) * layer.weights / shards
    compute_s, memory_s = engines.compute_s(flop, matrix=False), engines.memory_s(state)
    step = Stage(
        flop=flop,
        moved_bytes=state,
        compute_s=compute_s,
        memory_s=memory_s,
        busy_s=engines.join_s(compute_s, memory_s),
    )
    found.update(_stage("optim", step))
    found["weight"] = _plain(layer.weights * element)
    found["activation"] = _plain(layer.kept_bytes)
    found["weight_grad"] = _plain(layer.weights * element / shards)
    found["activation_grad"] = _plain(layer.grad_bytes)
    found["optimizer"] = _plain(state)
    return found


def _stage(name: str, stage: Stage) -> dict[str, Value]:
    moved, flop = float(stage.moved_bytes[0]), float(stage.flop[0])
    return {
        f"{name}_flops": _plain(stage.flop),
        f"{name}_mem_accessed": _plain(stage.moved_bytes),
        f"{name}_arithmetic_intensity": flop / moved if moved else 0.0,
        f"{name}_processing_time": _plain(stage.busy_s),
    }


def _plain(column: np.ndarray) -> int | float:
    value = float(column[0])
    return int(value) if value.is_integer() else value
