"""Chimera: pipelines in both directions at once, each worker holding a stage of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.parameters import flag, whole
from meshwright.schedules.steady import SteadyOrder
from meshwright.schedules.table import Kind, Placement, ScheduleTable


def two_way_problems(name: str, p: int, m: int) -> list[Problem]:
    """The constraints of schedules that send micro-batches both ways through one stage per direction and worker."""
    found = []
    if p % 2:
        near = f"p = {p - 1} or {p + 1}" if p > 1 else "p = 2"
        why = "the two directions meet between two workers, so their number is even"
        found.append(Problem(what=f"{name}: p = {p}", why=why, fix=near, field="p"))
    if m < 2:
        why = "each direction takes at least one micro-batch"
        found.append(Problem(what=f"{name}: m = {m}", why=why, fix="m = 2", field="m"))
    return found


def _ahead(p: int, kind: Kind, stage: int, unit: int) -> Key:
    """Backwards first, then earlier micro-batches, then the stage nearer to the end of its pipeline."""
    return int(kind is not Kind.B), unit, -(stage % p), stage // p


def _halved(placement: Placement, counts: list[int]) -> ScheduleTable:
    """The halves of every micro-batch forward one right behind the other, then back in reverse, as soon as they can."""
    p = placement.p

    def rank(kind: Kind, stage: int, unit: int) -> Key:
        second = kind is not Kind.B and unit % 2
        return (-1, unit, 0, 0) if second else _ahead(p, kind, stage, unit)

    # One half more than a worker's p lets the next forward begin while the oldest backward ends.
    table = list_table(
        placement, [2 * count for count in counts], (1, 2), rank, lambda stage: None if stage % p else p + 1
    )
    unit = np.where(table.kind == Kind.B, table.micro_batch ^ 1, table.micro_batch)
    return replace(table, micro_batch=unit, segments=2)


@dataclass(frozen=True, kw_only=True)
class Chimera(SteadyOrder):
    """`pairs` pipelines down and as many up: half of the micro-batches go each way, m counts all of them.

    In units of p micro-batches, forward of stage s runs in slot 2*i + s and backward in slot 2*i + 2*p - 1 - s, where i
    counts the micro-batches of its pipeline; the next unit follows 2*p slots later. Pipeline j of a direction starts
    j*p/pairs workers further. The slots order each worker's tasks; the simulator gives them times.
    With m = k*p: time m*(f + b) + (p/pairs - 2)*(b + (k - 1)*(b - f)) for b >= f; one pair keeps p/2 + 1 to p
    activations in flight. Fewer micro-batches than p are shared out as evenly as they go. The slots of more than one
    pair follow the placement in the public code; nothing says that they are its exact order.
    Units one behind the other pause where b > f. With `doubling`, for m > p, forwards run ahead until p micro-batches
    of each pipeline are in flight, twice as many as otherwise, and fill the pauses. With `halving` a forward takes as
    long as the backward of half a micro-batch, so that forwards fill the pauses and at most p micro-batches live on a
    worker: its halves (of its samples, or of its sequence where it has one) run forward together and back apart, the
    later one first. The paper names both without their orders: these are reconstructions by list scheduling with
    b = 2*f. Doubling is worth it where many micro-batches fit, halving where half a micro-batch runs as efficiently.
    Source: Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines",
    SC 2021.
    """

    pairs: int = whole(1, "Pipelines per direction, a divisor of p/2.")
    """A worker holds 2*pairs stages."""
    doubling: bool = flag("Forwards of the next p micro-batches run ahead, for m > p.", tried=True)
    """m may then be any number above p."""
    halving: bool = flag("Backwards run by halves of a micro-batch.", tried=True)
    """m may then be any number."""

    name = "chimera"
    only_chunks = 1
    title = "Chimera: pipelines in both directions"
    source = "Li and Hoefler, Chimera, SC 2021"
    weight_copies = 2
    traffic = "gradients of the 2*pairs copies of each stage are all-reduced between the workers that hold them"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """m*(f + b) + (p/pairs - 2)*(b + (m/p - 1)*(b - f)), for m a multiple of p and b >= f, none run ahead."""
        if m % p or backward_s < forward_s or self.halving or (self.doubling and m > p):
            return None
        between = backward_s + (m // p - 1) * (backward_s - forward_s)
        return m * (forward_s + backward_s) + (p // self.pairs - 2) * between

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """2*pairs on every worker."""
        return (2 * self.pairs,) * p

    def tasks_per_share(self, v: int) -> int:
        """Both halves of a micro-batch, or the whole."""
        return v * self.sections()

    def sections(self) -> int:
        """Halves."""
        return 2 if self.halving else 1

    @property
    def parts_samples(self) -> bool:
        """Halves of the samples are micro-batches of their own to a stage."""
        return self.halving

    def contradictions(self) -> list[Problem]:
        """Forwards run ahead by micro-batches or backwards run by halves."""
        if not (self.doubling and self.halving):
            return []
        why = "each fills the pauses between units in its own way"
        return [Problem(what=f"{self.name}: doubling and halving", why=why, fix="one of them", field="halving")]

    def period(self, p: int, v: int) -> int | None:
        """Each unit of p micro-batches repeats the one before; what fills the pauses between units has its own."""
        return super().period(p, v) if self.period_found else p

    @property
    def period_found(self) -> bool:
        """Where something fills the pauses."""
        return self.doubling or self.halving

    @property
    def chains(self) -> int:
        """Twice as many chains as there are pairs, as many each way."""
        return 2 * self.pairs

    def placement(self, p: int, v: int = 1) -> Placement:
        """Down pipelines first, then the up ones; each starts p/pairs workers after the one before."""
        shifts = [j * (p // self.pairs) for j in range(self.pairs)]
        down = [[(shift + s) % p for s in range(p)] for shift in shifts]
        return Placement.of_chains(down + [[(2 * p - 1 - s - shift) % p for s in range(p)] for shift in shifts])

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        found = two_way_problems(self.name, p, m)
        if not p % 2 and (p // 2) % self.pairs:
            legal = [n for n in range(1, p // 2 + 1) if not (p // 2) % n]
            near = sorted(legal, key=lambda n: abs(n - self.pairs))[:2]
            why = "the pipelines of a direction start p/pairs workers apart, an even number"
            fix = f"pairs = {' or '.join(str(n) for n in sorted(near))}"
            found.append(Problem(what=f"chimera: pairs = {self.pairs} with p = {p}", why=why, fix=fix, field="pairs"))
        if found:
            return found
        if m > p and m % p and not (self.doubling or self.halving):
            why = "more than p micro-batches run in units of p"
            fix = f"m = {m - m % p} or {m - m % p + p}, or doubling or halving"
            return [Problem(what=f"chimera: m = {m} with p = {p}", why=why, fix=fix, field="m")]
        if m < 2 * self.pairs:
            why = "every pipeline takes at least one micro-batch"
            return [Problem(what=f"chimera: m = {m}", why=why, fix=f"m = {2 * self.pairs}", field="m")]
        return []

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        placement = self.placement(p)
        chains, per_unit = 2 * self.pairs, p // (2 * self.pairs)
        # Odd micro-batches go down first: chain c of the dealing order is pair c // 2, direction c % 2.
        counts = [0] * chains
        for dealt in range(chains):
            counts[dealt // 2 + self.pairs * (dealt % 2)] = m // chains + (dealt < m % chains)
        if self.halving:
            return _halved(placement, counts)
        if self.doubling and m > p:
            return list_table(placement, counts, (1, 2), partial(_ahead, p), lambda stage: None if stage % p else p)
        kinds, stages, units, slots = [], [], [], []
        for chain, count in enumerate(counts):
            unit, s = (axis.reshape(-1) for axis in np.meshgrid(np.arange(count), np.arange(p), indexing="ij"))
            base = 2 * p * (unit // per_unit) + 2 * (unit % per_unit)
            for kind, slot in ((Kind.F, base + s), (Kind.B, base + 2 * p - 1 - s)):
                kinds.append(np.full(len(unit), int(kind)))
                stages.append(chain * p + s)
                units.append(unit)
                slots.append(slot)
        stage = np.concatenate(stages)
        worker = placement.worker[stage]
        order = np.lexsort((np.concatenate(slots), worker))
        return ScheduleTable(
            placement=placement,
            micro_batches=tuple(counts),
            worker=worker[order],
            kind=np.concatenate(kinds)[order],
            stage=stage[order],
            micro_batch=np.concatenate(units)[order],
        )
