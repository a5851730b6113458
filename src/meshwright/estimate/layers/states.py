"""Optimizer states and weights of one layer where its parameters do not all have the same: what each has more, or less.

Most optimizers keep as many bytes of every parameter, and memory and update follow from the number of parameters. What
depends on the shapes of matrices, or on whether a parameter is a matrix of a layer at all, is added here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers import mixing
from meshwright.kernels import collectives, compute
from meshwright.kernels.lines import group_span
from meshwright.shapes import Array, Float, Rows
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork, Linear, Vector
from meshwright.specs.optimizers.base import Matrix, MatrixProduct
from meshwright.specs.workload import Workload
from meshwright.strategies import TENSORS
from meshwright.strategies.base import LocalGemm
from meshwright.strategies.columns import StrategyColumns, full_width, local_units
from meshwright.strategies.data import Z1, Z2, ShardingColumns

# Of the fp32 peak that decompositions reach. Source: singular values of all gradients of Llama-7B, 4.7e14 FLOP as
# counted in `galore`, take some ten minutes on an A100; Zhang et al. 2024, Q-GaLore (arXiv 2407.08296), section 1.
DECOMPOSITION_SHARE = 0.04
# Bytes of an element of a momentum on its way between tensor ranks. Source: Megatron-LM, muon_tp_mode duplicated, 2026.
GATHERED_BYTES = 2.0


@dataclass(slots=True)
class Extras:
    """What rows have beyond what the number of parameters says; negative where less."""

    dense_state_bytes: Rows
    """Optimizer states of one model-parallel rank, unsharded."""
    expert_state_bytes: Rows
    dense_update_s: Rows
    """Update of all of them on one rank."""
    expert_update_s: Rows
    dense_weight_bytes: Rows
    """Weights kept in 16 bits where those of layers are in 8, or have 8-bit copies beside them."""
    expert_weight_bytes: Rows
    dense_payload: Rows
    """Bytes of compressed gradients that a rank sends at once."""
    expert_payload: Rows
    statistics_s: Rows
    """Statistics that the optimizer takes of a micro-batch."""
    dense_refresh_s: Rows
    """What part of an update's work no update waits for, of all parameters on one rank."""
    expert_refresh_s: Rows
    dense_statistics: Rows
    """Bytes of statistics that data ranks sum once a step."""
    expert_statistics: Rows

    @classmethod
    def nothing(cls, rows: int) -> Extras:
        """All as the number of parameters says."""
        return cls(*(np.zeros(rows) for _ in fields(cls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Parameters that the workers of plans hold, and what these have beyond their number."""

    dense_parameters: Float[np.ndarray, "plans workers"]
    expert_parameters: Float[np.ndarray, "plans workers"]
    dense_tensors: Float[np.ndarray, "plans workers"]
    """Parameter tensors that are trained."""
    expert_tensors: Float[np.ndarray, "plans workers"]
    replicated_parameters: Float[np.ndarray, "plans workers"]
    """Dense parameters whose gradients are summed over tensor ranks."""
    frozen_dense_bytes: Float[np.ndarray, "plans workers"]
    """Bytes of dense weights that are not trained, as they are stored."""
    frozen_expert_bytes: Float[np.ndarray, "plans workers"]
    dense_state_bytes: Float[np.ndarray, "plans workers"]
    """State bytes beyond what follows from the number of parameters, as in `Extras`; so are the twelve fields below."""
    expert_state_bytes: Float[np.ndarray, "plans workers"]
    dense_update_s: Float[np.ndarray, "plans workers"]
    expert_update_s: Float[np.ndarray, "plans workers"]
    dense_weight_bytes: Float[np.ndarray, "plans workers"]
    expert_weight_bytes: Float[np.ndarray, "plans workers"]
    dense_payload: Float[np.ndarray, "plans workers"]
    expert_payload: Float[np.ndarray, "plans workers"]
    statistics_s: Float[np.ndarray, "plans workers"]
    dense_refresh_s: Float[np.ndarray, "plans workers"]
    expert_refresh_s: Float[np.ndarray, "plans workers"]
    dense_statistics: Float[np.ndarray, "plans workers"]
    expert_statistics: Float[np.ndarray, "plans workers"]


HELD = tuple(f.name for f in fields(HeldParameters))
TENSORS_HELD = ("dense_tensors", "expert_tensors")
EXTRA_SECONDS = ("dense_update_s", "expert_update_s")
EXTRA_BYTES = tuple(f.name for f in fields(Extras) if f.name.endswith("_bytes"))


def has_extras(model: ModelSpec, workload: Workload) -> bool:
    """Whether any parameter of a job has more or less than the others."""
    precision = workload.precision
    if any(layer.wide for layer in model.kinds()) and precision.weight_cache_bytes:
        return True
    if precision.bytes_of("weights") < precision.bytes_of("activations"):
        return True
    kind = workload.update
    moment = precision.bytes_of("moments")
    return workload.training and (kind.matrices or kind.table_bytes(moment) != kind.each_bytes(moment))


def extras(
    work: LayerWork, columns: StrategyColumns, hardware: Hardware, workload: Workload, *, edge: bool, quantised: bool
) -> Extras:
    """What the parameters of a layer have beyond their number.

    A fused product of several matrices counts as these, one for each entry of its outputs; keys with values, and gate
    with up projection, are one matrix each.

    Args:
        work: its operators.
        columns: strategies, one per row.
        hardware: the device and its links.
        workload: formats and optimizer.
        edge: embedding or head.
        quantised: whether its products run in the compute format.

    Returns:
        Bytes and seconds per row.
    """
    found = Extras.nothing(columns.rows)
    for op in work.ops:
        if not isinstance(op, (Linear, Vector)) or not op.trained:
            continue
        if isinstance(op, Linear):
            if op.experts:
                from meshwright.strategies import expert  # dense layers have none

                local = expert.shard_experts(op, columns, work.top_k)
            else:
                local = TENSORS[columns.tensor].linear(op, columns, 0.0)
            if columns.compression is not None:
                _compressed(found, op, local, columns, workload)
            if edge or not quantised or work.wide:
                _add_weights(found, local, _wide_bytes(hardware, workload, edge=edge))
            _matrices(found, op, local, columns, hardware, workload, edge=edge)
        else:
            sharing = TENSORS[columns.tensor].weight_ranks(columns.tp)
            held = op.parameters + op.cut_parameters / sharing
            if columns.compression is not None:
                # Norms and biases, which no compression takes for a matrix.
                add_payload(found, columns, workload, 1.0, held, expert=False)
            if op.table:
                rows, width = op.table
                local_rows = local_units(rows, sharing)
                held = held + local_rows * width
                if columns.compression is not None:
                    add_payload(found, columns, workload, local_rows, width, expert=False)
                _table(found, Matrix(rows=local_rows, columns=width, whole_rows=rows, whole_columns=width), workload)
            found.dense_weight_bytes = found.dense_weight_bytes + _wide_bytes(hardware, workload, edge=True) * held
    return found


def shared_update_s(dense_s: Array, expert_s: Array, sharding: ShardingColumns) -> Array:
    """Seconds of a rank's share of updates: whole matrices are dealt out to the ranks that share states.

    Args:
        dense_s: the dense seconds of all matrices of one model-parallel rank.
        expert_s: the seconds of its experts' matrices.
        sharding: the data-parallel choice.
    """
    one = np.ones(np.shape(sharding.shard))
    dense = dense_s * np.where(sharding.zero >= Z1, 1.0 / sharding.shard, one)
    experts = expert_s * np.where(sharding.zero >= Z1, 1.0 / sharding.expert_shard, one)
    return np.asarray((dense + experts) * (1.0 - sharding.offload_optimizer))


def tensor_updates_s(
    dense: Array, experts: Array, sharding: ShardingColumns, hardware: Hardware, workload: Workload
) -> Array:
    """Host time of a rank to update its tensors one by one.

    Ranks that share states deal out whole stretches of the parameters, so that each has its share of the tensors; where
    weights are shared too, each holds a piece of every tensor.

    Args:
        dense: parameter tensors of one model-parallel rank.
        experts: parameter tensors of its experts.
        sharding: the data-parallel choice.
        hardware: the hardware with the host time of one.
        workload: says whether anything is updated.
    """
    dealt = (sharding.zero == Z1) | (sharding.zero == Z2)
    count = dense * np.where(dealt, 1.0 / sharding.shard, 1.0)
    count = count + experts * np.where(dealt, 1.0 / sharding.expert_shard, 1.0)
    each_s = hardware.software.tensor_s * workload.training
    return np.asarray(count * each_s * (1.0 - sharding.offload_optimizer))


def minus(one: Extras, other: Extras) -> Extras:
    """The difference of two."""
    return Extras(*(getattr(one, f.name) - getattr(other, f.name) for f in fields(Extras)))


def _wide_bytes(hardware: Hardware, workload: Workload, *, edge: bool) -> float:
    """Bytes of a weight kept in the format of activations, beyond one of a layer: 8 bits alone, or with 8-bit copies.

    Embedding, head and norms have none, but recipes with copies count them as frameworks do, for every parameter.
    """
    precision = workload.precision
    narrow, wide = precision.bytes_of("weights"), precision.bytes_of("activations")
    if edge and narrow >= wide:
        return 0.0
    return max(wide - narrow, 0.0) - precision.cached_bytes(any_order=hardware.any_operand_order)


def _add_weights(found: Extras, local: LocalGemm, each_bytes: float) -> None:
    """Bytes for every parameter of a product."""
    if local.expert:
        found.expert_weight_bytes = found.expert_weight_bytes + each_bytes * local.parameters
    else:
        found.dense_weight_bytes = found.dense_weight_bytes + each_bytes * local.parameters


def _compressed(found: Extras, op: Linear, local: LocalGemm, columns: StrategyColumns, workload: Workload) -> None:
    """Compressed gradients of the matrices of one product, each sent for itself."""
    width, count = full_width(op.outputs), local.groups if local.expert else 1.0
    for units, size in op.outputs:
        part = local.n * (units * size / width)
        add_payload(found, columns, workload, local.k, part, expert=local.expert, times=count)


def add_payload(
    found: Extras,
    columns: StrategyColumns,
    workload: Workload,
    rows: Array | float,
    width: Array | float,
    *,
    expert: bool,
    times: Array | float = 1.0,
) -> None:
    """Bytes that ranks send of the gradient of a matrix, where their plan compresses it.

    Args:
        found: gets them.
        columns: the columns with the compressions.
        workload: formats.
        rows: the rows of the matrix, on a rank.
        width: the columns of the matrix, on a rank.
        expert: whether experts have it.
        times: such matrices.
    """
    from meshwright.strategies.compression import chosen  # few plans have one

    assert columns.compression is not None
    sent: Array = np.zeros(columns.rows)
    for word in np.unique(columns.compression):
        if one := chosen(str(word)):
            size = one.kind.payload_bytes(rows, width, one.setting, workload.precision.bytes_of("reduce"))
            sent = sent + np.asarray(times * size) * (columns.compression == word)
    if expert:
        found.expert_payload = found.expert_payload + sent
    else:
        found.dense_payload = found.dense_payload + sent


def _table(found: Extras, matrix: Matrix, workload: Workload) -> None:
    """A lookup table: a matrix to optimizers that treat those of the edges so, else as they say."""
    if not workload.training:
        return
    kind, moment = workload.update, workload.precision.bytes_of("moments")
    each = kind.each_bytes(moment) * matrix.elements
    held = kind.matrix_bytes(matrix, moment) if kind.edges else kind.table_bytes(moment) * matrix.elements
    found.dense_state_bytes = found.dense_state_bytes + (held - each)


def _matrices(
    found: Extras,
    op: Linear,
    local: LocalGemm,
    columns: StrategyColumns,
    hardware: Hardware,
    workload: Workload,
    *,
    edge: bool,
) -> None:
    """States and update of the matrices of one product."""
    kind, moment = workload.update, workload.precision.bytes_of("moments")
    if not workload.training or not kind.matrices or (edge and not kind.edges):
        return
    count = columns.local_experts(op.experts) if local.expert else 1.0
    whole_rows, width = full_width(op.inputs), full_width(op.outputs)
    bytes_: Array = np.zeros(columns.rows)
    seconds: Array = np.zeros(columns.rows)
    statistics_s: Array = np.zeros(columns.rows)
    refresh_s: Array = np.zeros(columns.rows)
    summed: Array = np.zeros(columns.rows)
    for units, size in op.outputs:
        share = units * size / width
        matrix = Matrix(rows=local.k, columns=local.n * share, whole_rows=whole_rows, whole_columns=float(units * size))
        each = kind.each_bytes(moment) * matrix.elements
        bytes_ = bytes_ + count * (kind.matrix_bytes(matrix, moment) - each)
        moved = count * (kind.moved_bytes(matrix, moment) - 2 * each)
        seconds = seconds + moved / hardware.achieved_memory_bytes_per_s
        for product in kind.products(matrix):
            seconds = seconds + product.times * count * _product_s(product, hardware, workload)
        for product in kind.statistics(matrix, local.m):
            statistics_s = statistics_s + product.times * local.groups * _product_s(product, hardware, workload)
        for product in kind.refresh(matrix):
            refresh_s = refresh_s + product.times * count * _product_s(product, hardware, workload)
        summed = summed + count * kind.statistics_bytes(matrix)
        flop = count * np.asarray(kind.decomposition_flop(matrix))
        seconds = seconds + flop / (DECOMPOSITION_SHARE * hardware.scalar_flop_per_s)
        if kind.whole and not local.expert:
            seconds = seconds + _gather_s(matrix, columns, hardware)
    found.statistics_s = found.statistics_s + statistics_s
    if local.expert:
        found.expert_state_bytes = found.expert_state_bytes + bytes_
        found.expert_update_s = found.expert_update_s + seconds
        found.expert_refresh_s = found.expert_refresh_s + refresh_s
        found.expert_statistics = found.expert_statistics + summed
    else:
        found.dense_state_bytes = found.dense_state_bytes + bytes_
        found.dense_update_s = found.dense_update_s + seconds
        found.dense_refresh_s = found.dense_refresh_s + refresh_s
        found.dense_statistics = found.dense_statistics + summed


def _product_s(product: MatrixProduct, hardware: Hardware, workload: Workload) -> Array:
    """Seconds of one product of an update."""
    efficiency = hardware.efficiency
    peak, fraction = hardware.head_flop_per_s, hardware.head_fraction
    if product.fp32:
        peak, fraction = hardware.scalar_flop_per_s, efficiency.product_fraction(4.0) * hardware.software.product_share
    size = 4.0 if product.fp32 else workload.precision.bytes_of("activations")
    seconds = compute.gemm_s(
        np.asarray(product.m, dtype=float),
        np.asarray(product.n, dtype=float),
        np.asarray(product.k, dtype=float),
        roof=compute.Roof(
            peak_flop_per_s=peak,
            max_fraction=fraction,
            memory_bytes_per_s=hardware.achieved_memory_bytes_per_s,
            launch_s=efficiency.launch_s,
        ),
        tiles=mixing.tiles(hardware, "fp32" if product.fp32 else workload.precision.activations),
        input_bytes=size,
        output_bytes=size,
    )
    return np.asarray(seconds)


def _gather_s(matrix: Matrix, columns: StrategyColumns, hardware: Hardware) -> Rows:
    """Tensor ranks that hold parts of a matrix give them to each other."""
    cut = np.asarray(matrix.whole_rows * matrix.whole_columns > matrix.elements)
    inside = group_span(np.ones(columns.rows, dtype=np.int64), columns.tp, hardware.domain_sizes)
    size = np.asarray(matrix.whole_rows * matrix.whole_columns * GATHERED_BYTES * cut, dtype=float)
    return np.asarray(collectives.all_gather_s(size + np.zeros(columns.rows), inside=inside, rates=hardware.rates))
