"""What a step costs, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshwright.estimate.result import LinkTraffic, StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.reasons import price_reason, price_reasons, traffic_reasons
from meshwright.report.words.reasons import reason_text
from meshwright.specs.cluster import ClusterSpec


def price_lines(job: PlannedJob, estimate: StepPrice, aim: Aim = QUICKEST) -> Iterator[str]:
    """What keeps to which limits, what a step costs and what of it each link takes."""
    return map(reason_text, price_reasons(job, estimate, aim))


def price_said(price_per_step: float, step_time_s: float, used: Counter[str], cluster: ClusterSpec) -> str:
    """`price of a step: 0.62 USD: 64 H100 at 2.5 USD/h for 14 s; idle devices are not rented`."""
    return reason_text(price_reason(price_per_step, step_time_s, used, cluster))


def traffic_lines(traffic: tuple[LinkTraffic, ...], cluster: ClusterSpec) -> Iterator[str]:
    """What crosses each link that is paid for."""
    return map(reason_text, traffic_reasons(traffic, cluster))
