"""Which paths through a pipeline bound its plans: each is one that every order has, recounted here task by task."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.pipeline import StageCounts
from meshwright.schedules import Kind, Schedule, Times, schedule_named, simulate
from meshwright.search.paths import (
    BoundPaths,
    Template,
    critical_lengths,
    longest_of,
    order_free_lengths,
    path_items,
    typical_durations,
)
from tests.schedules.cases import ONE_BY_ONE, Case, name

SHORT = [(case, shape) for case, shape in ONE_BY_ONE if shape[0] * shape[1] * shape[2] <= 48]
TABLES = [(case, shape) for case, shape in SHORT if not case.schedule.shadows]
"""Shapes whose tables hold all that workers do: what one does for another one is no task."""
MICRO_BATCHES_OF_WORKER_0 = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.R: 4}
"""Rows of the counts that tasks stand in; weight gradients of a worker may come after its last input gradient."""


def tasks_of(schedule: Schedule, p: int, m: int, v: int, kind: Kind, worker: int) -> np.ndarray:
    """How many tasks of a kind a worker runs, by chunk."""
    table = schedule.table(p, m, v)
    mine = (table.worker == worker) & (table.kind == kind)
    return np.bincount(table.chunk[mine], minlength=table.v)


def on_its_way(schedule: Schedule, p: int, v: int, worker: int) -> np.ndarray:
    """Counts of what runs before a worker's first task and after its last input gradient, stage by stage."""
    placement = schedule.placement(p, v)
    counts = np.zeros((5, p, placement.v))
    at = placement.worker.tolist()
    for stage in range(at.index(worker)):
        cell = at[stage], int(placement.chunk[stage])
        counts[(0, *cell)] += 1
        counts[(1, *cell)] += 1
        if at[stage] != at[stage + 1]:
            counts[(2, *cell)] += 2
        if Kind.W in schedule.kinds:
            counts[(3, *cell)] -= 1
    if Kind.W in schedule.kinds and worker > 0:
        counts[3, 0, 0] += 1
    return counts


@pytest.mark.parametrize(("case", "shape"), SHORT, ids=name)
def test_a_path_is_the_tasks_of_a_worker_and_one_micro_batch_to_it_and_back(
    case: Case, shape: tuple[int, int, int]
) -> None:
    p, m, v = shape
    schedule = case.schedule
    lengths = order_free_lengths(schedule, p, m, v)
    if schedule.chains > 1:
        # Of all chains together a worker runs all micro-batches, and of each at least this part.
        chunks = lengths[0, 0, 0].tolist()
        assert len(lengths) == 1
        assert lengths[0, :2, 0].tolist() == [chunks, chunks]
        assert schedule.chains * (lengths[0, 0, 0] + 1) == pytest.approx(m * schedule.sections() + 1)
        assert lengths[0, :2, 1:].max(initial=0.0) == lengths[0, 2:4].max() == 0
        return
    assert len(lengths) == p
    for worker, path in enumerate(lengths):
        known = on_its_way(schedule, p, v, worker) if worker and schedule.flushes else np.zeros_like(path)
        for kind in schedule.kinds & MICRO_BATCHES_OF_WORKER_0.keys():
            row = MICRO_BATCHES_OF_WORKER_0[kind]
            known[row, worker] += tasks_of(schedule, p, m, v, kind, worker)
        if schedule.shadows:
            known[4, worker] = known[0, worker]
        if Kind.W in schedule.kinds and worker and schedule.flushes:
            known[3, worker] -= known[1, worker]
        assert path.tolist() == known.tolist()


@pytest.mark.parametrize(("case", "shape"), TABLES, ids=name)
def test_no_path_is_longer_than_the_step(case: Case, shape: tuple[int, int, int]) -> None:
    p, m, v = shape
    table, lengths = case.schedule.table(p, m, v), order_free_lengths(case.schedule, p, m, v)
    for seed in range(5):
        chance = np.random.default_rng(seed)
        forward, backward, transfer, again = chance.exponential(size=(4, p, table.v))
        transfer, weight = transfer * (seed % 3), backward * chance.uniform(0.0, 0.9, backward.shape)
        times = Times(
            forward_s=forward,
            backward_s=backward,
            transfer_s=transfer,
            weight_s=weight,
            recompute_s=again,
        )
        seconds = np.stack([forward, backward, transfer, weight, again])
        assert (lengths * seconds).sum(axis=(1, 2, 3)).max() <= simulate(table, times).makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(("named", "p", "m", "v"), [("hanayo", 4, 8, 2), ("zb-auto", 4, 8, 1), ("mario", 4, 8, 1)])
def test_the_critical_path_is_as_long_as_the_step_by_flop(named: str, p: int, m: int, v: int) -> None:
    """A chunk takes its FLOP forward, twice that backward, half of it for weights; a transfer 2% of a forward."""
    schedule = schedule_named(named)
    chunks = schedule.placement(p, v).v
    weights = np.random.default_rng(5).uniform(1.0, 3.0, (p, chunks))
    transfers = np.full((p, chunks), 0.02 * np.mean(weights.sum(axis=1)))
    times = Times(
        forward_s=weights, backward_s=2 * weights, transfer_s=transfers, weight_s=weights, recompute_s=weights
    )
    lengths = critical_lengths(schedule, p, m, v, weights)
    seconds = np.stack([weights, 2 * weights, transfers, weights, weights])
    assert lengths.shape == (1, 5, p, chunks)
    assert (lengths * seconds).sum() == pytest.approx(
        simulate(schedule.table(p, m, v), times).worker_end_s[0], rel=1e-12
    )


def typical_length(counts: np.ndarray, weights: np.ndarray, transfer: float) -> float:
    """A path's length where a forward of a chunk takes its weight, a backward two, and a transfer a part of a mean."""
    mean = float(np.mean([worker.sum() for worker in weights]))
    seconds = [weights, 2 * weights, np.full_like(weights, transfer * mean), weights, weights]
    return float(sum((count * of).sum() for count, of in zip(counts, seconds, strict=False)))


@pytest.mark.parametrize("durations", [3, 5])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_longest_paths_are_those_of_a_few_typical_pipelines(durations: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = chance.integers(0, 9, (12, durations, 3, 2)).astype(float)
    weights = chance.uniform(0.5, 4.0, (2, 3, 2))
    known, typical = set(), []
    for one in weights:
        for transfer in (0.0, 0.02, 0.1):
            each = [typical_length(path, one, transfer) for path in lengths]
            typical.append(each)
            known.add(int(np.argmax(each)))
    found = typical_durations(durations, *weights)
    assert lengths.reshape(12, -1) @ found == pytest.approx(np.array(typical).T, rel=1e-12)
    assert longest_of(lengths, *weights) == sorted(known)


def test_the_longest_path_by_layers_stays_beside_the_longest_by_flop() -> None:
    bound = schedule_named("1f1b").path_bound(4, 32, 1)
    lengths = bound.once + 32 * bound.each
    flop, layers = np.array([[9.0], [8.0], [8.0], [12.0]]), np.array([[9.0], [8.0], [8.0], [1.0]])
    by_flop, by_both = longest_of(lengths, flop), longest_of(lengths, flop, layers)
    assert set(by_flop) < set(by_both)
    # Where every layer takes as long, whatever its FLOP, the last stage is idle and the first one is the slow one.
    seconds = np.stack([layers, 2 * layers, np.zeros_like(layers)])
    longest = (lengths * seconds).sum(axis=(1, 2, 3))
    assert longest[by_both].max() == longest.max() > 1.2 * longest[by_flop].max()


def counts_of(seed: int, *, bare: bool = False, shadow: bool = False, shapes: int = 2) -> StageCounts:
    """How often 4 items stand in 3 workers of 2 chunks."""
    chance = np.random.default_rng(seed)
    work = chance.integers(0, 5, (shapes, 3, 2, 4)).astype(float)
    return StageCounts(
        work=work,
        bare=chance.integers(0, 5, work.shape).astype(float) if bare else None,
        shadow=chance.integers(0, 5, (shapes, 3, 4)).astype(float) if shadow else None,
    )


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize(
    ("durations", "bare", "shadow"), [(3, False, False), (5, False, False), (5, True, False), (5, False, True)]
)
def test_items_of_a_path_are_what_its_tasks_run(
    durations: int, bare: bool, shadow: bool, again: bool, weight: bool
) -> None:
    """Task by task: a backward of what is recomputed in a task of its own is that of the bare layers."""
    counts = counts_of(7, bare=bare, shadow=shadow)
    lengths = np.random.default_rng(8).integers(0, 6, (3, durations, 3, 2)).astype(float)
    lengths[:, 3:4] *= weight
    lengths[:, 4:5] *= again
    forward, backward, weights = path_items(lengths, counts)
    assert forward.shape == backward.shape == weights.shape == (2, 3, 4)
    for shape in range(2):
        for number, path in enumerate(lengths):
            known = np.zeros((3, 4))
            recomputes = durations == 5 and again
            for worker in range(3):
                for chunk in range(2):
                    work = counts.work[shape, worker, chunk]
                    known[0] += path[0, worker, chunk] * work
                    kept = work if counts.bare is None or not recomputes else counts.bare[shape, worker, chunk]
                    known[1] += path[1, worker, chunk] * kept
                    if durations == 3:
                        continue
                    known[2] += path[3, worker, chunk] * work
                    if counts.bare is not None:
                        known[1] += path[4, worker, chunk] * (work - kept)
                    if counts.shadow is not None:
                        known[0] += path[4, worker, chunk] * counts.shadow[shape, worker]
            assert np.stack([forward[shape, number], backward[shape, number], weights[shape, number]]) == (
                pytest.approx(known, rel=1e-12)
            )


@pytest.mark.parametrize("m", [1, 3, 40])
def test_paths_of_a_bound_are_the_longest_for_each_number_of_micro_batches(m: int) -> None:
    bound = schedule_named("interleaved").path_bound(3, 12, 2)
    weights = np.random.default_rng(m).uniform(1.0, 2.0, (2, 3, 2))
    paths, counts = BoundPaths.of(bound, *weights), counts_of(9)
    lengths = bound.once + m * bound.each
    assert list(paths.longest(m)) == longest_of(lengths, *weights)
    picked = lengths[longest_of(lengths, *weights)]
    for way in ("none", "full", "none"):  # what was kept for a way is that way's
        *items, transfers = paths.items(m, ((way, 0),), counts)
        for found, known in zip(items, path_items(picked, counts), strict=True):
            assert found == pytest.approx(known, rel=1e-12)
        assert transfers == pytest.approx([path[2].sum() for path in picked])
        counts = counts_of(10) if way == "none" else counts_of(9)


def test_a_template_grows_by_the_same_paths_with_every_micro_batch() -> None:
    chance = np.random.default_rng(3)
    once, each = (tuple(chance.uniform(-2.0, 5.0, (2, 4)) for _ in range(3)) for _ in range(2))
    made = Template(once=once, each=each, transfers=np.zeros(2))
    for number, of in enumerate((made.forward, made.backward, made.weight)):
        assert of(0).tolist() == once[number].tolist()
        assert of(5) - of(2) == pytest.approx(3 * each[number], rel=1e-9)
