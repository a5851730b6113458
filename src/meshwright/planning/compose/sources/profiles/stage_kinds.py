"""What one stage can be: a kind of device, a tensor degree, replicas; and what such stages cost, in columns.

Columns rank pipelines with the mean of the middle layers; `set_price` then sums the layers that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.planning.compose.sources.profiles.costs import ELEMENT_BYTES, STATE_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import StageShape
from meshwright.shapes import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKinds:
    """All kinds of stage of a job, and their columns that do not depend on the micro-batch."""

    shapes: tuple[StageShape, ...]
    """Layers left 0."""
    device: Int[np.ndarray, "kinds"]
    """Index of the device kind."""
    tp: Int[np.ndarray, "kinds"]
    replicas: Int[np.ndarray, "kinds"]
    room_bytes: Float[np.ndarray, "kinds"]
    """Memory less what no layer uses."""
    state_bytes: Float[np.ndarray, "kinds places"]
    """One column each for the embedding, a middle layer and the head."""

    @property
    def devices(self) -> Int[np.ndarray, "kinds"]:
        """Devices of a stage."""
        return self.tp * self.replicas


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """Columns of one micro-batch; infinite where the point was not profiled."""

    micro_batch: int
    seconds: Float[np.ndarray, "kinds places"]
    """One column each for the embedding, a middle layer and the head."""
    least_share: Float[np.ndarray, "kinds"]
    """The quickest middle layer over their mean."""
    saved_bytes: Float[np.ndarray, "kinds places"]
    send_s: Float[np.ndarray, "kinds kinds"]
    """Seconds from one kind of stage to another, as the sender pays them."""
    receive_s: Float[np.ndarray, "kinds kinds"]


def stage_kinds(costs: ProfileCosts, most_replicas: int) -> StageKinds:
    """Every kind of stage: profiled degrees inside a node, replicas 1, 2, 4, ...

    Args:
        costs: the model on the cluster.
        most_replicas: the most replicas of one stage.
    """
    names = list(costs.kinds)
    shapes = tuple(
        StageShape(name, tp, replicas, 0)
        for name in names
        for tp in costs.tensor_degrees(name)
        for replicas in (1 << k for k in range(most_replicas.bit_length()))
        if replicas <= most_replicas and tp * replicas <= costs.kinds[name].count
    )
    tp = np.array([shape.tp for shape in shapes], dtype=np.int64)
    state = [STATE_BYTES * _places(costs.profile.sizes[shape.tp].parameters, costs.ends) for shape in shapes]
    return StageKinds(
        shapes=shapes,
        device=np.array([names.index(shape.device) for shape in shapes], dtype=np.int64),
        tp=tp,
        replicas=np.array([shape.replicas for shape in shapes], dtype=np.int64),
        room_bytes=np.array([costs.kinds[s.device].memory_bytes - costs.fixed_bytes(s.tp) for s in shapes]),
        state_bytes=np.array(state),
    )


def stage_costs(costs: ProfileCosts, kinds: StageKinds, micro_batch: int) -> StageCosts:
    """The columns of one micro-batch.

    Args:
        costs: the model on the cluster.
        kinds: the kinds of stage.
        micro_batch: sequences through a pipeline at once.
    """
    count = len(kinds.shapes)
    seconds = np.full((count, 3), np.inf)
    saved = np.full((count, 3), np.inf)
    least = np.ones(count)
    for index, shape in enumerate(kinds.shapes):
        own, rest = divmod(micro_batch, shape.replicas)
        sums = None if rest or not own else costs.sums(shape.device, shape.tp, own)
        if sums is not None:
            each_s = np.diff(sums.seconds)
            seconds[index] = _places(each_s, costs.ends)
            least[index] = _middle(each_s, costs.ends).min() / seconds[index, 1]
            saved[index] = own * ELEMENT_BYTES * _places(costs.profile.sizes[shape.tp].saved_elements, costs.ends)
    send, receive = np.full((count, count), np.inf), np.full((count, count), np.inf)
    boundary = costs.boundary_bytes(max(1, costs.num_layers // 2))
    for i, here in enumerate(kinds.shapes):
        for j, there in enumerate(kinds.shapes):
            transfers = max(here.replicas, there.replicas)
            if not (np.isfinite(seconds[i, 0]) and np.isfinite(seconds[j, 0])):
                continue
            if transfers % here.replicas or transfers % there.replicas or micro_batch % transfers:
                continue
            try:
                one_s = costs.transfer_s(
                    boundary * micro_batch / transfers, (here.device, here.tp), (there.device, there.tp)
                )
            except KeyError:
                continue
            send[i, j], receive[i, j] = transfers // here.replicas * one_s, transfers // there.replicas * one_s
    return StageCosts(
        micro_batch=micro_batch, seconds=seconds, least_share=least, saved_bytes=saved, send_s=send, receive_s=receive
    )


def _places(layers: Float[np.ndarray, "layers"], ends: tuple[int, int]) -> Float[np.ndarray, "places"]:
    """Embedding with what counts with it, the mean of the middle layers, head likewise."""
    first, last = ends
    return np.array([layers[:first].sum(), _middle(layers, ends).mean(), layers[-last:].sum()])


def _middle(layers: Float[np.ndarray, "layers"], ends: tuple[int, int]) -> Float[np.ndarray, "middle"]:
    first, last = ends
    return layers[first:-last] if len(layers) > first + last else layers[:1]
