"""Devices by name: what comes with the package, aliases, a user's own."""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.device_file import check_record
from meshwright.formats.device_lint import lint_device
from meshwright.library.calibration import calibration
from meshwright.library.devices import (
    add_device,
    device,
    device_names,
    devices,
    generations,
    kernel_efficiency,
    larger_devices,
    plain_name,
)
from meshwright.units import GIB

DATA = Path(__file__).parents[2] / "src" / "meshwright" / "library" / "data"
MEASURED = Path(__file__).parents[3] / "shared" / "measured"

OWN = """
name = "Dream-1"
generation = "hopper"
aliases = ["dream one"]
bf16_tflops = 1200
memory_gib = 127
memory_gb_s = 5000
units = 160
[source]
default = { basis = "datasheet", source = "Dream data sheet", date = "2026-01" }
"""


@pytest.fixture
def own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path / "library"))
    return tmp_path / "library"


def test_there_are_many_devices_of_every_maker() -> None:
    makers = {spec.vendor for spec in devices()}
    assert len(device_names()) >= 45
    assert {"NVIDIA", "AMD", "Google", "Intel", "AWS", "Huawei"} <= makers


def test_heads_of_128_fill_half_of_a_matrix_unit_of_256() -> None:
    """Of TPU v6e; every product of attention has the head dim as depth or width. Units of 128 are full."""
    wide, narrow = (device(name).efficiency for name in ("TPU-v6e", "TPU-v5p"))
    assert wide.flash_dim_cost(128, 128) == pytest.approx(2 * wide.flash_dim_cost(256, 256))
    assert narrow.flash_dim_cost(128, 128) < 2 * narrow.flash_dim_cost(256, 256)


@pytest.mark.parametrize("name", device_names())
def test_a_device_is_complete_and_every_number_has_a_source(name: str) -> None:
    spec = device(name)
    assert spec.name == name
    assert spec.node is not None
    assert spec.efficiency.source
    for field in ("peak_flop_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s", "units", "power_w"):
        provenance = spec.basis_of(field)
        assert provenance.source not in ("not stated", "device file without a source"), field
        if getattr(spec, field) is not None:
            assert provenance.source != "default of device files", field
            assert provenance.date, field
    node = dict(spec.node.provenance)
    for field in (
        "scaleup_bytes_per_s",
        "scaleup_efficiency",
        "fabric_bytes_per_s",
        "fabric_latency_s",
        "devices_per_node",
    ):
        assert node[field].date, field
        assert node[field].source != "default of device files", field


@pytest.mark.parametrize("name", device_names())
def test_the_linter_finds_no_error_in_a_built_in_device(name: str) -> None:
    record = check_record(tomllib.loads((DATA / "devices" / f"{name}.toml").read_text()), noun=name)
    others = [spec for spec in devices() if spec.name != name]
    assert [finding for finding in lint_device(record, [device(name)]) if finding.level == "error"] == []
    assert [finding for finding in lint_device(record, others) if "bits" in finding.message] == []


def test_files_and_index_name_the_same_devices() -> None:
    files = {path.stem for path in (DATA / "devices").glob("*.toml")}
    assert files == set(json.loads((DATA / "devices" / "aliases.json").read_text()))


def test_no_two_devices_share_a_name() -> None:
    owner: dict[str, str] = {}
    for spec in devices():
        for name in {plain_name(one) for one in (spec.name, *spec.aliases)}:
            assert owner.setdefault(name, spec.name) == spec.name, name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-80", "H100"),
        ("h100 sxm", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("nvidia_h100_80gb_hbm3", "H100"),
        ("A100 SXM4 80GB", "A100-80"),
        ("A100-SXM", "A100-80"),
        ("a100_40", "A100-40"),
        ("nvidia_a100-sxm4-40gb", "A100-40"),
        ("gpu:a100", "A100-80"),
        ("Tesla V100-SXM2-16GB", "V100-16"),
        ("GH-96", "GH200-96"),
        ("NVIDIA GH200 480GB", "GH200-96"),
        ("RTX-3090", "RTX-3090"),
        ("GeForce RTX 4090", "RTX-4090"),
        ("RTX-2080", "RTX-2080"),
        ("Titan-RTX", "Titan-RTX"),
        ("AMD Instinct MI300X", "MI300X"),
        ("TPU v6e (Trillium)", "TPU-v6e"),
        ("H100-SXM (96GB HBM2e, 2.4TB/s, 500W cap)", "H100-96"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert device(spelling).name == name


@pytest.mark.parametrize(
    ("spelling", "memory_gb", "name"),
    [
        ("A100-SXM", 40, "A100-40"),
        ("A100-SXM", 80, "A100-80"),
        ("A100-PCIe", 40, "A100-PCIe-40"),
        ("V100", 32, "V100-32"),
        ("GH200", 141, "GH200-141"),
        ("RTX-3090", 8, "RTX-3090"),
        ("GB200", 186, "GB200"),
        ("H100-SXM", 96, "H100-96"),
    ],
)
def test_memory_size_settles_what_a_name_leaves_open(spelling: str, memory_gb: float, name: str) -> None:
    assert device(spelling, memory_gb).name == name


def test_known_numbers() -> None:
    h100 = device("H100")
    assert h100.peak("bf16") == pytest.approx(989.4e12)
    assert h100.peak("nvfp4") is None
    assert h100.memory_bandwidth_bytes_per_s == 3350e9
    assert h100.memory_bytes / GIB == pytest.approx(79.1, abs=0.2)
    assert device("V100").peak("bf16") is None
    gb200 = device("GB200").node
    assert gb200 is not None
    assert (gb200.devices_per_node, gb200.scaleup_domain) == (4, 72)
    b200, h800 = device("B200").node, device("H800").node
    assert b200 is not None
    assert h800 is not None
    assert (b200.scaleup_bytes_per_s, h800.scaleup_bytes_per_s) == (900e9, 200e9)


def test_frameworks_see_less_than_the_box_says() -> None:
    for name, box_gib in (("H100", 80), ("A100-40", 40), ("H200", 141), ("MI300X", 192), ("B200", 180), ("L4", 24)):
        assert 0.9 * box_gib < device(name).memory_bytes / GIB < box_gib


@pytest.mark.parametrize("generation", generations())
def test_efficiencies_are_sourced_fractions(generation: str) -> None:
    record = kernel_efficiency(generation)
    assert record.source
    assert 0.3 < record.gemm_fraction <= 1
    assert record.flash_backward_fraction <= record.flash_forward_fraction


def test_an_unknown_device_names_its_neighbours_and_exits_4() -> None:
    with pytest.raises(UnsupportedError, match="H100") as caught:
        device("H10O")
    assert (caught.value.exit_code, caught.value.code) == (4, "MW402")


def test_an_unknown_generation_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="hopper"):
        kernel_efficiency("hoper")
    with pytest.raises(UnsupportedError):
        kernel_efficiency("../efficiency/hopper")


@given(st.text(max_size=50))
@example("")
@example("nvidia")
@example("../H100\0")
@example("x" * 100_000)
def test_any_text_is_a_device_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(UnsupportedError):
        assert device(text).name in device_names()


def test_a_users_device_is_found_by_name_and_alias(tmp_path: Path, own_library: Path) -> None:
    (tmp_path / "dream.toml").write_text(OWN)
    added = add_device(tmp_path / "dream.toml")
    assert added.path == own_library / "devices" / "Dream-1.toml"
    assert device("dream 1") == device("Dream One") == added.device
    assert "Dream-1" in device_names()
    assert list(added.path.parent.iterdir()) == [added.path]


def test_a_users_device_replaces_a_built_in_one_of_its_name(tmp_path: Path, own_library: Path) -> None:
    (tmp_path / "h100.toml").write_text(OWN.replace("Dream-1", "H100"))
    add_device(tmp_path / "h100.toml")
    assert device("h100").units == 160
    assert device_names().count("H100") == 1


def test_adding_twice_needs_force(tmp_path: Path, own_library: Path) -> None:
    (tmp_path / "dream.toml").write_text(OWN)
    add_device(tmp_path / "dream.toml")
    with pytest.raises(InputError, match="already has"):
        add_device(tmp_path / "dream.toml")
    (tmp_path / "dream.toml").write_text(OWN.replace("160", "161"))
    add_device(tmp_path / "dream.toml", force=True)
    assert device("dream-1").units == 161


def test_a_broken_users_device_does_not_hide_the_others(own_library: Path) -> None:
    (own_library / "devices").mkdir(parents=True)
    (own_library / "devices" / "Broken.toml").write_text("name = ")
    assert device("H100").name == "H100"
    with pytest.raises(InputError, match="not valid TOML"):
        device("broken")


def test_no_directory_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_LIBRARY", raising=False)
    (tmp_path / "dream.toml").write_text(OWN)
    with pytest.raises(InputError, match="MESHWRIGHT_LIBRARY"):
        add_device(tmp_path / "dream.toml")
    with pytest.raises(InputError, match="cannot be written"):
        add_device(tmp_path / "dream.toml", tmp_path / "dream.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["dream.toml"]


def test_errors_of_the_linter_refuse_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "dream.toml").write_text(OWN.replace("memory_gb_s = 5000", "memory_gb_s = 5"))
    with pytest.raises(InputError, match="TB/s") as caught:
        add_device(tmp_path / "dream.toml", tmp_path / "library")
    assert caught.value.code == "MW214"
    assert not (tmp_path / "library").exists()
    assert add_device(tmp_path / "dream.toml", tmp_path / "library", force=True).path.exists()


def test_one_device_reads_one_file() -> None:
    code = (
        "import tomllib, meshwright.library.devices as d; loads = tomllib.loads; seen = []\n"
        "tomllib.loads = lambda text: (seen.append(1), loads(text))[1]\n"
        "d.device('H100'); print(len(seen))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "2"  # the device and its generation


def rows(name: str) -> list[dict[str, str]]:
    path = MEASURED / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_every_device_of_the_hardware_table_agrees_with_it() -> None:
    for row in rows("hardware.csv"):
        spec = device(row["gpu"])
        share = 0.5 if spec.name == "MI250X" else 1.0
        for column, dtype in (("bf16_dense_tflops", "bf16"), ("fp8_dense_tflops", "fp8"), ("fp32_tflops", "fp32")):
            peak = spec.peak(dtype)
            if row[column] and peak is not None:
                assert peak == pytest.approx(float(row[column]) * share * 1e12, rel=0.01), (spec.name, dtype)
        bandwidth = float(row["mem_bw_gbs"]) * share * 1e9
        assert spec.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.05), spec.name
        assert 0.91 < spec.memory_bytes / GIB / (float(row["mem_gb"]) * share) <= 1.01, spec.name


@pytest.mark.parametrize("name", ["throughput.csv", "throughput_single_node.csv", "memory.csv"])
def test_every_measured_run_on_one_kind_of_device_names_a_known_one(name: str) -> None:
    spellings = {row["gpu"] for row in rows(name) if "+" not in row["gpu"]}
    assert spellings
    for spelling in spellings:
        assert device(spelling).name


@pytest.mark.parametrize("name", ["B200", "B300", "GB200", "GB300", "H100", "A100-80"])
def test_devices_with_measured_runs_have_the_share_of_peak_that_was_fitted(name: str) -> None:
    """A share of its own in the device's file would hide what the runs said of its generation."""
    own = device(name).efficiency
    fitted = calibration().of("device", own.generation)
    assert own.gemm_fraction == fitted["gemm_fraction"]
    assert own.gemm_fraction_fp8 == fitted.get("gemm_fraction_fp8", own.gemm_fraction_fp8)
    assert own.basis == "fitted"


def test_larger_devices_are_those_of_all_that_have_more_memory() -> None:
    for vendor, size in (("NVIDIA", 80 * GIB), ("AMD", 0.0), ("NVIDIA", 1e15)):
        wanted = [one for one in devices() if one.vendor == vendor and one.memory_bytes > size]
        assert list(larger_devices(size, vendor)) == wanted
