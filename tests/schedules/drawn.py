"""Any table and any durations: placements, orders and times drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Placement, ScheduleTable, Times

NAMED = (
    ("1f1b", 3, 5, 1), ("interleaved", 2, 4, 2), ("chimera", 4, 4, 1), ("dualpipe", 4, 8, 1), ("dualpipev", 2, 5, 2),
    ("zb-v", 3, 5, 2), ("varuna", 3, 5, 1), ("bamboo", 3, 4, 1), ("hanayo", 3, 3, 4), ("seq1f1b", 3, 4, 1),
)  # fmt: skip


def any_order(seed: int, *, split: bool, recompute: bool) -> ScheduleTable:
    """Random chains over random workers, each worker's list in a random order that respects what tasks need."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 5))
    chains = [rng.integers(0, p, rng.integers(1, 6)).tolist() for _ in range(rng.integers(1, 3))]
    chains[0] += [worker for worker in range(p) if all(worker not in chain for chain in chains)]
    placement = Placement.of_chains(chains)
    units = tuple(rng.integers(1, 5, len(chains)).tolist())
    after = {}
    for stage in range(placement.stages):
        before, follows = int(placement.preceding[stage]), int(placement.following[stage])
        gradient = "I" if split else "B"
        for unit in range(units[placement.chain[stage]]):
            after["F", stage, unit] = {("F", before, unit)} if before >= 0 else set()
            saved = "R" if recompute and rng.random() < 0.5 else "F"
            if saved == "R":
                after["R", stage, unit] = {("F", stage, unit)}
            after[gradient, stage, unit] = {(saved, stage, unit)} | (
                {(gradient, follows, unit)} if follows >= 0 else set()
            )
            if split:
                after["W", stage, unit] = {("I", stage, unit)}
    lists: list[list[str]] = [[] for _ in range(p)]
    while after:
        ready = sorted(task for task, needed in after.items() if not needed)
        kind, stage, unit = task = ready[rng.integers(len(ready))]
        lists[placement.worker[stage]].append(f"{kind}{placement.chunk[stage]}.{unit}")
        del after[task]
        for needed in after.values():
            needed.discard(task)
    return ScheduleTable.from_entries(lists, placement=placement)


@dataclass(frozen=True)
class Drawn:
    """What makes a table; the table itself is built in the test."""

    seed: int
    split: bool = False
    recompute: bool = False
    named: tuple[str, int, int, int] | None = None

    def table(self) -> ScheduleTable:
        """The table."""
        if self.named:
            return SCHEDULES[self.named[0]].table(*self.named[1:])
        return any_order(self.seed, split=self.split, recompute=self.recompute)


def tables() -> st.SearchStrategy[Drawn]:
    """Random orders, and named schedules with fused tasks, two directions, segments, redundant forwards."""
    seeds = st.integers(0, 10**6)
    return st.one_of(
        st.builds(Drawn, seeds, split=st.booleans(), recompute=st.booleans()),
        st.builds(Drawn, st.just(0), named=st.sampled_from(NAMED)),
    )


def durations(
    table: ScheduleTable, seed: int, *, rows: int = 0, by_micro_batch: bool = False, sending: float = 0.0
) -> Times:
    """Times of every kind and both directions, zeros among them."""
    rng = np.random.default_rng(seed)
    lead = (rows,) if rows else ()
    shape = (*lead, table.p, table.v, max(table.micro_batches)) if by_micro_batch else (*lead, table.p, table.v)

    def some(shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        return scale * rng.random(shape) * (rng.random(shape) < 0.9)

    backward = some(shape, 2.0)
    edges = (*lead, table.p, table.v)
    return Times(
        forward_s=some(shape),
        backward_s=backward,
        weight_s=backward * rng.random(shape),
        recompute_s=some(shape),
        transfer_s=some(edges, 0.5),
        gradient_transfer_s=some(edges, 0.5) if seed % 2 else None,
        sending_s=some(edges, sending) if sending else 0.0,
        gradient_sending_s=some(edges, sending) if seed % 3 == 0 and sending else None,
        by_micro_batch=by_micro_batch,
    )
