"""Clusters from files."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.cluster import assumptions
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.files import read_table
from meshwright.library.clusters import resolve_cluster_file
from meshwright.library.devices import device, device_names
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIB
from tests.formats.refusals import refused

names = st.sampled_from(device_names())
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


TWO = """
[[group]]
name = "new"
device = "H100"
nodes = 8
devices_per_node = 8
zone = "a"
inter_gb_s = 40
latency_us = 9
price_per_device_hour = 2.5
[[group]]
name = "old"
device = "A100-80"
nodes = 4
zone = "b"
memory_gib = 60
intra_gb_s = 200
[[link]]
between = ["new", "old"]
gb_s = 12.5
latency_us = 30
"""


def read(tmp_path: Path, text: str, name: str = "cluster.toml") -> ClusterSpec:
    (tmp_path / name).write_text(text)
    return resolve_cluster_file(tmp_path / name)


def test_a_file_says_what_differs_from_the_usual_node(tmp_path: Path) -> None:
    cluster = read(tmp_path, TWO)
    new, old = cluster.groups
    assert (cluster.name, cluster.devices, new.zone, new.price_per_hour) == ("cluster", 96, "a", 2.5)
    assert [domain.bandwidth_bytes_per_s for domain in new.domains] == [450e9, 40e9]
    assert [domain.latency_s for domain in new.domains] == pytest.approx([0.48e-6, 9e-6])
    assert old.devices_per_node == 8
    assert old.device.memory_bytes == 60 * GIB
    assert old.domains[0].bandwidth_bytes_per_s == 200e9
    (link,) = cluster.links
    assert (link.bandwidth_bytes_per_s, link.latency_s, link.basis) == (12.5e9, pytest.approx(30e-6), "datasheet")
    told = {one.name for one in assumptions(cluster)}
    assert told == {"new NVLink4", "old InfiniBand HDR 200 Gb/s"}


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    same = read(tmp_path, json.dumps(tomllib.loads(TWO)), "cluster.json")
    assert same == read(tmp_path, TWO)


def test_yaml_where_it_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UnsupportedError, match="pip install pyyaml"):
        read(tmp_path, "group: []", "cluster.yaml")


def test_without_a_link_the_lower_inter_gb_s_counts(tmp_path: Path) -> None:
    unlinked = TWO[: TWO.index("[[link]]")]
    (link,) = read(tmp_path, unlinked).links
    assert (link.bandwidth_bytes_per_s, link.basis) == (25e9, "assumed")
    (slower,) = read(tmp_path, unlinked.replace("inter_gb_s = 40", "inter_gb_s = 3")).links
    assert slower.bandwidth_bytes_per_s == 3e9


def test_a_link_of_zones_holds_for_all_their_groups_and_a_link_of_groups_is_stronger(tmp_path: Path) -> None:
    third = '[[group]]\nname = "third"\ndevice = "V100"\nnodes = 1\nzone = "b"\n'
    zones = '[[link]]\nbetween = ["zone:a", "b"]\ngb_s = 1\n'
    links = {link.between: link.bandwidth_bytes_per_s for link in read(tmp_path, third + TWO + zones).links}
    assert links == {("third", "new"): 1e9, ("third", "old"): 6.25e9, ("new", "old"): 12.5e9}


ZONES = """
[[group]]
device = "H100"
nodes = 2
zone = "east"
[[group]]
device = "A100-80"
nodes = 2
zone = "west"
[[group]]
device = "L40S"
nodes = 2
zone = "west"
[[link]]
between = ["east", "west"]
gb_s = 1.5
latency_us = 30000
price_per_gb = 0.02
"""


def test_a_zone_of_one_group_may_have_its_name(tmp_path: Path) -> None:
    groups = "".join(
        f'[[group]]\nname = "{name}"\ndevice = "H100"\nnodes = 1\nzone = "{zone}"\n'
        for name, zone in (("new", "a"), ("old", "a"), ("spot", "spot"))
    )
    links = read(tmp_path, groups + '[[link]]\nbetween = ["a", "spot"]\ngb_s = 2\n').links
    assert {one.between for one in links if one.bandwidth_bytes_per_s == 2e9} == {("new", "spot"), ("old", "spot")}


def test_a_link_of_zones_has_a_price_for_all_their_groups(tmp_path: Path) -> None:
    links = {link.between: link for link in read(tmp_path, ZONES).links}
    for other in ("A100-80", "L40S"):
        link = links["H100", other]
        assert (link.bandwidth_bytes_per_s, link.latency_s, link.price_per_gb) == (1.5e9, pytest.approx(0.03), 0.02)
    assert links["A100-80", "L40S"].price_per_gb == 0
    assert links["A100-80", "L40S"].basis == "assumed"


def test_a_link_with_a_price_alone_keeps_the_speed_it_had(tmp_path: Path) -> None:
    priced = read(tmp_path, ZONES.replace("gb_s = 1.5\nlatency_us = 30000\n", "")).links[0]
    free = read(tmp_path, ZONES[: ZONES.index("[[link]]")]).links[0]
    assert priced == dataclasses.replace(free, price_per_gb=0.02)


def test_zones_without_a_link_and_groups_without_a_zone_are_told_together(tmp_path: Path) -> None:
    north = '[[group]]\ndevice = "H200"\nnodes = 1\nzone = "north"\n[[group]]\ndevice = "B200"\nnodes = 1\n'
    with pytest.raises(InputError) as caught:
        read(tmp_path, north + ZONES + '[[link]]\nbetween = ["west", "south"]\ngb_s = 1\n')
    said = str(caught.value)
    for words in (
        "zones 'east' and 'north' have no link",
        "zones 'north' and 'west' have no link",
        "group B200 has no zone",
        "link[1].between names 'south'",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("price_per_gb = -0.02", "price_per_gb is -0.02"),
        ('price_per_gb = "cheap"', "price_per_gb is 'cheap'"),
        ("price_per_gb = inf", "price_per_gb is inf"),
    ],
)
def test_prices_that_are_none(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, ZONES.replace("price_per_gb = 0.02", change))
    assert message in str(caught.value)


def test_a_link_says_its_speed_or_its_price(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gb_s is missing"):
        read(tmp_path, ZONES.replace("gb_s = 1.5\n", "").replace("price_per_gb = 0.02\n", ""))


def test_nvlink_domain_and_intra_speed(tmp_path: Path) -> None:
    def group(device: str, rest: str) -> list[tuple[int, float]]:
        text = f'[[group]]\ndevice = "{device}"\nnodes = 36\n{rest}'
        return [(d.size, d.bandwidth_bytes_per_s) for d in read(tmp_path, text).groups[0].domains]

    assert group("GB200", "nvlink_domain = 36") == [(36, 900e9), (144, 50e9)]
    assert group("GB200", "nvlink_domain = 4096") == [(144, 900e9)]
    assert group("H100", "nvlink_domain = 4") == [(4, 450e9), (8, 63e9), (288, 50e9)]
    assert group("L4", "intra_gb_s = 20") == [(8, 20e9), (288, 1.5625e9)]


BAD = """
nam = "x"
[[group]]
devcie = "H100"
nodes = -1
[[group]]
device = "H10O"
nodes = 0
[[group]]
device = "H100"
nodes = "8"
intra_gb_s = nan
memory_gib = inf
[[group]]
device = "H100"
nodes = 2
nvlink_domain = 3
[[link]]
between = ["one"]
gb_s = -1
"""


def test_all_problems_of_a_file_come_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, BAD)
    text = str(caught.value)
    for fragment in (
        "unknown key 'nam'",
        "did you mean name?",
        "group[0].devcie",
        "did you mean device",
        "group[0].device is missing",
        "group[0].nodes is -1",
        "group[1].nodes is 0",
        "unknown device 'H10O'",
        "group[2].nodes is '8'",
        "group[2].intra_gb_s is nan",
        "group[2].memory_gib is inf",
        "group[3]: nvlink_domain is 3",
        "link[0].between is ['one']",
        "link[0].gb_s is -1",
    ):
        assert fragment in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "other",
    [("nodes = 8", "nodes = 0"), ('"H100"', '"H10O"'), ("nodes = 8", "nodes = 1048576"), ("gb_s = ", "gb_s = -")],
)
def test_a_link_to_no_group_is_named_beside_whatever_else_is_wrong(tmp_path: Path, other: tuple[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, TWO.replace('"old"]', '"olt"]').replace(*other, 1))
    said = [problem.what for problem in caught.value.problems]
    assert "link[0].between names 'olt'" in said
    assert len(said) == 2


def test_a_name_under_a_mistyped_key_is_no_second_problem(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, TWO.replace('name = "old"', 'nam = "old"'))
    assert [problem.what for problem in caught.value.problems] == ["unknown key 'group[1].nam'"]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("gpus_per_node = 8", "devices_per_node"),
        ("gpu-type = 'H100'", "device"),
        ("count = 2", "nodes"),
        ("spot = true", "preemptions_per_hour"),
        ("price = 2.0", "price_per_device_hour"),
    ],
)
def test_words_of_other_tools_are_answered_with_the_key_they_mean(tmp_path: Path, word: str, key: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f'[[group]]\ndevice = "H100"\nnodes = 2\n{word}\n')
    assert [problem.fix for problem in caught.value.problems] == [f"did you mean {key}?"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"old"]', '"olt"]'), "did you mean old"),
        (('"old"]', '"new"]'), "two different groups"),
        (('name = "old"', 'name = "new"'), "two groups are named 'new'"),
        (('zone = "b"', 'zone = "new"'), 'write "group:new" or "zone:new"'),
        (("nodes = 8", "nodes = 1048576"), "at most 1,048,576"),
        (("[[link]]", '[[link]]\nbetween = ["old", "new"]\ngb_s = 1\n[[link]]'), "have two links"),
    ],
)
def test_contradictions(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        read(tmp_path, TWO.replace(*change))


def test_an_unknown_device_alone_exits_4(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="H100"):
        read(tmp_path, TWO.replace('"H100"', '"H10O"'))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.toml", b"", "empty"),
        ("blank.toml", b" \n\n", "empty"),
        ("binary.toml", bytes(range(256)), "binary"),
        ("zeros.json", b"{\0}", "binary"),
        ("broken.toml", b"[[group]", "not valid TOML"),
        ("broken.json", b"{", "not valid JSON"),
        ("list.json", b"[1]", "holds a list"),
        ("deep.json", b"[" * 100_000, "not valid JSON"),
        ("deep.toml", b"a = " + b"[" * 100_000, "not valid TOML"),
        ("digits.toml", b"a = " + b"9" * 5000, "not valid TOML"),
        ("none.toml", b"link = []", "group is missing"),
        ("zero.json", b'{"group": []}', r"group is \[\]"),
        ("word.json", b'{"group": ["H100"]}', r"group\[0\] is 'H100'"),
    ],
)
def test_files_that_are_no_cluster(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        resolve_cluster_file(tmp_path / name)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    with (tmp_path / "huge.toml").open("wb") as stream:
        stream.truncate(1024**3)
    for path, message in (
        (tmp_path, "folder"),
        (tmp_path / "absent.toml", "no such file"),
        (tmp_path / "huge.toml", "too large"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        ("nul\0", "cannot be read"),
        ("/dev/null", "a device or a socket, no file"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(path, "cluster file")


keys = st.sampled_from(
    [
        "name device nodes devices_per_node zone intra_gb_s inter_gb_s latency_us nvlink_domain memory_gib",
        "price_per_device_hour price_per_gb between gb_s group link",
    ]
).flatmap(lambda words: st.sampled_from(words.split()))
tables = st.dictionaries(keys, junk, max_size=4).map(lambda extra: {"device": "H100", "nodes": 2, **extra})


@given(st.dictionaries(keys, st.one_of(junk, st.lists(st.one_of(junk, tables), max_size=3)), max_size=4))
@example({"group": [{"device": "H100", "nodes": 10**30}]})
@example({"group": [{"device": "H100", "nodes": 1, "intra_gb_s": 10**400}]})
def test_any_table_is_a_cluster_or_a_clear_error(data: dict[str, object]) -> None:
    error = refused(lambda: cluster_from_table(data, device))
    assert error is None or error.exit_code in (2, 4)


@given(st.integers(1, 50), st.integers(1, 16), st.integers(1, 800), names)
def test_a_domain_that_nests_is_taken_as_said(nodes: int, per_node: int, domain: int, name: str) -> None:
    assume(per_node % domain == 0 or domain % per_node == 0)
    group = {"device": name, "nodes": nodes, "devices_per_node": per_node, "nvlink_domain": domain}
    sizes = [one.size for one in cluster_from_table({"group": [group]}, device).groups[0].domains]
    assert domain == 1 or sizes[0] == min(domain, nodes * per_node)
    assert sizes[-1] == nodes * per_node
