"""Whether more devices ever make a step slower, and whether a cluster named in two halves plans as one.

Pairs of clusters are drawn: the later has one node more (or a few) of one kind. Twins are one kind of device, planned
as one group and as two equal groups over the same fabric. Gaps to the lower bound are printed beside both, and what of
the plans the bound leaves out. Of an answer its quickest plan counts, which may stand behind one that a framework
starts. The draws depend on the seed alone: `python -m benchmarks.more_devices --pairs 20 --twins 10`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass

import numpy as np

from meshwright import plan
from meshwright.app.plans.plan_set import PlanSet, RankedPlan
from meshwright.errors import InfeasibleError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.sources.native.bound import least_sequence_s, least_update_s
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.job import Job
from meshwright.units import percent, seconds

MODELS = {
    "small": ("llama-3.2-1b", "llama-3.2-3b", "qwen3-8b"),
    "large": ("llama-3.1-70b", "mixtral-8x22b", "llama-3.1-8b"),
}
KINDS = ("H100", "A100-80", "H800", "L40S", "H200")
BATCHES = {"small": (8, 16, 32, 64, 128), "large": (256, 512, 1024)}
SAME = 1e-3
"""Share by which a step may be slower and count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One question twice, the second time with more devices."""

    model: str
    batch: int
    fewer: str
    more: str


def drawn_pair(draw: random.Random) -> Pair:
    """A pair of up to 32 devices, or of up to 1,024."""
    size = draw.choice(("small", "large"))
    first, second = draw.sample(KINDS, 2)
    if size == "small":
        counts = [draw.randint(1, 8), draw.randint(1, 7)]
        more, texts = draw.randint(1, 8 - counts[1]), ("1x{}x{}", "1x{}x{}")
    else:
        nodes = draw.choice((4, 8, 16, 32, 64))
        counts = [nodes, draw.randint(1, nodes)]
        more, texts = draw.choice((1, 2, 3, 4)), ("{}x8x{}", "{}x8x{}")

    def said(extra: int) -> str:
        return ",".join((texts[0].format(counts[0], first), texts[1].format(counts[1] + extra, second)))

    return Pair(model=draw.choice(MODELS[size]), batch=draw.choice(BATCHES[size]), fewer=said(0), more=said(more))


def drawn_twin(draw: random.Random) -> Pair:
    """One kind of device as one group, and as two equal ones."""
    size = draw.choice(("small", "large"))
    kind = draw.choice(KINDS)
    nodes = draw.choice((2, 4, 8) if size == "small" else (4, 6, 8, 12, 16))
    whole, half = f"{nodes}x8x{kind}", f"{nodes // 2}x8x{kind}"
    batches = [batch for batch in BATCHES[size] if batch >= 32]
    return Pair(model=draw.choice(MODELS[size]), batch=draw.choice(batches), fewer=whole, more=f"{half},{half}")


def compared(name: str, pairs: list[Pair]) -> None:
    """Print each pair, and what they add up to."""
    changes: list[float] = []
    gaps: list[float] = []
    parts: list[dict[str, float]] = []
    for pair in pairs:
        started = time.process_time()
        before, after = (_planned(pair, gpus) for gpus in (pair.fewer, pair.more))
        took_s = time.process_time() - started
        if before is None or after is None:
            none = before is not None and after is None
            print(f"{name} {pair}: {'fits on fewer devices alone' if none else 'does not fit'}", flush=True)
            changes += [1.0] if none else []
            continue
        first_s, second_s = (_quickest(one).estimate.step_time_s for one in (before, after))
        changes.append(second_s / first_s - 1)
        bound_s = after.searched.bound_s if after.searched else None
        if bound_s:
            gaps.append(second_s / bound_s - 1)
            parts.append(gap_parts(after, bound_s))
        print(
            f"{name} {pair.model} gbs {pair.batch}, {pair.fewer} -> {pair.more}: {seconds(first_s)} -> "
            f"{seconds(second_s)} ({changes[-1]:+.2%}), gap {percent(gaps[-1]) if bound_s else '-'}, {took_s:.1f} s",
            flush=True,
        )
    if changes:
        slower = sum(change > SAME for change in changes)
        print(f"{name}: {len(changes)} compared, {slower} slower, {min(changes):+.2%} to {max(changes):+.2%}")
    if gaps:
        print(f"{name}: median gap to the bound {percent(statistics.median(gaps))}")
        for part in dict.fromkeys(part for one in parts for part in one):
            shares = [one.get(part, 0.0) for one in parts]
            print(f"  {part}: median {statistics.median(shares):.1%}, mean {statistics.mean(shares):.1%}")


def gap_parts(found: PlanSet, bound_s: float) -> dict[str, float]:
    """Parts of the best step that its bound leaves out or holds to be shorter, over the bound; they sum to the gap.

    The bound has the compute of a step at the best rate of every device, all of them equally busy. Beyond it lie, in
    seconds of compute, devices weighted by their best rate:

        unequal devices   the busiest worker over the mean of those in use
        idle devices      that mean over the mean of all there are
        slower compute    the mean over the bound: smaller products and micro-batches, recompute

    Args:
        found: plans of a cluster of several groups.
        bound_s: of its step, seconds.
    """
    best = _quickest(found)
    assert isinstance(best.job, Job)
    model, workload = best.job.model, best.job.workload
    update_s = least_update_s(model, workload, [(hardware_of(g, workload), g.devices) for g in found.cluster.groups])
    took_s = dict(best.estimate.breakdown_s)
    busiest_s = took_s.pop("compute", 0.0) + took_s.pop("recompute", 0.0)
    took_s["optimizer"] = took_s.get("optimizer", 0.0) - update_s

    def rate(group: NodeGroup) -> float:
        return 1.0 / least_sequence_s(model, workload, hardware_of(group, workload))

    run = PlanPricer(model, best.job.cluster, workload).run(best.job.plan)
    computed = ("compute", "recompute")
    compute_s = np.concatenate([sum(own.columns.parts_s[part][0] for part in computed) for own in run.pipelines])
    used = np.array([rate(site.group) * site.devices for own in run.stages for site in own])
    done = float(compute_s @ used)
    mean_s, of_all_s = done / used.sum(), done / sum(rate(group) * group.devices for group in found.cluster.groups)
    parts_s = {
        "unequal devices": busiest_s - mean_s,
        "idle devices": mean_s - of_all_s,
        "slower compute": of_all_s - (bound_s - update_s),
    }
    return {part: took / bound_s for part, took in (parts_s | took_s).items()}


def _quickest(found: PlanSet) -> RankedPlan:
    return min(found.plans, key=lambda one: one.estimate.step_time_s)


def _planned(pair: Pair, gpus: str) -> PlanSet | None:
    try:
        return plan(pair.model, gpus=gpus, global_batch=pair.batch, seq_len=2048, top=2)
    except InfeasibleError:
        return None


def main() -> None:
    """Draw and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--twins", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    compared("pair", [drawn_pair(draw) for _ in range(options.pairs)])
    compared("twin", [drawn_twin(draw) for _ in range(options.twins)])


if __name__ == "__main__":
    main()
