"""Which frameworks run a plan: asked of every plan for a few devices, on which most people fine-tune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.errors import Problem
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import FEW_DEVICES
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.targets import FINE_TUNING, TARGETS

ASKED = ("megatron", *FINE_TUNING)
"""Frameworks that are asked, in the order in which they are named."""


def few(cluster: ClusterSpec) -> bool:
    """Whether frameworks are named for plans of this cluster."""
    return cluster.devices <= FEW_DEVICES


def run_by(job: Job) -> tuple[str, ...]:
    """Names of the targets that run a plan, in the order of `ASKED`.

    Args:
        job: the plan and what it is for.
    """
    return tuple(name for name in ASKED if not TARGETS[name].problems(job))


def refusals(job: Job) -> Iterator[tuple[Problem, ...]]:
    """What each target refuses of a plan.

    Args:
        job: the plan and what it is for.
    """
    return (TARGETS[name].problems(job) for name in ASKED)


def titles(names: Iterable[str]) -> str:
    """Targets as their own people write them."""
    return ", ".join(TARGETS[name].title for name in names)


def run_by_reason(jobs: Sequence[Job]) -> Reason:
    """Who runs the answer, or the first of its plans that any runs; and who is to be asked for a plan of their own.

    Args:
        jobs: plans in order of their rank.
    """
    refused = dict(zip(ASKED, refusals(jobs[0]), strict=True))
    first = tuple(name for name, problems in refused.items() if not problems)
    found = ((rank, run_by(job)) for rank, job in enumerate(jobs[1:], start=2))
    rank, able = (1, first) if first else next((one for one in found if one[1]), (0, ()))
    others = [name for name, problems in refused.items() if name not in able and not _lacks_model(problems)]
    return Reason.of("run by", rank=rank, targets=able, titles=titles(able), others=others)


def _lacks_model(problems: Iterable[Problem]) -> bool:
    """Whether a target has not the model, so that no other plan would do."""
    return any((problem.field or "").partition(".")[0] == "model" for problem in problems)
