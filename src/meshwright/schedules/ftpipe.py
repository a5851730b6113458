"""FTPipe: workers that hold blocks which are not neighbours, and a partitioner that uses that to balance them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwright.errors import InputError, Problem
from meshwright.schedules.base import Schedule, Updates
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.table import Kind, Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class FTPipe(Schedule):
    """Any map of virtual stages to workers; a stage of depth d (0 at the end) keeps at most d + 1 micro-batches.

    A free worker runs a backward before a forward, and of the forwards the one nearest to the end of the chain; how the
    published runtime breaks ties is rebuilt here by list scheduling with b = 2*f. Weights are updated behind each
    micro-batch without a flush, so a stage of depth d runs on weights that lack up to d updates; the table holds m
    micro-batches with one fill and one drain. One stage per worker, in order: the order and time of 1F1B.
    Source: Eliad et al., "Fine-tuning giant neural networks on commodity hardware with automatic pipeline model
    parallelism", USENIX ATC 2021.
    """

    blocks: tuple[int, ...] | None = None
    """Worker of each virtual stage along the chain, v of them on the worker that has most; None: a loop."""

    name = "ftpipe"
    flushes = False
    updates_each = True
    title = "FTPipe: blocks that are not neighbours on one worker"
    source = "Eliad et al., FTPipe, USENIX ATC 2021"
    exact_semantics = False
    traffic = "one boundary for every virtual stage but the last, wherever the next one is"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """(m + p - 1) * (forward_s + backward_s) for one stage per worker; not known otherwise."""
        return (m + p - 1) * (forward_s + backward_s) if v == 1 else None

    def placement(self, p: int, v: int = 1) -> Placement:
        """The map of `blocks`."""
        return Placement.loop(p, v) if self.blocks is None else Placement.of_chains([self.blocks])

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """Refused: its source leaves the order of updates open where a worker has several stages.

        Raises:
            InputError: always.
        """
        why = "with one stage per worker its order and its updates are those of pipedream, and with more of them its"
        why += " source leaves the order open"
        what, fix = f'schedule = "{self.name}"', 'schedule="pipedream"'
        raise InputError(Problem(what=what, why=why, fix=fix, field="schedule"))

    def period(self, p: int, v: int) -> int | None:
        """Each micro-batch repeats the one before, with one stage per worker."""
        return 1 if self.placement(p, v).stages == p else None

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if self.blocks is None:
            return []
        held = [self.blocks.count(worker) for worker in range(p)]
        found = []
        if sum(held) != len(self.blocks) or 0 in held:
            why = f"the workers count from 0 to {p - 1} and each holds a stage"
            fix = f"name each of 0 to {p - 1} and no other"
            found.append(Problem(what=f"ftpipe: blocks = {self.blocks}, p = {p}", why=why, fix=fix, field="blocks"))
        elif max(held) != v:
            why = "v is the number of stages on the worker that has most"
            found.append(Problem(what=f"ftpipe: v = {v}", why=why, fix=f"v = {max(held)}", field="v"))
        return found

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        placement = self.placement(p, v)

        def rank(kind: Kind, stage: int, unit: int) -> Key:
            return (0, unit, -stage) if kind is Kind.B else (1, -stage, unit)

        return list_table(placement, (m,), (1, 2), rank, lambda stage: placement.stages - stage)


def mixed_partition(seconds: Sequence[float], p: int) -> tuple[int, ...]:
    """Worker of each layer, so that the most loaded worker has little to do; its layers need not be neighbours.

    Neighbours are joined, lightest pair first, into 2p, 4p, 8p, ... nodes; each set of nodes goes, longest first, to
    the least loaded worker; then layers at a border move to the worker next to them while that lowers the largest load.
    The best of all is kept; of equals the one with fewest borders. Contiguous cuts are candidates too.

    Args:
        seconds: forward and backward of each layer along the chain.
        p: workers.

    Raises:
        InputError: fewer layers than workers.
    """
    if not 1 <= p <= len(seconds):
        why = f"every worker holds at least one of the {len(seconds)} layers"
        raise InputError(Problem(what=f"p = {p}", why=why, fix=f"p = 1 to {len(seconds)}", field="p"))
    candidates = [_contiguous(seconds, p)]
    count = 2 * p
    while True:
        candidates.append(_refined(seconds, _longest_first(seconds, min(count, len(seconds)), p), p))
        if count >= len(seconds):
            break
        count *= 2
    scores = [(max(_loads(seconds, workers, p)), _borders(workers)) for workers in candidates]
    return tuple(candidates[scores.index(min(scores))])


def stages_of(workers: Sequence[int]) -> tuple[int, ...]:
    """`blocks` of a worker per layer: neighbours on one worker are one virtual stage."""
    return (workers[0], *(after for before, after in pairwise(workers) if after != before))


def _loads(seconds: Sequence[float], workers: Sequence[int], p: int) -> list[float]:
    loads = [0.0] * p
    for worker, own in zip(workers, seconds, strict=True):
        loads[worker] += own
    return loads


def _borders(workers: Sequence[int]) -> int:
    return sum(before != after for before, after in pairwise(workers))


def _longest_first(seconds: Sequence[float], nodes: int, p: int) -> list[int]:
    """Layers joined to that many nodes, which go to the least loaded worker, longest first."""
    joined = [[layer] for layer in range(len(seconds))]
    weights = [float(own) for own in seconds]
    while len(joined) > nodes:
        k = min(range(len(joined) - 1), key=lambda at: weights[at] + weights[at + 1])
        joined[k : k + 2] = [joined[k] + joined[k + 1]]
        weights[k : k + 2] = [weights[k] + weights[k + 1]]
    workers = [0] * len(seconds)
    held = [(0.0, 0, worker) for worker in range(p)]
    for k in sorted(range(len(joined)), key=lambda at: -weights[at]):
        # An empty worker comes before a loaded one even if the nodes so far took no time.
        load, taken, worker = min(held, key=lambda entry: (entry[0], entry[1], entry[2]))
        held[held.index((load, taken, worker))] = (load + weights[k], taken + 1, worker)
        for layer in joined[k]:
            workers[layer] = worker
    return workers


def _refined(seconds: Sequence[float], workers: list[int], p: int) -> list[int]:
    """Layers at a border move to their neighbour's worker while the largest load falls."""
    loads = _loads(seconds, workers, p)
    moved = True
    while moved:
        moved = False
        for layer in range(len(workers)):
            for near in (layer - 1, layer + 1):
                if not 0 <= near < len(workers) or workers.count(workers[layer]) == 1:
                    continue
                source, target = workers[layer], workers[near]
                if loads[source] == max(loads) > loads[target] + seconds[layer]:
                    loads[source] -= seconds[layer]
                    loads[target] += seconds[layer]
                    workers[layer] = target
                    moved = True
    return workers


def _contiguous(seconds: Sequence[float], p: int) -> list[int]:
    """The contiguous cut with the smallest largest load: best[k][n] over the first n layers on k workers."""
    before = [0.0]
    for own in seconds:
        before.append(before[-1] + own)
    layers = len(seconds)
    best = [before[:]]
    cuts: list[list[int]] = []
    for k in range(1, p):
        row, cut = [float("inf")] * (layers + 1), [0] * (layers + 1)
        for n in range(k + 1, layers + 1):
            options = [(max(best[-1][i], before[n] - before[i]), i) for i in range(k, n)]
            row[n], cut[n] = min(options)
        best.append(row)
        cuts.append(cut)
    workers = [0] * layers
    end = layers
    for k in range(p - 1, 0, -1):
        start = cuts[k - 1][end]
        workers[start:end] = [k] * (end - start)
        end = start
    return workers
