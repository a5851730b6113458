"""The pace of one pipeline of a pipeline set: seconds of each stage per micro-batch, bytes of each device.

stage        compute and transfers as Sailor's simulator counts them (`moves`)
replicas     each takes 1/d of the micro-batch; over a cut between d and e of them cross max(d, e) transfers, and
             the side with fewer does several of them in turn

Source: sailor/Planner/simulations/runtime_simulator.py of eth-easl/sailor@cf2c8e3 (Sailor, SOSP 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import PipelineShape, StageShape
from meshwright.planning.compose.sources.profiles.rests import Rests, rests


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePace:
    """What one pipeline takes."""

    stage_s: tuple[float, ...]
    """Seconds of each stage per micro-batch, transfers included."""
    compute_s: tuple[float, ...]
    stage_bytes: tuple[float, ...]
    """Bytes of each stage's devices."""
    update_s: float
    slowest_s: float
    """The bottleneck: one micro-batch leaves per this time."""
    fill_s: float
    """What the first micro-batch takes beyond the bottleneck."""
    cuts: tuple[int, ...]
    """First layer of each stage, then the number of layers."""
    used: tuple[int, ...]
    """Devices of each kind of the cluster."""


class PipelinePacer:
    """Paces of the pipelines of one job; every shape once."""

    def __init__(self, costs: ProfileCosts) -> None:
        self.costs = costs
        self._paces: dict[PipelineShape, PipelinePace | None] = {}
        self._rests: dict[PipelineShape, Rests] = {}

    def pace(self, shape: PipelineShape) -> PipelinePace | None:
        """What a pipeline takes; None where a point was not profiled or a stage does not fit."""
        try:
            return self._paces[shape]
        except KeyError:
            return self._paces.setdefault(shape, self._pace(shape))

    def rests(self, shape: PipelineShape) -> Rests:
        """What a pipeline that can run trains by a time; halves of its micro-batch may end it."""
        if shape not in self._rests:
            pace = self.pace(shape)
            assert pace is not None
            smaller, size = [], shape.micro_batch
            while size % 2 == 0:
                size //= 2
                own = self.pace(PipelineShape(size, shape.stages))
                if own is not None and own.fill_s <= pace.fill_s:
                    smaller.append((size, own.slowest_s))
            self._rests[shape] = rests(shape.micro_batch, pace.slowest_s, pace.fill_s, smaller)
        return self._rests[shape]

    def _pace(self, shape: PipelineShape) -> PipelinePace | None:
        stages, cuts = shape.stages, shape.cuts
        if cuts[-1] != self.costs.num_layers or any(shape.micro_batch % stage.replicas for stage in stages):
            return None
        compute_s, update_s, stage_bytes = [], 0.0, []
        for index, stage in enumerate(stages):
            micro_batch = shape.micro_batch // stage.replicas
            sums = self.costs.sums(stage.device, stage.tp, micro_batch)
            if sums is None or stage.layers < 1:
                return None
            here = slice(cuts[index], cuts[index + 1] + 1, stage.layers)
            state, saved = self.costs.state_bytes(stage.tp)[here], self.costs.saved_bytes(stage.tp)[here]
            in_flight = micro_batch * (len(stages) - index)
            used = state[1] - state[0] + in_flight * (saved[1] - saved[0]) + self.costs.fixed_bytes(stage.tp)
            if used > self.costs.kinds[stage.device].memory_bytes:
                return None
            stage_bytes.append(float(used))
            seconds = sums.seconds[here]
            compute_s.append(float(seconds[1] - seconds[0]))
            update_s = max(update_s, float(sums.update_s[cuts[index]]))
        moving_s = self._moving(shape)
        if moving_s is None:
            return None
        stage_s = tuple(compute + moving for compute, moving in zip(compute_s, moving_s, strict=True))
        return PipelinePace(
            stage_s=stage_s,
            compute_s=tuple(compute_s),
            stage_bytes=tuple(stage_bytes),
            update_s=update_s,
            slowest_s=max(stage_s),
            fill_s=sum(stage_s) - max(stage_s),
            cuts=cuts,
            used=tuple(shape.devices(name) for name in self.costs.kinds),
        )

    def _moving(self, shape: PipelineShape) -> list[float] | None:
        """What each stage pays for transfers, as `moves` counts them; None where replicas do not nest."""
        stages = shape.stages
        if len(stages) == 1:
            return [0.0]
        send_s, receive_s = [], []
        for cut, (here, there) in zip(shape.cuts[1:], pairwise(stages), strict=False):
            across = self.cut_s(here, there, shape.micro_batch, cut)
            if across is None:
                return None
            send_s.append(across[0])
            receive_s.append(across[1])
        return moves(send_s, receive_s)

    def cut_s(self, here: StageShape, there: StageShape, micro_batch: int, cut: int) -> tuple[float, float] | None:
        """Seconds in which each side passes one micro-batch over a cut.

        Args:
            here: sending stage.
            there: receiving stage.
            micro_batch: the micro-batch of the pipeline.
            cut: first layer of the receiving stage.
        """
        transfers = max(here.replicas, there.replicas)
        if transfers % here.replicas or transfers % there.replicas or micro_batch % transfers:
            return None
        payload = self.costs.boundary_bytes(cut) * micro_batch / transfers
        one_s = self.costs.transfer_s(payload, (here.device, here.tp), (there.device, there.tp))
        return transfers // here.replicas * one_s, transfers // there.replicas * one_s


def moves(send_s: list[float], receive_s: list[float]) -> list[float]:
    """What each stage pays for its transfers per micro-batch.

    Args:
        send_s: seconds in which the stage before each cut passes one micro-batch on.
        receive_s: seconds in which the stage behind each cut takes it in.

    Returns:
        a middle stage pays one receive and one send, the last stage two receives, the first one send, or two in
        pipelines of more than three stages.
    """
    if not send_s:
        return [0.0]
    first = send_s[0] * (2 if len(send_s) > 2 else 1)
    middle = [before + after for before, after in zip(receive_s, send_s[1:], strict=False)]
    return [first, *middle, 2 * receive_s[-1]]
