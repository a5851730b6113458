"""Parts of a chain on workers that need not hold neighbours: workers are alike where layers are not.

FTPipe's mixed pipeline: the chain is coarsened to a few blocks, blocks go heaviest first to the least loaded worker,
neighbours on one worker are one stage, and borders of stages move layer by layer while that helps. Few blocks send
little from worker to worker, many are spread more evenly; of both ends what is not beaten is kept.
Source: Eliad et al., "Fine-tuning giant neural networks on commodity hardware with automatic pipeline model
parallelism", USENIX ATC 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from meshwright.kernels.partition import EQUAL_FRACTION, balanced_partition

BLOCKS_PER_WORKER = (2, 3, 4, 8)
"""Numbers of blocks per worker to which chains are coarsened."""
LEAST_GAIN = 0.005
"""Part of the weight of a cut between neighbours that a partition with more boundaries must save."""
MOST_STAGES = 24
"""Most stages of chains whose layers also move between stages that are not neighbours, through those between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPartition:
    """Stages along a chain, and who holds them."""

    counts: tuple[int, ...]
    """Units of each stage."""
    workers: tuple[int, ...]
    """Worker of each stage; neighbours differ, and workers count in the order in which they are met."""
    heaviest: float
    """Weight of the fullest worker, extras included."""

    @property
    def moved(self) -> int:
        """Boundaries between stages: each is crossed by the activations of a micro-batch, and by their gradients."""
        return len(self.counts) - 1


def mixed_partitions(
    weights: Sequence[float], workers: int, *, first_extra: float = 0.0, last_extra: float = 0.0, most: int = 4
) -> tuple[MixedPartition, ...]:
    """Partitions whose fullest worker is lighter than any cut between neighbours makes it.

    Args:
        weights: the weights of the units, in order.
        workers: 2 or more.
        first_extra: weight on top in the first stage.
        last_extra: weight on top in the last stage.
        most: stages of a worker.

    Returns:
        Those that are lighter by `LEAST_GAIN` than all that move less, fewest boundaries first; none where none is.
    """
    if not 2 <= workers < len(weights):
        return ()
    extras = {"first_extra": first_extra, "last_extra": last_extra}
    cut = balanced_partition(weights, parts=workers, first_extra=first_extra, last_extra=last_extra)
    found = dict.fromkeys(_placements(weights, workers, most, **extras))
    made = [
        MixedPartition(counts=counts, workers=holders, heaviest=max(_loads(weights, counts, holders, **extras)))
        for holders in found
        if (counts := worker_cuts(weights, holders, **extras))
    ]
    kept: list[MixedPartition] = []
    lightest = cut.bottleneck
    for one in sorted(made, key=lambda one: (one.moved, one.heaviest)):
        if one.heaviest < (1.0 - LEAST_GAIN) * lightest:
            lightest = one.heaviest
            kept.append(one)
    return tuple(kept)


def worker_cuts(
    weights: Sequence[float], workers: Sequence[int], *, first_extra: float = 0.0, last_extra: float = 0.0
) -> tuple[int, ...]:
    """Units of each stage, so that the fullest worker is as light as moving borders makes it.

    Args:
        weights: the weights of the units, in order, at least one for each stage.
        workers: worker of each stage.
        first_extra: weight on top in the first stage.
        last_extra: weight on top in the last stage.

    Returns:
        Units of each stage, 1 or more; of several starts the end with the lightest fullest worker, then with the least
        sum of squares. The same for the same stages, whoever asks.
    """
    extras = {"first_extra": first_extra, "last_extra": last_extra}
    ends = [_climbed(weights, start, workers, **extras) for start in _starts(weights, workers, **extras)]
    return min(ends)[1]


def _placements(
    weights: Sequence[float], workers: int, most: int, *, first_extra: float, last_extra: float
) -> Iterator[tuple[int, ...]]:
    """Workers of stages for each number of blocks."""
    for each in BLOCKS_PER_WORKER:
        if each * workers > len(weights):
            return
        blocks = _coarsened([weights[0] + first_extra, *weights[1:-1], weights[-1] + last_extra], each * workers)
        loads, held = [0.0] * workers, [0] * len(blocks)
        for block in sorted(range(len(blocks)), key=lambda block: (-blocks[block], block)):
            held[block] = min(range(workers), key=lambda worker: (loads[worker], worker))
            loads[held[block]] += blocks[block]
        stages = [worker for block, worker in enumerate(held) if not block or held[block - 1] != worker]
        number = {worker: at for at, worker in enumerate(dict.fromkeys(stages))}
        if max(map(stages.count, number)) <= most:
            yield tuple(number[worker] for worker in stages)


def _coarsened(weights: Sequence[float], blocks: int) -> list[float]:
    """Weights of blocks: of all neighbours those that are lightest together are joined, one pair after the other."""
    left = list(weights)
    while len(left) > blocks:
        at = min(range(len(left) - 1), key=lambda at: left[at] + left[at + 1])
        left[at : at + 2] = [left[at] + left[at + 1]]
    return left


def _starts(
    weights: Sequence[float], workers: Sequence[int], *, first_extra: float, last_extra: float
) -> Iterator[tuple[int, ...]]:
    """Cuts to begin with: stages alike, and each the share of its worker that its fellows leave it."""
    yield balanced_partition(weights, parts=len(workers), first_extra=first_extra, last_extra=last_extra).counts
    total = sum(weights) + first_extra + last_extra
    shares = [total / (max(workers) + 1) / workers.count(worker) for worker in workers]
    before = [first_extra, *accumulate(weights, initial=first_extra)][1:]
    cuts = [0]
    for stage, wanted in enumerate(accumulate(shares[:-1])):
        least, last = cuts[-1] + 1, len(weights) - (len(workers) - 1 - stage)
        cuts.append(min(range(least, last + 1), key=lambda cut: abs(before[cut] - wanted)))
    yield tuple(behind - first for first, behind in zip(cuts, [*cuts[1:], len(weights)], strict=True))


def _loads(
    weights: Sequence[float], counts: Sequence[int], workers: Sequence[int], *, first_extra: float, last_extra: float
) -> list[float]:
    """Weight of each worker."""
    loads = [0.0] * (max(workers) + 1)
    loads[workers[0]] += first_extra
    loads[workers[-1]] += last_extra
    first = 0
    for count, worker in zip(counts, workers, strict=True):
        loads[worker] += sum(weights[first : first + count])
        first += count
    return loads


def _climbed(
    weights: Sequence[float],
    start: tuple[int, ...],
    workers: Sequence[int],
    *,
    first_extra: float,
    last_extra: float,
) -> tuple[tuple[float, float], tuple[int, ...]]:
    """How full workers are at the end, and the cuts there: a layer moves from stage to stage while that helps most."""
    cuts = list(accumulate(start, initial=0))
    loads = _loads(weights, start, workers, first_extra=first_extra, last_extra=last_extra)
    stages = len(workers)
    reach = stages if stages <= MOST_STAGES else 2
    ways = [(one, other) for one in range(stages) for other in range(stages) if 0 < abs(one - other) < max(reach, 2)]
    grain = EQUAL_FRACTION * sum(loads)

    def fullness(loads: Sequence[float]) -> tuple[float, float]:
        return max(loads), sum(load * load for load in loads)

    here = fullness(loads)
    while True:
        best: tuple[tuple[float, float], list[int], list[float]] | None = None
        for giver, taker in ways:
            if cuts[giver + 1] - cuts[giver] < 2:
                continue
            step = 1 if taker > giver else -1
            after, moved = list(loads), list(cuts)
            for stage in range(giver, taker, step):
                border = stage + 1 if step > 0 else stage
                unit = cuts[border] - 1 if step > 0 else cuts[border]
                after[workers[stage]] -= weights[unit]
                after[workers[stage + step]] += weights[unit]
                moved[border] -= step
            there = fullness(after)
            better = there[0] < here[0] - grain or (
                there[0] <= here[0] + grain and there[1] < here[1] - grain * here[0]
            )
            if better and (best is None or there < best[0]):
                best = there, moved, after
        if best is None:
            return here, tuple(behind - first for first, behind in pairwise(cuts))
        here, cuts, loads = best
