"""The part of a mixed cluster that a job can be planned on, and how fine its kinds of device are told apart."""

from __future__ import annotations

from dataclasses import replace

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.formats.cluster import Assumption
from meshwright.planning.compose.islands import as_cluster, islands
from meshwright.planning.equal_groups import equal_groups_joined
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.cluster import ClusterSpec, NodeGroup

FORMATS = ("bf16", "fp16", "fp32")
"""Formats to train in, the usual first."""


def usable_islands(inputs: JobInputs, tolerance: float | None) -> tuple[JobInputs, tuple[Problem, ...]]:
    """The question on the groups that compute in its format, seen as islands where a tolerance is given.

    Args:
        inputs: the question.
        tolerance: largest (larger / smaller - 1) of two devices that count as alike; None for equal groups only.

    Returns:
        The question, and what it leaves out, with what would plan with it.

    Raises:
        UnsupportedError: no device of the cluster computes in the format.
        InputError: the tolerance is no number from 0 to 100.
    """
    refusals = {group.name: refusal for group in inputs.cluster.groups if (refusal := _refusal(group, inputs))}
    if len(refusals) == len(inputs.cluster.groups):
        raise next(iter(refusals.values()))
    left_out = tuple(
        Problem(
            what=f"{group.devices} {group.device.name} are left out: {refusals[group.name].problems[0].what}",
            fix=_format_of_all(inputs.cluster),
            field="dtype",
        )
        for group in inputs.cluster.groups
        if group.name in refusals
    )
    cluster = _without(inputs.cluster, set(refusals))
    if tolerance is not None:
        seen = islands(cluster, tolerance)
        merged = [island for island in seen if len(island.groups) > 1]
        cluster = as_cluster(cluster, seen)
        said = "; ".join(
            f"{' + '.join(island.groups)} count as {island.num_devices} {island.counts_as.device.name}"
            for island in merged
        )
        note = Assumption(name=f"islands within {tolerance:g}", value=said or "every group by itself", basis="assumed")
        inputs = replace(inputs, assumptions=(*inputs.assumptions, note))
    elif not cluster.homogeneous:
        cluster, joined = equal_groups_joined(cluster)
        notes = tuple(
            Assumption(
                name="groups",
                value=f"{' and '.join(names)} are planned as one in this order: equal nodes over one fabric",
                basis="assumed",
            )
            for names in joined
        )
        inputs = replace(inputs, assumptions=(*inputs.assumptions, *notes))
    return replace(inputs, cluster=cluster), left_out


def left_out_note(left_out: Problem) -> str:
    """What is left out as one line, for an answer that there is nevertheless."""
    return f"{left_out.what}; {left_out.fix}" if left_out.fix else left_out.what


def _format_of_all(cluster: ClusterSpec) -> str:
    devices = [group.device for group in cluster.groups]
    able = next((dtype for dtype in FORMATS if all(device.peak(dtype) for device in devices)), None)
    return f"--dtype {able} to plan with all of them" if able else ""


def _refusal(group: NodeGroup, inputs: JobInputs) -> UnsupportedError | None:
    try:
        hardware_of(group, inputs.workload)
    except UnsupportedError as refused:
        return refused
    return None


def _without(cluster: ClusterSpec, names: set[str]) -> ClusterSpec:
    if not names:
        return cluster
    groups = tuple(group for group in cluster.groups if group.name not in names)
    links = tuple(link for link in cluster.links if not names & set(link.between))
    name = " + ".join(f"{group.devices} {group.device.name}" for group in groups)
    return replace(cluster, name=name, groups=groups, links=links)
