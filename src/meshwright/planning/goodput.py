"""The share of a long run that trains: failures, the work lost since the last checkpoint, restarts, checkpoints.

Numbers that nobody states are those of public runs, and their spread is the range of the answer:

    failures    2e-5 per device and hour: Llama 3 405B had 419 unexpected stops in 54 days on 16,384 H100, 1.97e-5
                (arXiv 2407.21783, section 3.3.4, July 2024); 1 to 2 a week on BLOOM's 384 A100, 1.6e-5 to 3.1e-5
                (bigscience, tr11-176B-ml chronicles, 2022); 105 restarts in about two months on OPT-175B's 992 A100,
                7.3e-5 (arXiv 2205.01068, section 2.5, 2022)
    restart     10 minutes: MegaScale notices and diagnoses a fault in less (arXiv 2402.15627, section 6.3, 2024)
    repair      another node stands in at once, unless repair=, spares= and short= say otherwise
    preemption  a spot node that is taken away stops the job as a failure does; only as often as the cluster states
    interval    30 minutes: 5 minutes on Fire-Flyer (arXiv 2408.14158, 2024), 3 hours on BLOOM; the geometric mean
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.records import Record
from meshwright.specs.failures import Failures
from meshwright.units import HOUR_S

USUAL_NODE = 8
"""Devices of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What public runs report: the middle, and the mildest and the worst of them."""

    value: float
    mild: float
    worst: float


USUAL = {
    "rate_per_device_hour": Usual(value=2e-5, mild=1.6e-5, worst=7.3e-5),
    "restart_s": Usual(value=600.0, mild=180.0, worst=1800.0),
    "interval_s": Usual(value=1800.0, mild=300.0, worst=10_800.0),
}
LEAST = 1e-3
"""Share of a run; one of which less is left would never end."""
_TINY = 1e-100
"""Stands for a share of 0, whose logarithm and days would be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput(Record):
    """The share of the time that trains, and what the rest goes to."""

    share: float
    low: float
    high: float
    failures_per_day: float
    """Preemptions not counted."""
    interval_s: float
    restart_s: float
    stall_s: float
    assumed: tuple[str, ...]
    """Fields of `Failures` that nobody stated."""
    staffed: float = 1.0
    """Share of the time, or of the speed, that nodes in repair leave."""
    spares: int = 0
    """Nodes that stand by."""
    preemptions_per_day: float = 0.0
    """Preemptions per day of all spot nodes in use, together."""


def goodput(
    devices: int,
    failures: Failures | None,
    snapshot_s: float,
    per_node: int = USUAL_NODE,
    preemptions_per_hour: float = 0.0,
) -> Goodput:
    """The share of a run that trains, with the range of what is not stated.

    Args:
        devices: the number of devices of the job; any one's failure stops it.
        failures: the failures as stated, None for nothing.
        snapshot_s: the seconds of a snapshot that training stands still for a checkpoint where that is not stated: the
            copy of a device's state to its host, which writes it out while training goes on.
        per_node: devices that leave with one that fails.
        preemptions_per_hour: the preemptions per hour of all spot nodes of the job together.
    """
    stated = failures or Failures()
    stall_s = snapshot_s if stated.stall_s is None else stated.stall_s
    usual = {name: one for name, one in USUAL.items() if getattr(stated, name) is None}
    middle = {name: usual[name].value if name in usual else getattr(stated, name) for name in USUAL}

    def share(**others: float) -> float:
        rate, restart_s, interval_s = ({**middle, **others}[name] for name in USUAL)
        rate_per_s = (rate * devices + preemptions_per_hour) / HOUR_S
        trains = training_share(rate_per_s, restart_s, interval_s, stall_s)
        return max(trains * staffed_share(rate_per_s, stated, per_node / devices), _TINY)

    found, rate = share(), middle["rate_per_device_hour"]
    stops_per_s = (rate * devices + preemptions_per_hour) / HOUR_S
    # The rate, the restart and the interval are independent of one another, so their logarithms add as squares.
    lost = math.hypot(*(math.log(found / max(share(**{name: one.worst}), LEAST)) for name, one in usual.items()))
    won = math.hypot(*(math.log(share(**{name: one.mild}) / found) for name, one in usual.items()))
    return Goodput(
        share=found,
        low=found * math.exp(-lost) if stops_per_s else found,
        high=min(1.0, found * math.exp(won)) if stops_per_s else found,
        failures_per_day=rate * devices * 24.0,
        interval_s=middle["interval_s"],
        restart_s=middle["restart_s"],
        stall_s=stall_s,
        assumed=tuple(usual) if stops_per_s else (),
        staffed=staffed_share(stops_per_s, stated, per_node / devices),
        spares=stated.spares,
        preemptions_per_day=preemptions_per_hour * 24.0,
    )


def staffed_share(rate_per_s: float, failures: Failures, node_share: float) -> float:
    """What nodes in repair leave: P(N <= spares), or E[1 - node max(N - spares, 0)] where the run goes on with fewer.

    N is the number of nodes in repair, Poisson with mean rate x repair: failures come at a constant rate, and every
    node is away for the repair (M/G/infinity, whatever its distribution).

    Args:
        rate_per_s: the rate per second of failures of the whole job.
        failures: the failures with repair, spares, and what the run does without enough nodes.
        node_share: the node share of one node in the speed of the job.

    Source: Palm's theorem, in Feller, "An Introduction to Probability Theory", volume I, XVII.7, 1968.
    """
    if failures.repair_s is None or rate_per_s == 0:
        return 1.0
    mean = rate_per_s * failures.repair_s
    most = int(mean + 12 * math.sqrt(mean)) + failures.spares + 20
    chances = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(most)]
    if failures.short == "wait":
        return min(sum(chances[: failures.spares + 1]), 1.0)
    missing = (max(k - failures.spares, 0) for k in range(most))
    return sum(chance * max(1 - node_share * gone, 0.0) for chance, gone in zip(chances, missing, strict=True))


def training_share(rate_per_s: float, restart_s: float, interval_s: float, stall_s: float) -> float:
    """interval / (M e^(R/M) (e^((interval + stall) / M) - 1)), with M = 1 / rate and R the restart.

    The expected wall time of one interval of work where failures come at a constant rate and strike restarts too; for
    a rate of 0, interval / (interval + stall).

    Args:
        rate_per_s: the rate per second of failures of the whole job.
        restart_s: the seconds until it trains again.
        interval_s: the interval in seconds of work between checkpoints.
        stall_s: the stall in seconds of one checkpoint.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006,
    equation 20.
    """
    if rate_per_s == 0:
        return interval_s / (interval_s + stall_s)
    exponent = rate_per_s * restart_s + rate_per_s * (interval_s + stall_s)
    if exponent > 700:
        return 0.0
    wall_s = math.exp(rate_per_s * restart_s) * math.expm1(rate_per_s * (interval_s + stall_s)) / rate_per_s
    return interval_s / wall_s
