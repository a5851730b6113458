"""Which frameworks run a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from meshwright.errors import Problem
from meshwright.estimate.price import estimate_plan
from meshwright.library.software import canonical
from meshwright.planning.for_target import refusals_in_search, software_of
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import FEW_DEVICES
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.software import DEFAULT_SOFTWARE, software_of_vendors
from meshwright.targets import FINE_TUNING, TARGETS

ASKED = ("megatron", *FINE_TUNING)
"""Frameworks that are asked, in the order in which they are named."""
ON_MANY = ("megatron", "bridge", "torchtitan", "automodel", "deepspeed")
"""Targets asked about more devices than people fine-tune on."""


ON_TPUS = ("maxtext",)
"""Targets asked about devices of Google."""


def asked_about(cluster: ClusterSpec) -> tuple[str, ...]:
    """Frameworks that are asked about plans for a cluster, in the order in which they are named."""
    software = software_of_vendors({group.device.vendor for group in cluster.groups})
    if software != DEFAULT_SOFTWARE:
        return ON_TPUS
    return ASKED if few(cluster) else ON_MANY


def few(cluster: ClusterSpec) -> bool:
    """Whether a cluster is of the size on which people fine-tune."""
    return cluster.devices <= FEW_DEVICES


def run_by(job: Job) -> tuple[str, ...]:
    """Names of the targets that run a plan as it is priced, in the order in which they are asked.

    Args:
        job: the plan and what it is for.
    """
    return tuple(name for name, problems in zip(asked_about(job.cluster), refusals(job), strict=True) if not problems)


@lru_cache(maxsize=16)
def run_and_hold(job: Job) -> tuple[str, ...]:
    """The same, without those in whose own memory the plan does not fit, of a job on a few devices.

    Args:
        job: a plan that fits as it is priced.
    """
    price = cache(estimate_plan)
    base = job.model.lora.base if job.model.lora is not None else None

    def holds(name: str) -> bool:
        workload = replace(job.workload, software=canonical(software_of(TARGETS[name], base)))
        return price(job.plan, job.model, job.cluster, workload).fits != "no"

    return tuple(name for name in run_by(job) if not few(job.cluster) or holds(name))


@lru_cache(maxsize=16)  # of the same few plans an answer asks who runs them, who else and why not
def refusals(job: Job) -> tuple[tuple[Problem, ...], ...]:
    """What each target refuses of a plan, or holds otherwise in memory.

    Args:
        job: the plan and what it is for.
    """
    return tuple(refusals_in_search(name)(job) for name in asked_about(job.cluster))


def run_by_none(job: Job) -> tuple[Problem, ...]:
    """Why no framework runs a plan: what the first one asked refuses; nothing where one runs it.

    Args:
        job: the plan and what it is for.
    """
    return () if run_by(job) else refusals(job)[0]


def titles(names: Iterable[str]) -> str:
    """Targets as their own people write them."""
    return ", ".join(TARGETS[name].title for name in names)


def run_by_reason(jobs: Sequence[Job], *, searched: bool = False, best: Mapping[str, object] | None = None) -> Reason:
    """Who runs the answer, or the first of its plans that any runs; and who has, or is to be asked for, one of its own.

    Args:
        jobs: plans in order of their rank.
        searched: whether the best plan of each of those asked is known.
        best: the best of those, with the title of its trainer, where that is not the answer.
    """
    refused = dict(zip(asked_about(jobs[0].cluster), refusals(jobs[0]), strict=True))
    able_of = run_and_hold if searched else run_by
    first = able_of(jobs[0])
    found = ((rank, able_of(job)) for rank, job in enumerate(jobs[1:], start=2))
    rank, able = (1, first) if first else next((one for one in found if one[1]), (0, ()))
    others = [name for name, problems in refused.items() if name not in able and not _whatever_the_plan(problems)]
    more: dict[str, object] = {"searched": True} if searched else {}
    if best is not None:
        more["best"] = best
    return Reason.of("run by", rank=rank, targets=able, titles=titles(able), others=others, **more)


def _whatever_the_plan(problems: Iterable[Problem]) -> bool:
    """Whether a target has not the model, or does not run on the devices, so that no other plan would do."""
    return any((problem.field or "").partition(".")[0] in ("model", "gpus") for problem in problems)
