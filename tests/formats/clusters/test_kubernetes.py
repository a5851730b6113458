"""Clusters from Kubernetes' nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.clusters import read_cluster
from meshwright.formats.clusters.kubernetes import _items
from meshwright.library.devices import device
from tests.formats.clusters.descriptions import DATA, groups, nested, refused, written


def kubernetes(**change: Any) -> dict[str, Any]:
    """One node; `labels` and what else is given replaced."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81559",
    }
    labels |= change.pop("labels", {})
    node = {"kind": "Node", "metadata": {"name": "n1", "labels": labels}, "spec": {}, "status": {}}
    return node | change


def test_node_pools_become_groups_with_zones() -> None:
    cluster = read_cluster(DATA / "nodes.json", device)
    assert groups(cluster) == [("H100", 4, 8), ("A100-40", 2, 8)]
    assert [group.zone for group in cluster.groups] == ["us-east-1a", "us-east-1b"]
    assert "left out: 1 node not ready" in cluster.notes
    assert cluster.links[0].basis == "assumed"


def test_memory_of_another_variant_is_taken_from_the_label(tmp_path: Path) -> None:
    node = kubernetes(labels={"nvidia.com/gpu.memory": "65536"})
    cluster = read_cluster(written(tmp_path, json.dumps(node)), device)
    assert cluster.groups[0].device.memory_bytes == 64 * 2**30


def test_a_clique_is_an_nvlink_domain_of_nodes(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-GB200", "nvidia.com/gpu.count": "4"}
    labels |= {"nvidia.com/gpu.memory": "189471"}
    items = [kubernetes(labels=labels | {"nvidia.com/gpu.clique": f"6f1a-{i // 3}.1"}) for i in range(6)]
    cluster = read_cluster(written(tmp_path, json.dumps({"kind": "List", "items": items})), device)
    assert groups(cluster) == [("GB200", 6, 4)]
    assert [size for size, _ in nested(cluster)] == [12, 24]


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-H1000"}), "of n1"),
        (kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}), "shared"),
        (kubernetes(labels={"nvidia.com/gpu.product": ""}), "no label nvidia.com/gpu.product"),
        (kubernetes(labels={"nvidia.com/gpu.count": "eight"}), "no label nvidia.com/gpu.count"),
        (kubernetes(spec={"unschedulable": True}), "1 node cordoned"),
        ({"kind": "NodeList", "items": "none"}, "no node has a usable GPU"),
    ],
)
def test_what_kubernetes_leaves_open_is_a_clear_error(node: dict[str, Any], said: str, tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, json.dumps(node))
    assert said in problem


def test_an_unknown_device_alone_has_the_exit_code_of_one(tmp_path: Path) -> None:
    node = kubernetes(labels={"nvidia.com/gpu.product": "NVIDIA-H1000"})
    with pytest.raises(UnsupportedError):
        read_cluster(written(tmp_path, json.dumps(node)), device)


@pytest.mark.parametrize(("text", "why"), [("{nodes", "line 1 column 2"), ("[" * 200_000, "nested too deeply")])
def test_text_that_is_no_json_says_where_it_ends_to_be_one(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        _items(text)
    assert why in caught.value.problems[0].why
