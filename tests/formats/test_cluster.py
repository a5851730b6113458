"""Nested domains of groups, links between them, and what of both nobody stated."""

from __future__ import annotations

import dataclasses

import pytest

from meshwright.formats.cluster import assumptions
from meshwright.formats.gpus import parse_gpus
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device


def domains(text: str) -> list[tuple[str, int]]:
    return [(domain.name, domain.size) for domain in resolve_gpus(text).groups[0].domains]


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        ("64xH100", [("NVLink4", 8), ("InfiniBand NDR 400 Gb/s", 64)]),
        ("8xH100", [("NVLink4", 8)]),
        ("16x4xH100", [("NVLink4", 4), ("InfiniBand NDR 400 Gb/s", 64)]),
        ("2x16xH100", [("NVLink4", 8), ("PCIe5 x16", 16), ("InfiniBand NDR 400 Gb/s", 32)]),
        ("72xGB200", [("NVLink5", 72)]),
        ("64xGB200", [("NVLink5", 64)]),
        ("144xGB200", [("NVLink5", 72), ("InfiniBand NDR 400 Gb/s", 144)]),
        ("128xGB200", [("NVLink5", 64), ("InfiniBand NDR 400 Gb/s", 128)]),
        ("16xH100-NVL", [("NVLink bridge", 2), ("PCIe5 x16", 8), ("InfiniBand NDR, 4 x 400 Gb/s a node", 16)]),
        ("8xL4", [("PCIe4 x16", 8)]),
        ("1xH100", [("NVLink4", 1)]),
        ("256xTPU-v5e", [("ICI 2D torus", 256)]),
        ("512xTPU-v5e", [("ICI 2D torus", 256), ("data-center network", 512)]),
    ],
)
def test_domains_are_nested_and_an_nvlink_domain_is_not_a_node(text: str, nested: list[tuple[str, int]]) -> None:
    assert domains(text) == nested


def test_defaults_are_told_with_their_basis() -> None:
    told = {one.name: one for one in assumptions(resolve_gpus("2x6xA100-80,128xGB200"))}
    assert told["A100-80 nodes"].value == "2 of 6 (usual: 8)"
    assert told["A100-80 NVLink3"].basis == "datasheet"
    assert "300 GB/s" in told["A100-80 NVLink3"].value
    assert told["GB200 NVLink5 domain"].value == "64 of 72"
    assert told["link A100-80 - GB200"].basis == "assumed"


def test_groups_are_linked_at_the_slower_fabric() -> None:
    (link,) = resolve_gpus("32xA100-80,64xH100").links
    assert link.between == ("A100-80", "H100")
    assert link.bandwidth_bytes_per_s == 25e9
    assert link.basis == "assumed"


def test_a_device_without_a_usual_node_gets_an_assumed_one() -> None:
    bare = dataclasses.replace(device("H100"), node=None)
    cluster = parse_gpus("16xthing", lambda _: bare)
    assert [domain.size for domain in cluster.groups[0].domains] == [8, 16]
    assert {domain.basis for domain in cluster.groups[0].domains} == {"assumed"}
