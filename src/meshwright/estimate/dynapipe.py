"""A step whose micro-batches are grouped by dynamic programming and differ in size: priced by size, then simulated.

Sequences of a data-parallel rank are sorted, grouped so that fill T + sum(t) is least (`kernels.micro_batches`), and
run by the plan's schedule with the time of each micro-batch. No micro-batch has more tokens than one of the plan's
packed ones, so that the memory of these bounds that of the step. Ranks are taken to get micro-batches of equal time.

Source: Jiang et al., "DynaPipe: Optimizing Multi-task Training through Dynamic Pipelines", EuroSys 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.estimate.pricer import PlanPricer, RunPlan
from meshwright.estimate.run import PipelineColumns
from meshwright.estimate.sequences import rows_of, with_encoder_of
from meshwright.kernels.micro_batches import grouped
from meshwright.kernels.packing import strata
from meshwright.schedules import Times
from meshwright.schedules.plan_rows import schedule_of
from meshwright.shapes import Float, Int
from meshwright.specs.lengths import DYNAMIC, Packing
from meshwright.specs.plan import ExecutionPlan

MOST = 1024
"""Sequences of a rank that are grouped one by one; of more, these stand for all."""
PADDED, SHORTEST = 8, 64
"""Lengths are padded to multiples of the one, and priced from the other up."""
_DURATIONS = ("forward_s", "backward_s", "weight_s", "recompute_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicStep:
    """A step of micro-batches that differ, instead of packed rows."""

    step_time_s: float
    busy: float
    """Seconds in tasks of the busiest worker over those with packed rows."""
    micro_batches: tuple[tuple[int, int], ...]
    """(sequences, padded length) of a rank's, in the order in which they run."""
    rounds: float
    """How often they come in a step."""
    padding: float
    """Share of computed tokens."""


def dynamic_step(plan: ExecutionPlan, run: RunPlan, pricer: PlanPricer) -> DynamicStep | None:
    """The step with micro-batches grouped by time; None where the workload packs its rows otherwise.

    Args:
        plan: the plan of one pipeline.
        run: the run with packed rows.
        pricer: the pricer of the plan's job.

    Raises:
        UnsupportedError: pipelines side by side, or a schedule without a flush.
    """
    workload = pricer.workload
    rows = rows_of(workload)
    if rows is None or Packing.read(workload.packing).name != DYNAMIC:
        return None
    pipeline, packed = plan.pipelines[0], run.pipelines[0]
    schedule, columns = schedule_of(pipeline.schedule), packed.columns
    if len(plan.pipelines) > 1 or not schedule.flushes:
        why = "micro-batches are grouped for one pipeline, on one kind of device, with a flush every step"
        fix = "use --packing pack, or a plan of one pipeline and a schedule such as 1f1b"
        raise UnsupportedError(what=f"packing {DYNAMIC}", why=why, fix=fix, field="packing", code="MW406")
    each = rows.sequences * workload.global_batch / plan.data_degree(pipeline)
    drawn = max(min(math.ceil(each), MOST), 1)
    rounds = each / drawn
    unit = math.lcm(PADDED, *(2 * s.cp * s.tp for s in plan.strategies))
    share = np.array([share for _, share in workload.sequence_lengths])
    cut = np.array([min(length, workload.seq_len) for length, _ in workload.sequence_lengths])
    own = strata(cut, share, drawn)
    padded = [min(math.ceil(length / unit) * unit, workload.seq_len) for length in own.tolist()]
    prices = _Prices(plan, pricer, columns, unit, pipeline.micro_batch * workload.seq_len)
    fill = (columns.p - 1) / columns.v
    groups = grouped(padded, prices.busiest_s, most_tokens=prices.most_tokens, fill=fill, rounds=rounds)
    groups = _legal(groups, lambda m: not schedule.problems(columns.p, m, columns.v))
    found = [_simulated(order, prices, schedule, columns) for order in _orders(groups)]
    (end_s, busy_s), order = min(zip(found, _orders(groups), strict=True), key=lambda pair: pair[0][0])
    total_s = end_s + (rounds - 1.0) * busy_s
    computed = sum(count * length for count, length in order)
    return DynamicStep(
        step_time_s=float(run.step.step_time_s[0] - packed.end_s.max() + total_s),
        busy=float(rounds * busy_s / packed.busy.max()),
        micro_batches=tuple(order),
        rounds=rounds,
        padding=1.0 - float(own.sum()) / computed,
    )


class _Prices:
    """Durations of micro-batches of any size, interpolated between sizes that are priced."""

    def __init__(
        self, plan: ExecutionPlan, pricer: PlanPricer, packed: PipelineColumns, unit: int, most_tokens: int
    ) -> None:
        self.packed, self.most_tokens = packed, most_tokens
        self.names = [name for name in _DURATIONS if getattr(packed, name) is not None]
        longest = pricer.workload.seq_len
        least = min(max(unit, SHORTEST), longest)
        halves = [longest >> power for power in range(20) if longest >> power > least]
        self.lengths = sorted({*(min(-(-half // unit) * unit, longest) for half in halves), least})
        self.tables: list[tuple[np.ndarray, np.ndarray]] = []
        pipeline = plan.pipelines[0]
        for length in self.lengths:
            one = replace(pricer.workload, seq_len=length, sequence_lengths=(), packing="pack")
            model = with_encoder_of(pricer.model, longest, length)
            other = PlanPricer(model, pricer.cluster, one, pricer.hardware, transfers_apart=False)
            most = max(most_tokens // length, 1)
            counts = sorted({1, most, *(most >> power for power in (1, 2, 4, 6) if most >> power)})
            found = []
            for count in counts:
                few = replace(pipeline, micro_batch=count, num_micro_batches=packed.p)
                columns = other.run(replace(plan, pipelines=(few,))).pipelines[0].columns
                found.append(np.stack([getattr(columns, name)[0] for name in self.names]))
            self.tables.append((np.array(counts, dtype=float), np.stack(found)))

    def durations(
        self, counts: Int[np.ndarray, " sizes"], length: int
    ) -> Float[np.ndarray, "sizes names workers chunks"]:
        """Seconds of tasks of micro-batches of so many sequences of a padded length."""
        above = min(int(np.searchsorted(self.lengths, length)), len(self.lengths) - 1)
        below = max(above - 1, 0)
        low, high = self.lengths[below], self.lengths[above]
        # Shorter ones than any that is priced take as long as the shortest.
        share = 0.0 if low == high else max((length - low) / (high - low), 0.0)
        return (1.0 - share) * self._at(below, counts) + share * self._at(above, counts)

    def _at(self, place: int, counts: Int[np.ndarray, " sizes"]) -> Float[np.ndarray, "sizes names workers chunks"]:
        """Prices at counts between the priced ones, and beyond the largest on the line of the last two."""
        known, table = self.tables[place]
        if len(known) == 1:
            return table[0] * counts[:, None, None, None]
        right = np.clip(np.searchsorted(known, counts), 1, len(known) - 1)
        share = ((counts - known[right - 1]) / (known[right] - known[right - 1]))[:, None, None, None]
        return np.asarray(table[right - 1] * (1.0 - share) + table[right] * share)

    def busiest_s(self, counts: Int[np.ndarray, " sizes"], length: int) -> Float[np.ndarray, " sizes"]:
        """Seconds of a micro-batch on the worker that takes longest."""
        taken = [number for number, name in enumerate(self.names) if name != "weight_s"]
        return np.asarray(self.durations(counts, length)[:, taken].sum(axis=(1, 3)).max(axis=1))


def _simulated(
    order: Sequence[tuple[int, int]], prices: _Prices, schedule: object, columns: PipelineColumns
) -> tuple[float, float]:
    """End of the last task, and seconds in tasks of the busiest worker."""
    tasks = np.stack([prices.durations(np.array([count]), length)[0] for count, length in order], axis=-1)
    own = dict(zip(prices.names, tasks[:, None], strict=True))
    mean = sum(count * length for count, length in order) / len(order) / prices.most_tokens
    latency = columns.transfer_s if columns.transfer_s.ndim == 3 else columns.transfer_s[:, None, None]
    transfer_s = np.broadcast_to(latency * mean, columns.forward_s.shape)
    times = Times(**own, transfer_s=transfer_s, by_micro_batch=True)
    busy = sum(seconds for name, seconds in own.items() if name != "weight_s")
    end_s = schedule.end_s(columns.p, len(order), columns.v, times)  # type: ignore[attr-defined]
    return float(np.max(end_s)), float(np.max(np.sum(busy, axis=(2, 3))))


def _orders(groups: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], ...]:
    """Ascending, descending, and long ones between short ones."""
    groups = list(groups)
    half = len(groups) // 2
    mixed = [one for pair in zip(groups[:half], groups[half : 2 * half], strict=True) for one in pair]
    return groups, groups[::-1], mixed + groups[2 * half :]


def _legal(groups: list[tuple[int, int]], legal: object) -> list[tuple[int, int]]:
    """Groups of which the largest are halved until their number is one that the schedule runs."""
    found = list(groups)
    while not legal(len(found)):  # type: ignore[operator]
        count, length = max(found, key=lambda group: group[0])
        if count < 2:
            return list(groups)
        place = found.index((count, length))
        found[place : place + 1] = [(count // 2, length), (count - count // 2, length)]
    return found
