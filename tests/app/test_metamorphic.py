"""What must hold between the answers to two questions, whatever the numbers: on questions drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import InfeasibleError
from meshwright.library.devices import device
from meshwright.planning.size import nodes_of
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.device import DeviceSpec

EQUAL = 1e-9
"""Relative difference of two times that differ by rounding."""
QUESTIONS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-3.2-1b", "gpt3-13b", "llama-3.1-8b"]),
        "device": st.sampled_from(["H100", "A100-80", "A100-40", "MI300X"]),
        "nodes": st.sampled_from([1, 2]),
        "batch": st.sampled_from([16, 32, 64]),
        "seq": st.sampled_from([1024, 2048]),
        "pin": st.sampled_from([("pp=1",), ("tp=4",), ("pp=2",), ("recompute=full",), ("zero=1",)]),
    }
)


def cluster_of(asked: dict[str, Any], better: Callable[[DeviceSpec], DeviceSpec] = lambda spec: spec) -> ClusterSpec:
    cluster = nodes_of(device(asked["device"]), asked["nodes"], 8)
    return replace(cluster, groups=tuple(replace(one, device=better(one.device)) for one in cluster.groups))


def step_s(asked: dict[str, Any], cluster: ClusterSpec | None = None, *, batch: int | None = None) -> float:
    """Of the best plan; infinite where nothing fits."""
    try:
        found = mw.plan(
            asked["model"],
            cluster=cluster or cluster_of(asked),
            seq_len=asked["seq"],
            global_batch=batch or asked["batch"],
            pin=asked["pin"],
            top=1,
        )
    except InfeasibleError:
        return float("inf")
    return found.plans[0].estimate.step_time_s


def with_links(group: NodeGroup, factor: float) -> NodeGroup:
    domains = tuple(replace(one, bandwidth_bytes_per_s=factor * one.bandwidth_bytes_per_s) for one in group.domains)
    return replace(group, domains=domains)


BETTER: dict[str, Callable[[DeviceSpec], DeviceSpec]] = {
    "memory": lambda spec: replace(spec, memory_bytes=1.25 * spec.memory_bytes),
    "bandwidth": lambda spec: replace(spec, memory_bandwidth_bytes_per_s=1.3 * spec.memory_bandwidth_bytes_per_s),
    "flop/s": lambda spec: replace(
        spec, peak_flop_per_s=tuple((kind, 1.3 * rate) for kind, rate in spec.peak_flop_per_s)
    ),
}


@pytest.mark.parametrize("what", BETTER)
@settings(max_examples=2)
@given(asked=QUESTIONS)
def test_a_better_device_is_never_slower(what: str, asked: dict[str, Any]) -> None:
    assert step_s(asked, cluster_of(asked, BETTER[what])) <= step_s(asked) * (1 + EQUAL)


@settings(max_examples=2)
@given(asked=QUESTIONS)
def test_faster_links_are_never_slower(asked: dict[str, Any]) -> None:
    cluster = cluster_of(asked)
    faster = replace(cluster, groups=tuple(with_links(group, 1.5) for group in cluster.groups))
    assert step_s(asked, faster) <= step_s(asked, cluster) * (1 + EQUAL)


@settings(max_examples=2)
@given(asked=QUESTIONS)
def test_twice_the_batch_takes_longer_and_at_most_twice_as_long(asked: dict[str, Any]) -> None:
    once, twice = step_s(asked), step_s(asked, batch=2 * asked["batch"])
    if once < float("inf"):
        assert once < twice <= 2 * once * (1 + EQUAL)


@settings(max_examples=2)
@given(asked=QUESTIONS)
def test_a_plan_found_is_the_plan_estimated_to_the_last_digit(asked: dict[str, Any]) -> None:
    cluster, job = cluster_of(asked), {"seq_len": asked["seq"], "global_batch": asked["batch"]}
    try:
        found = mw.plan(asked["model"], cluster=cluster, pin=asked["pin"], top=2, **job).plans
    except InfeasibleError:
        return
    for one in found:
        assert one.row is not None
        again = mw.estimate(asked["model"], one.row.format(), cluster=cluster, **job).plans[0]
        assert again.estimate.step_time_s == one.estimate.step_time_s
        assert [stage.peak_memory_bytes for stage in again.estimate.stages] == [
            stage.peak_memory_bytes for stage in one.estimate.stages
        ]


@settings(max_examples=2)
@given(asked=QUESTIONS)
def test_the_name_of_a_group_changes_nothing(asked: dict[str, Any]) -> None:
    cluster = cluster_of(asked)
    renamed = replace(cluster, name="other", groups=tuple(replace(one, name="zzz") for one in cluster.groups))
    assert step_s(asked, renamed) == step_s(asked, cluster)


@pytest.mark.parametrize("gpus", [("4xH100", "4xA100-40")])
def test_the_order_of_groups_changes_nothing(gpus: tuple[str, str]) -> None:
    job = {"seq_len": 2048, "global_batch": 32, "top": 1}
    times = [mw.plan("llama-3.1-8b", gpus=",".join(order), **job).plans[0] for order in (gpus, gpus[::-1])]
    assert times[0].estimate.step_time_s == pytest.approx(times[1].estimate.step_time_s, rel=EQUAL)
