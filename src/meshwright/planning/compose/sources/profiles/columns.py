"""Pipeline shapes as columns: for each sequence of stages the split of layers with the least bottleneck.

    stage i with n_i middle layers takes w_i n_i + f_i;  the least tau with  sum floor((tau - f_i) / w_i) >= layers

by bisection over all sequences at once, under a limit of layers per stage from memory at its place in the pipeline
(stage i of S keeps S - i micro-batches) and from the parameters it may hold, which is what its gradients cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import PipelineShape, StageShape
from meshwright.planning.compose.sources.profiles.stage_kinds import StageCosts, StageKinds
from meshwright.planning.compose.sources.profiles.stage_sequences import devices_by_kind
from meshwright.shapes import Bool, Float, Int

_STEPS = 24
"""Halvings of the bottleneck's interval: 1e-7 of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeColumns:
    """One row per pipeline shape."""

    sequences_per_s: Float[np.ndarray, "rows"]
    most_sequences_per_s: Float[np.ndarray, "rows"]
    """Sequences per second if every layer were as quick as the quickest of the middle: no split of these stages does
    more."""
    lost_sequences: Float[np.ndarray, "rows"]
    """What filling the pipeline costs, in sequences it could have done."""
    parameters: Float[np.ndarray, "rows"]
    """Parameters of the fullest stage's layers, before tensor parallelism splits them."""
    least_tp: Int[np.ndarray, "rows"]
    most_tp: Int[np.ndarray, "rows"]
    most_replicas: Int[np.ndarray, "rows"]
    used: Int[np.ndarray, "rows devices"]
    micro_batch: Int[np.ndarray, "rows"]
    stages: Int[np.ndarray, "rows places"]
    """Kinds of stage, -1 behind the last."""
    layers: Int[np.ndarray, "rows places"]

    def __len__(self) -> int:
        return len(self.micro_batch)

    def take(self, rows: Int[np.ndarray, "taken"] | Bool[np.ndarray, "rows"]) -> ShapeColumns:
        """Some of the rows."""
        return ShapeColumns(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def shape(self, row: int, kinds: StageKinds) -> PipelineShape:
        """The pipeline of a row."""
        stages = []
        for kind, layers in zip(self.stages[row], self.layers[row], strict=True):
            if kind >= 0:
                one = kinds.shapes[kind]
                stages.append(StageShape(one.device, one.tp, one.replicas, int(layers)))
        return PipelineShape(int(self.micro_batch[row]), tuple(stages))


def joined_columns(parts: list[ShapeColumns]) -> ShapeColumns:
    """Rows of all parts, places padded to the longest."""
    places = max(part.stages.shape[1] for part in parts)

    def padded(name: str, fill: int) -> Int[np.ndarray, "rows places"]:
        tables = [getattr(part, name) for part in parts]
        wide = [np.pad(t, ((0, 0), (0, places - t.shape[1])), constant_values=fill) for t in tables]
        return np.concatenate(wide)

    rest = [name for name in ShapeColumns.__slots__ if name not in ("stages", "layers")]
    return ShapeColumns(
        stages=padded("stages", -1),
        layers=padded("layers", 0),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in rest},
    )


def split_columns(
    costs: ProfileCosts,
    kinds: StageKinds,
    prices: StageCosts,
    table: Int[np.ndarray, "sequences stages"],
    most_parameters: float,
) -> ShapeColumns | None:
    """The best split of each sequence; None where none is possible.

    Args:
        costs: the model on the cluster.
        kinds: the kinds of stage.
        prices: the prices of one micro-batch.
        table: sequences of one length.
        most_parameters: the most parameters of the unsplit layers of a stage.
    """
    stages = table.shape[1]
    middle = costs.num_layers - sum(costs.ends)
    known = np.isfinite(prices.seconds[:, 1])
    table = table[known[table].all(axis=1)]
    fixed_s = _fixed_s(prices, table)
    least = _least_layers(stages)
    limit = np.minimum(_memory_limit(kinds, prices, table), _parameter_limit(costs, stages, most_parameters))
    possible = (limit >= least).all(axis=1) & (limit.sum(axis=1) >= middle) & np.isfinite(fixed_s).all(axis=1)
    possible &= least.sum() <= middle
    table, fixed_s, limit = table[possible], fixed_s[possible], np.minimum(limit[possible], middle)
    if not len(table):
        return None
    layer_s = prices.seconds[table, 1]
    layers = _split(fixed_s, layer_s, np.broadcast_to(least, table.shape), limit, middle)
    stage_s = fixed_s + layers * layer_s
    slowest_s = stage_s.max(axis=1)
    per_layer = _middle_mean(costs)
    parameters = layers * per_layer
    first, last = costs.ends
    parameters[:, 0] += costs.whole.parameters[:first].sum()
    parameters[:, -1] += costs.whole.parameters[-last:].sum()
    whole = layers.astype(np.int64)
    whole[:, 0] += first
    whole[:, -1] += last
    return ShapeColumns(
        sequences_per_s=prices.micro_batch / slowest_s,
        most_sequences_per_s=prices.micro_batch
        / (slowest_s * (prices.least_share[table].min(axis=1) if stages > 1 else 1)),
        lost_sequences=prices.micro_batch * (stage_s.sum(axis=1) / slowest_s - 1),
        parameters=parameters.max(axis=1),
        least_tp=kinds.tp[table].min(axis=1),
        most_tp=kinds.tp[table].max(axis=1),
        most_replicas=kinds.replicas[table].max(axis=1),
        used=devices_by_kind(kinds, table, len(costs.kinds)),
        micro_batch=np.full(len(table), prices.micro_batch),
        stages=table,
        layers=whole,
    )


def _middle_mean(costs: ProfileCosts) -> float:
    first, last = costs.ends
    return float(costs.whole.parameters[first:-last].mean()) if costs.num_layers > 2 else 1.0


def _least_layers(stages: int) -> Float[np.ndarray, "one stages"]:
    """Middle layers a stage must have: none where it has the embedding or the head."""
    least = np.ones((1, stages))
    least[0, 0] = least[0, -1] = 0
    return least


def _fixed_s(prices: StageCosts, table: Int[np.ndarray, "rows stages"]) -> Float[np.ndarray, "rows stages"]:
    """What a stage takes without middle layers: embedding, head and transfers as `pipeline_pace.moves` counts them."""
    stages = table.shape[1]
    fixed = np.zeros(table.shape)
    fixed[:, 0] += prices.seconds[table[:, 0], 0]
    fixed[:, -1] += prices.seconds[table[:, -1], 2]
    if stages > 1:
        send = prices.send_s[table[:, :-1], table[:, 1:]]
        receive = prices.receive_s[table[:, :-1], table[:, 1:]]
        fixed[:, 0] += send[:, 0] * (2 if stages > 3 else 1)
        fixed[:, -1] += 2 * receive[:, -1]
        fixed[:, 1:-1] += receive[:, :-1] + send[:, 1:]
    return fixed


def _memory_limit(
    kinds: StageKinds, prices: StageCosts, table: Int[np.ndarray, "rows stages"]
) -> Float[np.ndarray, "rows stages"]:
    in_flight = table.shape[1] - np.arange(table.shape[1])
    bytes_ = kinds.state_bytes[table] + in_flight[:, None] * prices.saved_bytes[table]
    room = kinds.room_bytes[table].copy()
    room[:, 0] -= bytes_[:, 0, 0]
    room[:, -1] -= bytes_[:, -1, 2]
    return np.floor(room / bytes_[:, :, 1])


def _parameter_limit(costs: ProfileCosts, stages: int, most_parameters: float) -> Float[np.ndarray, "one stages"]:
    room = np.full((1, stages), most_parameters)
    first, last = costs.ends
    room[0, 0] -= costs.whole.parameters[:first].sum()
    room[0, -1] -= costs.whole.parameters[-last:].sum()
    return np.floor(room / _middle_mean(costs))


def _split(
    fixed_s: Float[np.ndarray, "rows stages"],
    layer_s: Float[np.ndarray, "rows stages"],
    least: Float[np.ndarray, "rows stages"],
    limit: Float[np.ndarray, "rows stages"],
    middle: int,
) -> Float[np.ndarray, "rows stages"]:
    """Middle layers of each stage: least bottleneck, and under it as many as possible on the quickest stages."""

    def fitting(bottleneck_s: Float[np.ndarray, "rows"]) -> Float[np.ndarray, "rows stages"]:
        layers = np.floor((bottleneck_s[:, None] - fixed_s) / layer_s + 1e-9)
        return np.maximum(least, np.minimum(limit, layers))

    low = (fixed_s + least * layer_s).max(axis=1)
    high = (fixed_s + limit * layer_s).max(axis=1)
    high = np.where(fitting(low).sum(axis=1) >= middle, low, high)
    for _ in range(_STEPS):
        between = (low + high) / 2
        enough = fitting(between).sum(axis=1) >= middle
        high, low = np.where(enough, between, high), np.where(enough, low, between)
    layers = fitting(high)
    surplus = layers.sum(axis=1) - middle
    rows = np.arange(len(layers))
    for stage in np.argsort(-layer_s, axis=1, kind="stable").T:
        given = np.minimum(surplus, layers[rows, stage] - least[rows, stage])
        layers[rows, stage] -= given
        surplus -= given
    return layers
