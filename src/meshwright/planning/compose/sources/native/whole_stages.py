"""The least time of a step whose stages hold whole layers and do whole micro-batches: what few sequences lose.

A pipeline does n micro-batches of w sequences. Stage i has ways (`layer_ways`) of t ranks and x sequences, so that it
takes at least  w c_i = w a t / x  of the cluster, each device of kind k being worth a_k. It ends within a step of T if

    each stage     n l_i s_i + l_i u_i <= T    l_i layers of s_i seconds a micro-batch, u_i of gradients and update
    its place      sum over j < i of s_j + n l_i s_i <= T     it waits for a layer of each stage before it
    the way        sum of l_i s_i <= T         of one micro-batch; looked at up to MOST_ON_THE_WAY of them

K(n, T), the least sum of c_i that holds all layers so, is found by a price of waiting, by one of a layer and, of few
devices, layer by layer, by place and by way (`stage_worths`), and the largest counts. Pipelines that train B sequences
are worth B min_n K(n, T) / n at least: no step is shorter than the first T for which that is no more than all devices
are worth.

    u_i  the update, whole beside two copies, or an r-th of it beside gradients and weights of r ranks that share it,
         the least over r; and what of gradients no backward hides
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.kernels.collectives import all_gather_lines, all_reduce_lines
from meshwright.kernels.lines import LevelRates
from meshwright.ops.edges import edge_works
from meshwright.planning.compose.sources.native.bound import (
    LayerWays,
    layer_ways,
    least_step_s,
    part_s,
    touched_bytes,
)
from meshwright.planning.compose.sources.native.stage_worths import ROUNDING, Stages
from meshwright.shapes import Bool, Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

MOST_ON_THE_WAY = 6
"""Micro-batches up to which the way of one counts; of more, what a stage waits for those before it."""
EXACT = 24
"""Micro-batches and sequences of one up to which every number is looked at; beyond it the best of NEAR."""
NEAR = 1.05
"""Times the least of several numbers that the largest is at most."""
LEAST_GAIN, FARTHEST = 1.01, 1.6
"""Times the bound that is known from which, and up to which, whole stages are looked at, at one choice of prices."""
WITHIN = 0.006
"""Share of the bound to which it is searched."""
POWERS = (1.1, 1.0, 1.2)
"""Powers of a kind's speed that its devices are worth: whole layers and sequences suit slower ones less."""
MOST_CLOSELY, MOST_DEVICES, FEW = 64, 512, (16, 4)
"""Devices up to which stages are bounded closely, and at all; sequences of each up to which they are, either way."""
IN_ORDER = ("gpipe", "1f1b", "interleaved")
"""Schedules whose micro-batches pass the workers in order, each task whole."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageWays:
    """Ways to run a stage, one row each: none of any plan has less of every number."""

    worth: Float[np.ndarray, "ways"]
    """What its devices are worth, for a sequence of a micro-batch."""
    layer_s: Float[np.ndarray, "ways"]
    """Forward and backward of a layer and micro-batch."""
    wait_s: Float[np.ndarray, "ways"]
    """What of these a stage behind waits for."""
    backward_s: Float[np.ndarray, "ways"]
    """Backward of a layer, beside which its gradients may leave; no less than it is."""
    head_s: Float[np.ndarray, "ways"]
    """Seconds of a micro-batch behind the last layer."""
    ends: Float[np.ndarray, "ways 2"]
    """Parameters ahead of the first layer and behind the last, over those of a layer; the latter always count."""
    update_s: Float[np.ndarray, "ways"]
    """Update of a layer that no other rank has."""
    sum_s: Float[np.ndarray, "ways"]
    """Gradients of a layer over two copies, by themselves."""
    shared_s: Float[np.ndarray, "ways sharers"]
    """Update of a layer that some ranks share, and its weights on their way back."""
    scattered_s: Float[np.ndarray, "ways sharers"]
    """Gradients of a layer to as many ranks, by themselves."""
    sequences: Float[np.ndarray, "ways"]
    """Sequences of a micro-batch on a rank: the fewest that the row stands for."""
    exposed: Float[np.ndarray, "ways 2"]
    """Share of a sum that starts too late to hide, and that compute beside the rest takes longer."""

    def around_s(self, micro_batches: float, batch: float) -> Float[np.ndarray, "ways"]:
        """Seconds of a layer around the pipeline: its update, and what of its gradients is not hidden.

        Args:
            micro_batches: the micro-batches of the pipeline, beside whose last backwards gradients leave.
            batch: sequences of a step: who does them all has no copy.
        """
        late, slowed = self.exposed.T

        def left_s(sum_s: Float[np.ndarray, "... ways"]) -> Float[np.ndarray, "... ways"]:
            early_s = sum_s * (1.0 - late)
            return sum_s * late + np.maximum(early_s - micro_batches * self.backward_s, early_s * slowed)

        shared_s = (self.shared_s.T + left_s(self.scattered_s.T)).min(axis=0)
        apart_s = np.minimum(self.update_s + left_s(self.sum_s), shared_s)
        return np.where(micro_batches * self.sequences >= batch, np.minimum(self.update_s, apart_s), apart_s)

    def at_ends_s(self, micro_batches: float, batch: float) -> Float[np.ndarray, "ways 2"]:
        """Seconds of parameters ahead of the first layer and behind the last, if all that they may hide were hidden."""
        late, slowed = self.exposed.T
        seen = late + (1.0 - late) * slowed
        shared_s = (self.shared_s + seen[:, None] * self.scattered_s).min(axis=1)
        apart_s = np.minimum(self.update_s + seen * self.sum_s, shared_s)
        alone = micro_batches * self.sequences >= batch
        return self.ends * np.where(alone, np.minimum(self.update_s, apart_s), apart_s)[:, None]

    def in_a_step(self, around_s: Float[np.ndarray, "ways"], fewest: float, most: float, batch: float) -> Stages:
        """Stages that do some micro-batches a step; each number is the least of all between the fewest and the most.

        Args:
            around_s: seconds of a layer around the pipeline.
            fewest: micro-batches.
            most: micro-batches.
            batch: sequences of a step.
        """
        ends_s = self.at_ends_s(most, batch)
        return Stages(
            worth=self.worth,
            once_s=fewest * self.layer_s + around_s,
            behind_s=fewest * self.head_s + ends_s[:, 1],
            ahead_s=ends_s[:, 0],
            wait_s=self.wait_s,
            head_s=self.head_s,
        )

    def take(self, index: Int[np.ndarray, "taken"] | Bool[np.ndarray, "ways"]) -> StageWays:
        """The rows of this index or mask."""
        return StageWays(**{name: getattr(self, name)[index] for name in StageWays.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The devices that share a step."""

    devices: tuple[tuple[Hardware, int], ...]
    """Kinds and how many of each."""
    ways: tuple[LayerWays, ...]
    """Ways of each kind to run a layer, tasks whole."""
    between_bytes_per_s: float
    """What the widest link out of an innermost domain reaches, a device; 0 where none is."""
    head_s: tuple[float, ...]
    """Device seconds of a sequence behind the last layer, on each kind."""
    ends: tuple[float, float]
    """Parameters that are trained on the first stage ahead of its layers, and on the last behind them."""


def bounds_stages(model: ModelSpec, workload: Workload, devices: int, schedules: Sequence[str]) -> bool:
    """Whether few sequences come to a device, of a job whose plans the bound holds for.

    Args:
        model: the model.
        workload: the step.
        devices: the number of devices of all kinds.
        schedules: the schedules that pipelines may have.
    """
    plain = workload.training and not workload.sequence_lengths and model.tuning is None and not model.streams
    # Of mixtures of experts, whose weights fill the memory and not the step, nothing was gained.
    plain = plain and not model.is_moe
    few = devices <= MOST_DEVICES and workload.global_batch <= FEW[devices > MOST_CLOSELY] * devices
    return plain and few and {*schedules} <= {*IN_ORDER} and not model.tower_layers


def least_whole_s(
    model: ModelSpec,
    workload: Workload,
    devices: Sequence[tuple[Hardware, int]],
    schedules: Sequence[str],
    between_bytes_per_s: float,
) -> float:
    """Lower bound of the step of any plan, in seconds: of few sequences by whole stages, else as `least_step_s`.

    Args:
        model: the model.
        workload: the step.
        devices: kinds of device and how many of each.
        schedules: the schedules that pipelines may have.
        between_bytes_per_s: the bytes per second between them that the widest link out of an innermost domain reaches,
            a device; 0 where none is.

    Returns:
        No less than `least_step_s`.
    """
    every, rows = sum(count for _, count in devices), float(model.vocab * model.hidden)
    if not bounds_stages(model, workload, every, schedules):
        return least_step_s(model, workload, list(devices), schedules=schedules)
    # Tasks of the schedules in order are whole: both bounds know the same ways.
    ways = [layer_ways(model, workload, hardware, every, whole=True) for hardware, _ in devices]
    known_s = least_step_s(model, workload, list(devices), schedules=schedules, ways=ways)
    fleet = Fleet(
        devices=tuple(devices),
        ways=tuple(ways),
        between_bytes_per_s=between_bytes_per_s,
        head_s=tuple(
            sum(part_s(work, hardware, workload, quantised=False) for work in edge_works(model, "head"))
            for hardware, _ in devices
        ),
        ends=(0.0, 0.0) if model.pooled else (rows, rows),
    )
    least_s = np.array([way.device_s.min() for way in fleet.ways])
    found_s = known_s
    for power in POWERS:
        found_s = _least_at_prices(fleet, model.num_layers, workload, (least_s.min() / least_s) ** power, found_s)
    return found_s


def _least_at_prices(
    fleet: Fleet, layers: int, workload: Workload, values: Float[np.ndarray, "kinds"], known_s: float
) -> float:
    """Lower bound of a step where a device of each kind is worth so much; no less than the one that is known."""
    ways, batch = stage_ways(fleet, workload, values), float(workload.global_batch)
    full = float(values @ [count for _, count in fleet.devices])
    always_s = min(hardware.software.step_s for hardware, _ in fleet.devices)
    # Long lists of stages lose little of a whole one, which a price of a layer does not see.
    closely = sum(count for _, count in fleet.devices) <= MOST_CLOSELY
    sizes, short_s = _sizes(1, int(batch)), dict[tuple[int, int], float]()

    def enough(step_s: float) -> bool:
        for place, size in enumerate(sizes):
            # What is too little for a step is too little for a shorter one.
            if step_s <= short_s.get(size, 0.0):
                continue
            worth = _worth_of_size(ways, layers, batch, step_s - always_s, full / batch, size, closely=closely)
            if batch * worth <= full:
                sizes.insert(0, sizes.pop(place))
                return True
            short_s[size] = step_s
        return False

    low_s, high_s = LEAST_GAIN * known_s, FARTHEST * known_s
    if enough(low_s):
        return known_s
    while high_s - low_s > WITHIN * known_s:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if enough(middle_s) else (middle_s, high_s)
    return low_s


def least_worth(ways: StageWays, layers: int, batch: float, step_s: float, below: float) -> float:
    """What devices for one sequence of a step are worth: min over n of K(n, T) / n, as far as that matters.

    Args:
        ways: the ways of a stage.
        layers: the number of layers of the model.
        batch: sequences of a step.
        step_s: T.
        below: what is enough.

    Returns:
        No more than enough where the least is; else more, or infinity.
    """
    found = math.inf
    for size in _sizes(1, int(batch)):
        found = min(found, _worth_of_size(ways, layers, batch, step_s, below, size))
        if found <= below:
            return found
    return found


def _worth_of_size(
    ways: StageWays,
    layers: int,
    batch: float,
    step_s: float,
    below: float,
    size: tuple[int, int],
    *,
    closely: bool = True,
) -> float:
    """What devices for one sequence of a step are worth, of a pipeline with the fewest to the most micro-batches."""
    fewest, most = size
    around_s = ways.around_s(float(most), batch)
    once_s = fewest * ways.layer_s + around_s
    able = (once_s <= step_s) & (fewest * ways.sequences <= batch)
    if not able.any():
        return math.inf
    # Stages cut anywhere are worth no more, nor is any stage beside others cut so.
    layer_worth = float((ways.worth * once_s)[able].min()) / step_s
    rest = np.maximum(layers - np.floor(step_s / once_s + ROUNDING), 0.0)
    able &= np.maximum(ways.worth + layer_worth * rest, layer_worth * layers) <= below * most
    if not able.any():
        return math.inf
    own = ways.take(able).in_a_step(around_s[able], float(fewest), float(most), batch).undominated()
    worth = own.waiting(layers, step_s)
    if worth <= below * most:
        worth = max(worth, own.at_a_price(layers, step_s, below * most / layers))
    if worth <= below * most and closely:
        worth = max(worth, own.in_their_places(layers, step_s))
        if most <= MOST_ON_THE_WAY and worth <= below * most:
            worth = max(worth, own.on_their_way(layers, step_s))
    return worth / most


def stage_ways(fleet: Fleet, workload: Workload, values: Float[np.ndarray, "kinds"]) -> StageWays:
    """Ways of a stage on every kind of device.

    Args:
        fleet: its devices.
        workload: the step.
        values: the values of a device of each kind.
    """
    found = [_of_kind(fleet, number, workload, float(value)) for number, value in enumerate(values)]
    names = StageWays.__slots__
    return StageWays(**{name: np.concatenate([getattr(one, name) for one in found]) for name in names})


def _of_kind(fleet: Fleet, number: int, workload: Workload, value: float) -> StageWays:
    """Ways of a stage on one kind of device: of each the least of all ways with as many ranks."""
    ways, (hardware, _) = fleet.ways[number], fleet.devices[number]
    precision, every = workload.precision, sum(count for _, count in fleet.devices)
    key, which = np.unique(np.stack([ways.ranks, ways.tensor, ways.fewest, ways.most]), axis=1, return_inverse=True)
    which = which.reshape(-1)

    def least(values: Float[np.ndarray, "ways kinds"]) -> Float[np.ndarray, "sizes"]:
        found = np.full(key.shape[1], np.inf)
        np.minimum.at(found, which, values.min(axis=1))
        return found

    device_s, passed_s, backward_s = least(ways.device_s), least(ways.passed_s), -least(-ways.backward_s)
    parameters = least(ways.dense_parameters)
    ranks, tensor, fewest, most = key
    sizes = [_sizes(int(low), int(min(high, workload.global_batch))) for low, high in zip(fewest, most, strict=True)]
    row = np.repeat(np.arange(len(sizes)), [len(own) for own in sizes])
    first, last = np.array([size for own in sizes for size in own], dtype=float).reshape(-1, 2).T
    part = first / ranks[row]
    at = hardware.achieved_memory_bytes_per_s
    update_s = parameters * touched_bytes(workload) / at
    touches_s = parameters * hardware.software.gradient_touches * precision.bytes_of("gradients") / at
    sharers = _sharers(every)
    slopes = {int(degree): _s_per_byte(hardware, int(degree), fleet, sharers) for degree in np.unique(tensor)}
    size_bytes = parameters * precision.bytes_of("reduce")
    scattered_s = size_bytes[:, None] * np.array([slopes[int(degree)][1] for degree in tensor])
    shares = np.minimum([float(most) for _, most in sharers], every / tensor[:, None])
    late, slowed = 1.0 - hardware.software.overlap, 1.0 - 1.0 / hardware.efficiency.overlap_slowdown
    # Weights come back once a step, half of the traffic of a sum, at the width that they have on the way.
    back_s = scattered_s * precision.gathered_bytes / precision.bytes_of("reduce") * (late + (1.0 - late) * slowed)
    return StageWays(
        worth=value * ranks[row] / last,
        layer_s=np.maximum(device_s[row] * part, passed_s[row]),
        # Tasks are whole, so that who stands behind waits for all of a layer.
        wait_s=np.maximum(device_s[row] * part, passed_s[row]),
        backward_s=backward_s[row],
        head_s=fleet.head_s[number] * part,
        ends=np.array(fleet.ends) / (parameters * tensor)[row, None],
        update_s=(update_s + touches_s)[row],
        sum_s=(size_bytes * np.array([slopes[int(degree)][0] for degree in tensor]))[row],
        shared_s=(update_s[:, None] / np.maximum(shares, 1.0) + back_s)[row],
        scattered_s=scattered_s[row],
        sequences=first,
        exposed=np.tile([late, slowed], (len(row), 1)),
    )


def _sizes(first: int, last: int) -> list[tuple[int, int]]:
    """Numbers between two, one by one and then several at once."""
    found = []
    while first <= last:
        upto = min(last, first if first <= EXACT else int(first * NEAR))
        found.append((first, upto))
        first = upto + 1
    return found


def _sharers(every: int) -> list[tuple[int, int]]:
    """Fewest and most ranks that share the states of a layer: a few classes of up to all devices."""
    fewest = [count for count in (2, 3, 4, 6, 8, 16, 32) if count <= max(every, 2)]
    return list(zip(fewest, [*(count - 1 for count in fewest[1:]), max(every, 2)], strict=True))


def _s_per_byte(
    hardware: Hardware, tensor: int, fleet: Fleet, sharers: Sequence[tuple[int, int]]
) -> tuple[float, list[float]]:
    """Seconds of a byte of gradients over two ranks or more, and to each class of ranks that share them.

    As many ranks, a tensor group apart, as can stand in an innermost domain, where that is the quickest: others only
    add. No class is quicker than one of fewer ranks.
    """
    near = hardware.domain_sizes[0] // tensor
    if near > 1 or not fleet.between_bytes_per_s:
        ranks = np.arange(2, max(near, 2) + 1)
        inside: tuple[Int[np.ndarray, "groups"], ...] = (ranks,)
        rates: tuple[LevelRates, ...] = hardware.rates[:1]
    else:
        ranks = np.arange(2, sharers[-1][0] + 1)
        apart = replace(
            hardware.rates[-1], bandwidth_bytes_per_s=fleet.between_bytes_per_s, efficiency=1.0, mesh_peers=0
        )
        inside, rates = (np.ones_like(ranks), ranks), (hardware.rates[0], replace(apart, few_ranks=None, quick=None))
    members = [level.astype(float) for level in inside]
    summed, gathered = (
        lines(inside=members, rates=rates).s_per_byte.min(axis=0) for lines in (all_reduce_lines, all_gather_lines)
    )
    return float(summed.min()), [float(gathered[min(fewest, ranks[-1]) - 2 :].min()) for fewest, _ in sharers]
