"""Brute force for small spaces: every row written out, each priced on its own as a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from meshwright.estimate.layout import ModelLayout, expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.rules.legality import row_problems
from meshwright.schedules import schedule_named
from meshwright.search.axes import recompute_words
from meshwright.search.space import most_chunks
from meshwright.specs import ModelSpec, PlanRow, Workload
from meshwright.specs.row import recompute_fields
from tests.search.spaces import SmallSpace

WAYS = (("alltoall", "none"), ("deduplicated", "none"), ("deduplicated", "paired-wgrad"))
"""How tokens reach experts on other ranks, and what runs beside."""


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def context_levels(cp: int) -> list[tuple[tuple[str, int], ...]]:
    if cp == 1:
        return [()]
    plain = [(("p2p", cp),), (("a2a", cp),), (("ag", cp),)]
    return plain + [(("a2a", inner), ("p2p", cp // inner)) for inner in divisors(cp)[1:-1]]


def shardings(dp: int, cp: int) -> list[tuple[str, int]]:
    if dp * cp == 1:
        return [("z0", 0)]
    plain = [(name, 0) for name in ("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep")]
    return plain + [("hsdp", shard * cp) for shard in divisors(dp)[:-1] if shard * cp > 1]


def recomputes(selective: str, layout: ModelLayout, pp: int, vpp: int) -> list[tuple[str, int]]:
    largest = max(layout.split(pp * vpp))
    quarters = {math.ceil(largest * quarter / 4) for quarter in (1, 2, 3)} - {largest}
    return [("none", 0), (selective, 0), ("full", 0), *(("block", k) for k in sorted(quarters))]


def pipelines(schedules: tuple[str, ...], layers: int) -> list[tuple[str, int]]:
    """Every pair of a schedule and a number of chunks; without names, those of the default space."""
    if not schedules:
        return [("1f1b", 1), ("gpipe", 1), *(("interleaved", v) for v in range(2, layers + 1))]
    return list(itertools.product(schedules, range(1, layers + 1)))


def in_groups(schedule: str, pp: int, micro_batches: int) -> str:
    """Interleaved 1F1B in the smallest groups, pp or larger, of which the last is whole or at least pp."""
    rests = ((group, micro_batches % group) for group in range(pp, micro_batches + 1))
    group = next((group for group, rest in rests if rest == 0 or rest >= pp), pp)
    return f"interleaved-group{group}" if schedule == "interleaved" and group > pp else schedule


def all_rows(
    model: ModelSpec,
    workload: Workload,
    devices: int,
    schedules: tuple[str, ...] = (),
    orders: tuple[str, ...] = ("shared",),
    overlaps: tuple[str, ...] = ("bulk", "ring"),
    prefetches: tuple[str, ...] = ("1",),
    asked_for: Callable[[PlanRow], bool] = lambda row: True,
) -> Iterator[PlanRow]:
    """Every legal row of the default space, or with these schedules, by nested loops and the legality rules alone.

    Those that are not asked for are not checked either.
    """
    experts = [layer.mlp for layer in model.kinds() if layer.mlp.kind == "moe"]
    eps = divisors(experts[0].experts) if experts else [1]
    etps = [d for d in divisors(experts[0].ffn_hidden) if d <= devices] if experts else [1]
    layout = ModelLayout.of(model, workload.seq_len)
    for tp, cp, pp in itertools.product(divisors(devices), repeat=3):
        dp, rest = divmod(devices, tp * cp * pp)
        if rest or dp == 0 or pp > model.num_layers or workload.global_batch % dp:
            continue
        for mbs, levels, (spread, way), etp, overlap in itertools.product(
            divisors(workload.global_batch // dp),
            context_levels(cp),
            [
                (ep, (*way, order))
                for ep in eps
                for way in (WAYS if ep > 1 else WAYS[:1])
                for order in (orders if ep > 1 else ("shared",))
            ],
            etps,
            overlaps if tp > 1 else ("bulk",),
        ):
            for schedule, vpp in pipelines(schedules, model.num_layers):
                if pp == 1 and (schedule, vpp) != ("1f1b", 1):
                    continue
                if pp * vpp > model.num_layers or vpp > most_chunks(
                    schedule_named(schedule), pp, workload.global_batch // (dp * mbs)
                ):
                    continue
                named = in_groups(schedule, pp, workload.global_batch // (dp * mbs))
                degrees = {
                    "tp": tp,
                    "cp": levels,
                    "pp": pp,
                    "vpp": vpp,
                    "ep": spread,
                    "etp": etp,
                    "dispatcher": way[0],
                    "ep_overlap": way[1],
                    "prioritised": way[2] == "first",
                    "dp": dp,
                    "mbs": mbs,
                    "gbs": workload.global_batch,
                    "schedule": named,
                    "tp_overlap": overlap,
                }
                # Some schedules demand that everything is recomputed; asked again below, of each row.
                asked = PlanRow(**degrees | {"ep_overlap": "none", "prioritised": False}, recompute="full")
                if row_problems(asked, model, workload.seq_len, devices):
                    continue
                for (sharding, group), (recompute, layers), prefetch in itertools.product(
                    shardings(dp, cp), recomputes(recompute_words(model, workload)[1], layout, pp, vpp), prefetches
                ):
                    row = PlanRow(
                        **degrees,
                        sharding=sharding,
                        shard_group=group,
                        data_words=() if prefetch == "1" else (f"prefetch{prefetch}",),
                        **recompute_fields(recompute),
                        recompute_layers=layers,
                    )
                    # A rule of strategies, not of rows: sharded weights leave layer by layer, in no order.
                    unordered = row.prioritised and row.data().zero == 3
                    if asked_for(row) and not unordered and not row_problems(row, model, workload.seq_len, devices):
                        yield row


def said_of(row: PlanRow, axis: str) -> object:
    """What a row says on an axis."""
    if axis == "recompute":
        return row.recompute_word.rstrip("0123456789")
    if axis == "prefetch":
        return str(row.data().prefetch)
    if axis == "ep_order":
        return "first" if row.prioritised else "shared"
    return getattr(row, "cp_degree" if axis == "cp" else axis)


def price_everything(small: SmallSpace) -> list[dict[str, object]]:
    """Every plan of the space: its text, time, peak and verdict."""
    found = []
    model, cluster, workload = small.model, small.cluster, small.workload
    held = dict(small.pins)
    usual = {"ep_order": ("shared",), "tp_overlap": ("bulk", "ring"), "prefetch": ("1",)}
    named = held.pop("schedule", ()), *(held.get(axis, values) for axis, values in usual.items())

    def pinned(row: PlanRow) -> bool:
        return all(said_of(row, axis) in values for axis, values in held.items())

    for row in all_rows(model, workload, cluster.devices, *named, asked_for=pinned):
        estimate = estimate_plan(expand(row, model, workload.seq_len), model, cluster, workload)
        found.append(
            {
                "row": row.format(),
                "time_s": estimate.step_time_s,
                "peak_bytes": estimate.peak_memory_bytes,
                "fits": estimate.fits,
            }
        )
    return found


if __name__ == "__main__":
    # A process of its own prices some twenty times quicker than one in which every array's shape is checked.
    import json
    import sys
    from dataclasses import replace

    from tests.search.spaces import CATALOGUE, SPACES

    chosen = (*SPACES, CATALOGUE)[int(sys.argv[1])]
    json.dump(price_everything(replace(chosen, pins=()) if "whole" in sys.argv else chosen), sys.stdout)
