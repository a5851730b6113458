"""Strategies of one layer of a stage, priced: tensor or sequence degree, ZeRO stage and recompute.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism" (VLDB
2022), section 4.
"""

from __future__ import annotations

import math

import numpy as np

from meshwright.estimate.data.network import DataGroups, DataNetwork
from meshwright.estimate.data.sync import layer_sync
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import FULL, NONE, SELECTIVE, Item
from meshwright.estimate.memory import COMMUNICATOR_BYTES, TIGHT_SHARE
from meshwright.estimate.rows import sharding_columns, strategy_columns
from meshwright.search.layer_programs import LayerOptions
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies.data import Z1, Z3, state_bytes

RECOMPUTES: tuple[Recompute, ...] = (NONE, SELECTIVE, FULL)


def room_bytes(hardware: Hardware) -> float:
    """What a device has for states, activations and working memory, fragments taken off.

    Args:
        hardware: the hardware of the device.
    """
    limit = hardware.memory_bytes * (1.0 - TIGHT_SHARE)
    software = hardware.software
    return (limit - hardware.efficiency.context_bytes - software.engine_bytes) / (1.0 + software.fragmentation)


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if most % (1 << power) == 0]


def layer_options(
    model: ModelSpec, hardware: Hardware, workload: Workload, devices: int, samples: int, micro_batches: int
) -> LayerOptions | None:
    """Price every strategy of a layer of one stage; None where no data degree divides the samples.

    Args:
        model: the model of layers of one dense kind.
        hardware: the hardware of one device and its links.
        workload: the step.
        devices: the number of devices of the stage.
        samples: the number of samples of a micro-batch, over all data ranks.
        micro_batches: the number of micro-batches of a step.
    """
    kind = model.last_layer()
    strategies = _strategies(model, kind, devices, samples)
    if not strategies:
        return None
    columns = strategy_columns(strategies, np.array([samples / one.dp for one in strategies]), workload)
    items = (*(Item("layer", kind, mode) for mode in RECOMPUTES), Item("embedding"), Item("head"))
    costs = item_costs(items, columns, model, hardware, workload)
    rows = np.arange(len(strategies))
    mode = np.array([RECOMPUTES.index(one.recompute) for one in strategies])
    edges = np.array([len(RECOMPUTES), len(RECOMPUTES) + 1])
    forward_s, backward_s = costs.forward_s[rows, mode], costs.backward_s[rows, mode]
    parameters, nothing = costs.dense_parameters[rows, mode], np.zeros(len(strategies))
    sharding = sharding_columns(strategies)
    network = DataNetwork(
        sharding,
        DataGroups(
            dense_stride=np.array([[one.tp] for one in strategies]),
            expert_stride=np.ones((len(strategies), 1), int),
        ),
        hardware,
    )
    gathered = layer_sync(
        parameters[:, None], nothing[:, None], forward_s[:, None], backward_s[:, None], sharding, network, workload
    )
    reduced = parameters[:, None] * workload.precision.bytes_of("reduce")
    whole = sharding.zero < Z1
    once_s = np.where(whole, network.replica_sum_s(reduced, expert=False), network.scatter_s(reduced, expert=False))
    returned = network.gather_s(parameters[:, None] * workload.precision.gathered_bytes, expert=False)
    once_s = np.where(sharding.zero >= Z3, 0.0, once_s + np.where(whole, 0.0, returned))[:, 0]
    state = state_bytes(
        sharding,
        sharding.shard,
        workload.precision,
        workload.optimizer,
        training=True,
        any_order=hardware.any_operand_order,
    ).total[:, 0]
    sharded = (sharding.zero >= Z3)[:, 0]
    gathered_bytes = 2 * workload.precision.bytes_of("weights") + workload.precision.bytes_of("reduce")
    buffers = COMMUNICATOR_BYTES * np.array([(one.tp > 1) + (one.dp > 1) for one in strategies], dtype=float)
    split = np.array([one.tp * one.cp for one in strategies])
    activation = samples * workload.seq_len * model.hidden * workload.precision.bytes_of("weights")
    return LayerOptions(
        strategies=strategies,
        time_s=forward_s + backward_s + (gathered.forward_s + gathered.backward_s)[:, 0] + once_s / micro_batches,
        forward_s=forward_s + gathered.forward_s[:, 0],
        sync_s=once_s,
        micro_batches=micro_batches,
        edge_s=costs.forward_s[:, edges] + costs.backward_s[:, edges],
        edge_forward_s=costs.forward_s[:, edges],
        state_bytes=state * parameters,
        kept_bytes=costs.kept_bytes[rows, mode],
        transient_bytes=costs.transient_bytes[rows, mode] + sharded * gathered_bytes * parameters + buffers,
        edge_bytes=state[:, None] * costs.dense_parameters[:, edges] + costs.kept_bytes[:, edges],
        group=np.searchsorted(np.unique(split), split),
        # There and back: what a device holds of the activations goes to others.
        move_s=2.0 * activation / devices / float(np.min(hardware.rates[0].bandwidth_bytes_per_s)),
    )


def _strategies(model: ModelSpec, kind: LayerSpec, devices: int, samples: int) -> tuple[LayerStrategy, ...]:
    """Tensor degrees that divide heads and devices, ZeRO stages 1 and 3 (0 on one replica), and recompute."""
    found = []
    heads = getattr(kind.attention, "kv_heads", 0) or math.gcd(*(units for _, units in kind.attention.divided))
    for tp in _powers(devices):
        dp = devices // tp
        if heads % tp or samples % dp:
            continue
        for zero in (1, 3) if dp > 1 else (0,):
            data = DataParallel(shard=dp, zero=zero) if zero else DataParallel(replicate=dp)
            for recompute in RECOMPUTES:
                tensor = Tensor1D(degree=tp, sequence_parallel=tp > 1)
                found.append(LayerStrategy(tensor=tensor, data=data, recompute=recompute))
    return tuple(found)
