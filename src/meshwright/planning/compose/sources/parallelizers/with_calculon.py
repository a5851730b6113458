"""Calculon behind the seam: its model prices a slice on an island at every tensor and data degree.

Calculon knows equal dense layers only, and neither embedding nor head: the product with the vocabulary is added at
the system's matrix rate, and the tables at the bytes its layers' weights take.

Source: Isaev et al., "Calculon: a methodology and tool for high-level codesign of systems and large language models",
SC 2023; the model as in `meshwright.calculon`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, EfficiencyCurve, Memory, Network, Rate, System
from meshwright.calculon.model import price
from meshwright.calculon.statistics import CalculonColumns
from meshwright.errors import Problem, UnsupportedError
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import Island, NodeGroup
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.model import LayerSpec
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload

_DATATYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8"}
_VECTOR_SHARE = 1 / 8
"""Peak of vector units as a share of the matrix engine's; vector work waits for memory.

Source: data sheets of A100 (78 of 312) and H100 (134 of
989 TFLOP/s) lie just above."""
_OPERATIONS = {
    "p2p": (1.0, 0.0), "reduce_scatter": (1.0, -1.0), "all_gather": (1.0, -1.0), "all_reduce": (2.0, -1.0),
}  # fmt: skip
"""Bytes sent are size x scalar x (1 + offset / group): rings."""
_RECOMPUTES = {"full": "full", "attn_only": "sel", "none": "none"}
_FULL_SIZE = EfficiencyCurve(thresholds=(0.0,), efficiencies=(1.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculon:
    """Calculon as a parallelizer of equal devices."""

    name: str = "calculon"
    every_size: bool = True

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """All executions that hold one micro-batch; arguments as `Parallelizer.plan`.

        None is dropped because another claims less: where attention runs fused, recomputing it costs nothing here.

        Raises:
            UnsupportedError: layers that Calculon does not know, or a datatype without a rate.
        """
        if not part.num_layers:
            return []
        app, system = _application(part, workload), _system(island.group, workload.precision.compute)
        columns = _executions(app, system, island, workload, micro_batch)
        if columns is None:
            return []
        answer = price(app, system, columns)
        # What does not fit with one micro-batch in flight fits nowhere.
        rows = np.flatnonzero(answer.ok)
        if not len(rows):
            return []
        costs = _costs(answer, columns, part, system, workload, micro_batch)
        return [_partial(costs, row, columns, part, micro_batch) for row in rows.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """One row per execution."""

    devices: Int[np.ndarray, "rows"]
    forward_s: Float[np.ndarray, "rows"]
    backward_s: Float[np.ndarray, "rows"]
    sync_s: Float[np.ndarray, "rows"]
    state_bytes: Float[np.ndarray, "rows"]
    activation_bytes: Float[np.ndarray, "rows"]


def _application(part: ModelSlice, workload: Workload) -> Application:
    """The slice as Calculon's application.

    Raises:
        UnsupportedError: several kinds of layer, experts, latent or windowed attention.
    """
    kinds = [layer for layer, _ in part.layers]
    problems = [
        Problem(what=f"Calculon has no {what}", why="it knows equal dense layers only", field="layers")
        for what in dict.fromkeys(itertools.chain.from_iterable(map(_unknown, kinds)))
    ]
    if len(set(kinds)) > 1:
        problems.append(Problem(what="the slice holds several kinds of layer", why="Calculon's blocks are equal"))
    if problems:
        raise UnsupportedError(problems, code="MW406")
    layer = kinds[0]
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, Attention)  # others are refused above
    assert isinstance(mlp, DenseMlp)
    return Application(
        name=part.model.name,
        hidden=part.model.hidden,
        feedforward=mlp.ffn_hidden,
        seq_size=workload.seq_len,
        attn_heads=attention.heads,
        attn_size=attention.head_dim,
        num_blocks=part.num_layers,
        structure_type="llama" if mlp.gated else "gpt",
        kv_heads=attention.kv_heads,
    )


def _unknown(layer: LayerSpec) -> Iterator[str]:
    if layer.residuals > 1:
        yield "copies of the residual stream"
    if layer.residual_blocks:
        yield "attention to outputs of earlier blocks"
    if not isinstance(layer.mlp, DenseMlp):
        yield "experts" if layer.mlp.routed_experts else f"feed-forward parts of the kind {layer.mlp.kind!r}"
    if isinstance(layer.attention, LatentAttention):
        yield "latent attention"
    elif not isinstance(layer.attention, Attention):
        yield f"mixers of the kind {layer.attention.kind!r}"
    elif layer.attention.window:
        yield "windowed attention"


@lru_cache(maxsize=64)
def _system(group: NodeGroup, compute: str) -> System:
    """A group's devices and domains as Calculon's system.

    Raises:
        UnsupportedError: the device has no rate in the datatype.
    """
    device, efficiency = group.device, group.device.efficiency
    peak = device.peak(compute)
    if peak is None or compute not in _DATATYPES:
        what, why = f"{device.name} has no rate in {compute}", "Calculon prices matrix work at it"
        raise UnsupportedError(what=what, why=why, field="dtype", code="MW406")
    datatype = _DATATYPES[compute]
    fraction = efficiency.gemm_fraction_fp8 if DTYPE_BYTES[compute] < 2 else efficiency.gemm_fraction
    memory = Rate(peak=device.memory_bandwidth_bytes_per_s * efficiency.memory_fraction, curve=_FULL_SIZE)
    networks = [
        Network(
            bandwidth_bytes_per_s=domain.bandwidth_bytes_per_s,
            efficiency=domain.efficiency,
            size=domain.size,
            latency_s=domain.latency_s,
            must_be_filled=False,
            processor_usage=1 - 1 / efficiency.overlap_slowdown,
            operations=_OPERATIONS,
        )
        for domain in group.domains
    ]
    return System(
        name=group.name,
        matrix={datatype: Rate(peak=peak * fraction, curve=_FULL_SIZE)},
        vector={datatype: Rate(peak=peak * _VECTOR_SHARE, curve=_FULL_SIZE)},
        mem1=Memory(capacity_bytes=device.memory_bytes - efficiency.context_bytes, rate=memory),
        mem2=Memory(capacity_bytes=0.0, rate=Rate(peak=device.host_bandwidth_bytes_per_s, curve=_FULL_SIZE)),
        processing_mode="roofline",
        networks=tuple(networks),
    )


def _executions(
    app: Application, system: System, island: Island, workload: Workload, micro_batch: int
) -> ExecutionColumns | None:
    """Every number of devices, tensor degree within a node, data degree of the micro-batch, and setting."""
    per_node = island.group.devices_per_node
    degrees = [
        (tp, dp)
        for dp in range(1, min(micro_batch, island.devices) + 1)
        if micro_batch % dp == 0
        for tp in range(1, min(per_node, island.devices // dp) + 1)
        if app.attn_heads % tp == 0 and per_node % tp == 0
    ]
    sizes = [network.size for network in system.networks]
    settings = itertools.product(("full", "attn_only", "none"), (False, True), ("ar", "rs_ag"))
    rows: list[dict[str, Any]] = [
        {
            "num_procs": tp * dp,
            "tensor_par": tp,
            "data_par": dp,
            "tensor_par_net": _tier(sizes, tp),
            "data_par_net": _tier(sizes, tp * dp),
            "microbatch_size": micro_batch // dp,
            "activation_recompute": recompute,
            "optimizer_sharding": sharded,
            "tensor_par_comm_type": comm,
            "data_par_overlap": dp > 1,
        }
        for recompute, sharded, comm in settings
        for tp, dp in degrees
        if (dp > 1 or not sharded) and (tp > 1 or comm == "ar")
    ]
    if not rows:
        return None
    fixed = {
        "pipeline_par": 1,
        "pipeline_par_net": 0,
        "batch_size": micro_batch,
        "datatype": _DATATYPES[workload.precision.compute],
        "fused_activation": True,
        "attention_type": "flash" if workload.attention_kernel == "flash" else "grouped",
        "pipeline_interleaving": 1,
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    return ExecutionColumns.of(fixed | {name: [row[name] for row in rows] for name in rows[0]})


def _tier(sizes: list[int], span: int) -> int:
    """The smallest network that holds so many devices."""
    return next((i for i, size in enumerate(sizes) if size >= span), len(sizes) - 1)


def _costs(
    answer: CalculonColumns,
    columns: ExecutionColumns,
    part: ModelSlice,
    system: System,
    workload: Workload,
    micro_batch: int,
) -> _Costs:
    """What Calculon says of one micro-batch, and the vocabulary that it does not price."""
    layers, tp = part.num_layers, columns.tensor_par
    forward = answer["block_fw_time"] + answer["baseblock_fw_tp_time_exposed"]
    backward = sum(
        answer[name]
        for name in (
            *("block_agrad_time", "block_wgrad_time", "baseblock_agrad_tp_time_exposed"),
            *("block_re_time", "baseblock_recomm_time_exposed"),
        )
    )
    tokens = columns.microbatch_size * workload.seq_len
    (rate,) = system.matrix.values()
    words = part.model.head_parameters or part.model.hidden * part.model.vocab
    head_s = 2.0 * words * tokens / (tp * rate.peak) if part.head else np.zeros(columns.rows)
    state = answer["weight_space"] + answer["weight_grad_space"] + answer["optimizer_space"] + answer["act_grad_space"]
    block = part.layers[0][0].parameters(part.model.hidden) * layers / tp
    tables = part.model.embedding_parameters * part.embedding + words * part.head
    per_weight = (state - answer["act_grad_space"]) / block
    return _Costs(
        devices=columns.num_procs,
        forward_s=layers * forward + head_s,
        backward_s=layers * backward + 2 * head_s,
        sync_s=answer["dp_comm_exposed_time"] + answer["optim_step_time"],
        state_bytes=state + per_weight * tables / tp,
        activation_bytes=answer["act_space"] + answer["act_checkpoint_size"],
    )


def _partial(costs: _Costs, row: int, columns: ExecutionColumns, part: ModelSlice, micro_batch: int) -> PartialPlan:
    one = columns.row(row)
    strategy = PlanRow(
        tp=one.tensor_par,
        sp=one.tensor_par_comm_type != "ar",
        dp=one.data_par,
        sharding="z1" if one.optimizer_sharding else "z0",
        mbs=one.microbatch_size,
        gbs=micro_batch,
        recompute=_RECOMPUTES[one.activation_recompute],
    ).strategy()
    return PartialPlan(
        devices=int(costs.devices[row]),
        micro_batch=micro_batch,
        forward_s=float(costs.forward_s[row]),
        backward_s=float(costs.backward_s[row]),
        sync_s=float(costs.sync_s[row]),
        state_bytes=float(costs.state_bytes[row]),
        activation_bytes=float(costs.activation_bytes[row]),
        strategies=(strategy,),
        runs=(StrategyRun(layers=part.num_layers, strategy=0),),
    )
