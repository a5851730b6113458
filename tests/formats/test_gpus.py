"""Clusters from the one-line form of `--gpus`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.gpus import parse_gpus
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device, device_names
from meshwright.specs.cluster import MAX_DEVICES
from tests.formats.refusals import refused

names = st.sampled_from(device_names())


def shape(text: str) -> list[tuple[str, int, int]]:
    return [(group.name, group.nodes, group.devices_per_node) for group in resolve_gpus(text).groups]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("64xH100", [("H100", 8, 8)]),
        ("4xH100", [("H100", 1, 4)]),
        ("8x8xH100", [("H100", 8, 8)]),
        (" 8 x 8 X h100-sxm ", [("H100", 8, 8)]),
        ("12xH100", [("H100", 1, 8), ("H100-2", 1, 4)]),
        ("100xH100", [("H100", 12, 8), ("H100-2", 1, 4)]),
        ("63xH100", [("H100", 7, 8), ("H100-2", 1, 7)]),
        ("2x6xH100", [("H100", 2, 6)]),
        ("13x1xH100", [("H100", 13, 1)]),
        ("64xGB200", [("GB200", 16, 4)]),
        ("32xA100-80,64xH100", [("A100-80", 4, 8), ("H100", 8, 8)]),
        ("8xH100,16xH100-80", [("H100", 1, 8), ("H100-2", 2, 8)]),
        ("8xRTX-3090", [("RTX-3090", 1, 8)]),
        ("8x4090", [("RTX-4090", 1, 8)]),
        ("2x7900XTX", [("RX-7900-XTX", 1, 2)]),
        ("2x4x7900xtx", [("RX-7900-XTX", 2, 4)]),
        ("8xH100-SXM (96GB HBM2e, 2.4TB/s, 500W cap),8xH100", [("H100-96", 1, 8), ("H100", 1, 8)]),
        ("1000000xH100", [("H100", 125_000, 8)]),
        ("1048576xH100", [("H100", 131_072, 8)]),
    ],
)
def test_shapes(text: str, groups: list[tuple[str, int, int]]) -> None:
    assert shape(text) == groups


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 64), names), min_size=1, max_size=5).filter(
        lambda items: sum(nodes * count for nodes, count, _ in items) <= MAX_DEVICES
    )
)
def test_explicit_shapes_come_back(items: list[tuple[int, int, str]]) -> None:
    cluster = resolve_gpus(",".join(f"{nodes}x{count}x{name}" for nodes, count, name in items))
    assert [(g.nodes, g.devices_per_node, g.device.name) for g in cluster.groups] == items
    assert len(cluster.links) == len(items) * (len(items) - 1) // 2
    for group in cluster.groups:
        sizes = [domain.size for domain in group.domains]
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == group.devices


@given(st.integers(1, MAX_DEVICES), names)
def test_a_plain_count_is_kept_or_refused_with_a_count_that_works(count: int, name: str) -> None:
    error = refused(lambda: resolve_gpus(f"{count}x{name}"))
    if error is None:
        assert resolve_gpus(f"{count}x{name}").devices == count
    else:
        usual = device(name).node
        assert usual is not None
        assert count % usual.devices_per_node
        assert f"{count}x1x{name}" in error.problems[0].fix


@given(st.text(max_size=60))
@example("8xH100," * 100)
@example("9" * 5000 + "xH100")
@example("²xH100")
@example("٣xH100")
@example("8xH100\n8xH100")
@example("1xH100," + "x" * 100_000)
def test_any_text_is_a_cluster_or_a_clear_error(text: str) -> None:
    error = refused(lambda: resolve_gpus(text))
    assert error is None or error.exit_code in (2, 4)
    assert len(str(error)) < 10_000


def test_all_problems_of_one_text_come_together() -> None:
    with pytest.raises(InputError) as caught:
        resolve_gpus("0xH100,-8xA100,8xB9000,junk,,8.5xH100,NaNxH100,99999999xH100")
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 8
    for fragment in ("0 devices", "-8 devices", "B9000", "'junk'", "entry ''", "8.5 devices", "NaNxH100", "1,048,576"):
        assert fragment in text
    assert "for example 64xH100" in text


def test_unknown_devices_alone_exit_4() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve_gpus("8xH10O,8xMI300,8xQ9")
    assert [problem.what for problem in caught.value.problems] == ["unknown device 'H10O'", "unknown device 'Q9'"]
    assert "H100" in caught.value.problems[0].fix


def test_too_many_devices_together() -> None:
    with pytest.raises(InputError, match="1,048,576"):
        resolve_gpus("1000000xH100,1000000xH100")


def test_a_last_node_that_is_not_full_is_said() -> None:
    (note,) = resolve_gpus("100xH100").notes
    assert note == (
        "100 H100 are 12 nodes of 8 and one of 4; say NODESxCOUNTxH100 for equal nodes, or 100x1xH100 for one shape "
        "of plan over all, priced by the fabric alone"
    )
    assert not resolve_gpus("96xH100,4xA100-80").notes


def test_a_plus_joins_unlike_devices_of_one_host() -> None:
    """By its slots, at what drivers of both let through; a comma joins nodes by their fabrics."""
    one, two = (parse_gpus(text, device) for text in ("1xRTX4090+1xRTX3090", "1xRTX4090,1xRTX3090"))
    assert [group.device.name for group in one.groups] == [group.device.name for group in two.groups]
    (inside,), (between,) = one.links, two.links
    assert (inside.bandwidth_bytes_per_s, inside.efficiency) == (31.5e9, 0.375)
    assert between.bandwidth_bytes_per_s < inside.bandwidth_bytes_per_s
    with pytest.raises(InputError, match="devices of one host"):
        parse_gpus("2x1xRTX4090+1xRTX3090", device)
    assert parse_gpus("1xRyzen AI Max+ 395", device).groups[0].device.name == "Strix-Halo"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("H100x64", "did you mean 64xH100?"),
        ("a100-80:8", "did you mean 8xa100-80?"),
        ("64 H100", "did you mean 64xH100?"),
        ("64H100", "did you mean 64xH100?"),
        ("H100", "say how many: 1xH100, for example"),
        ("RTX4090", "say how many: 1xRTX4090, for example"),
        ("4090", "say how many: 1x4090, for example"),
        ("64", "name the device: 64xH100, for example; `meshwright gpus list` names all"),
    ],
)
def test_other_orders_are_refused_with_the_entry_that_was_meant(text: str, fix: str) -> None:
    with pytest.raises(InputError) as found:
        resolve_gpus(text)
    assert [problem.fix for problem in found.value.problems] == [fix]


def test_what_names_no_device_is_answered_with_the_form() -> None:
    with pytest.raises(InputError) as found:
        resolve_gpus("8GB")
    assert "for example 64xH100" in found.value.problems[0].fix


@pytest.mark.parametrize(("text", "share"), [("2x8x4090", 1 / 8), ("2x4x4090", 1 / 4), ("4x1x4090", 1.0)])
def test_devices_of_a_node_share_its_one_port(text: str, share: float) -> None:
    (group,) = parse_gpus(text, device).groups

    assert group.domains[-1].bandwidth_bytes_per_s == pytest.approx(share * 100e9 / 8, rel=1e-3)


@pytest.mark.parametrize("text", ["2x8xA100-80", "4x1xA100-80"])
def test_devices_with_a_port_each_keep_it(text: str) -> None:
    (group,) = parse_gpus(text, device).groups

    assert group.domains[-1].bandwidth_bytes_per_s == 200e9 / 8
