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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x9xH100", ["of 3 (usual: 8)", "say 9xH100 for nodes of 8 and 1, or nvlink_domain"]),
        ("1x11xH100", ["of 1 (usual: 8)", "say 11xH100 for nodes of 8 and 3"]),
        ("2x12xH100", ["of 6 (usual: 8)", "; say nvlink_domain in a cluster file"]),
    ],
)
def test_a_node_that_is_no_whole_domains_says_how_it_was_cut(text: str, said: list[str]) -> None:
    told = {one.name: one for one in assumptions(resolve_gpus(text))}["H100 NVLink4 domains"]
    assert told.basis == "assumed"
    assert [words for words in said if words not in told.value] == []


@pytest.mark.parametrize("text", ["1x8xH100", "1x7xH100", "2x16xH100", "9xH100", "1x9xL4", "144xGB200"])
def test_a_node_of_whole_domains_or_fewer_devices_says_nothing_of_them(text: str) -> None:
    assert [one.name for one in assumptions(resolve_gpus(text)) if one.name.endswith(" domains")] == []
