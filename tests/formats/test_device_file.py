"""A user's device file: what it may hold, and the mistakes the linter knows."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.hardware import power_limited_clock
from meshwright.formats.device_file import check_record, device_spec, read_device_file
from meshwright.formats.device_lint import LintFinding, lint_device
from meshwright.library.devices import devices, kernel_efficiency
from meshwright.specs.device import KernelEfficiency
from meshwright.units import GIB

H100: dict[str, Any] = {
    "name": "My-Card",
    "generation": "hopper",
    "bf16_tflops": 989,
    "fp8_tflops": 1979,
    "memory_gib": 79.1,
    "memory_gb_s": 3350,
    "units": 132,
    "node": {"devices": 8, "scaleup_gb_s": 450, "fabric_gb_s": 50},
    "source": {"default": {"basis": "datasheet", "source": "data sheet", "date": "2024-03"}},
}


def lint(**changes: Any) -> list[LintFinding]:
    record = {**H100, **changes}
    record = {key: value for key, value in record.items() if value is not None}
    return lint_device(check_record(record, noun="device file"), devices())


def errors(**changes: Any) -> dict[str, LintFinding]:
    return {finding.field: finding for finding in lint(**changes) if finding.level == "error"}


def test_eight_numbers_make_a_device(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "Mine"\ngeneration = "hopper"\nbf16_tflops = 989\nfp8_tflops = 1979\nmemory_gib = 79.1\n'
        "memory_gb_s = 3350\nunits = 132\n[node]\ndevices = 8\nscaleup_gb_s = 450\nfabric_gb_s = 50\n"
    )
    spec = device_spec(read_device_file(tmp_path / "mine.toml"), kernel_efficiency)
    assert spec.peak("bf16") == 989e12
    assert spec.memory_bytes == pytest.approx(79.1 * GIB)
    assert spec.efficiency == kernel_efficiency("hopper")
    assert spec.node is not None
    assert (spec.node.scaleup_domain, spec.node.scaleup_bytes_per_s, spec.node.fabric_bytes_per_s) == (8, 450e9, 50e9)
    assert spec.basis_of("memory_bytes").source == "device file without a source"
    assert spec.basis_of("host_bandwidth_bytes_per_s").source == "default of device files"


def test_a_card_without_links_is_joined_by_pcie() -> None:
    spec = device_spec(check_record({**H100, "node": {"devices": 4}}, noun="device file"), kernel_efficiency)
    assert spec.node is not None
    assert (spec.node.scaleup_domain, spec.node.devices_per_node) == (1, 4)


def test_sources_and_efficiencies_of_its_own() -> None:
    record = {**H100, "efficiency": {"gemm_fraction": 0.7, "launch_us": 5, "source": "my bench", "basis": "measured"}}
    spec = device_spec(check_record(record, noun="device file"), kernel_efficiency)
    assert spec.efficiency.gemm_fraction == 0.7
    assert spec.efficiency.launch_s == pytest.approx(5e-6)
    assert spec.efficiency.tile_n == kernel_efficiency("hopper").tile_n
    assert spec.efficiency.basis == "measured"
    assert spec.efficiency.burst_fraction == 0.0
    assert spec.basis_of("units").date == "2024-03"


def test_a_stated_level_of_products_leaves_those_of_other_formats() -> None:
    """The clock of training is that of the generation's level; 8- and 4-bit products keep what they reach there."""
    usual = kernel_efficiency("blackwell")
    record = {**H100, "generation": "blackwell", "efficiency": {"gemm_fraction": 0.7, "source": "my bench"}}
    own = device_spec(check_record(record, noun="device file"), kernel_efficiency).efficiency

    assert usual.sustained_clock < 1.0 == own.sustained_clock
    assert own.product_fraction(2) == 0.7
    for element_bytes in (4, 1, 0.5):
        assert own.product_fraction(element_bytes) == pytest.approx(usual.product_fraction(element_bytes))


def test_a_power_limit_leaves_products_more_than_nothing() -> None:
    """The generation's law counts with 300 W for memory, links and leakage; a card of 250 W states its own."""
    card = {**H100, "generation": "blackwell", "power_w": 250}
    with pytest.raises(InputError, match=r"(?s)power_w is 250.* beyond the 300 W .* power_exponent = 0"):
        device_spec(check_record(card, noun="device file"), kernel_efficiency)

    stated = {**card, "efficiency": {"power_fixed_w": 100, "power_w_per_tflop": 0.2, "source": "my bench"}}
    own = device_spec(check_record(stated, noun="device file"), kernel_efficiency)
    peak = dict(own.peak_flop_per_s)["bf16"] / 1e12
    exponent = kernel_efficiency("blackwell").power_exponent
    assert power_limited_clock(own) == pytest.approx((150 / peak / 0.2) ** exponent)
    whole = {**card, "efficiency": {"power_w_per_tflop": 0.3, "source": "my bench"}}
    assert device_spec(check_record(whole, noun="device file"), kernel_efficiency).efficiency.power_fixed_w == 0
    idle = {**card, "efficiency": {"power_exponent": 0, "source": "my bench"}}
    assert power_limited_clock(device_spec(check_record(idle, noun="device file"), kernel_efficiency)) == 1.0


def test_a_stated_law_takes_the_place_of_timed_curves() -> None:
    def efficiency_of(**stated: object) -> KernelEfficiency:
        return device_spec(
            check_record({**H100, "efficiency": stated}, noun="device file"), kernel_efficiency
        ).efficiency

    timed = kernel_efficiency("hopper")
    assert timed.product_curve("bf16").k_half != timed.k_half
    assert timed.product_curve("mxfp8") == timed.product_curve("fp8-block")
    assert efficiency_of(gemm_fraction=0.7).product_curve("bf16") == timed.product_curve("bf16")
    own = efficiency_of(k_half=300.0).product_curve("bf16")
    assert (own.k_half, own.joint) == (300.0, math.inf)
    both = efficiency_of(product_dtypes=["bf16"], product_k_half=[200], product_joint=[4.0])
    assert both.product_curve("bf16").k_half == 200
    assert efficiency_of(flash_dim_half=40.0).flash_dim_cost(64, 64) == pytest.approx(1 + 40 / 64)
    assert timed.flash_dim_cost(64, 64) > timed.flash_dim_cost(128, 128)
    with pytest.raises(InputError, match="2 of product_dtypes, 1 of product_k_half"):
        efficiency_of(product_dtypes=["bf16", "fp8"], product_k_half=[200], product_joint=[4.0])


def test_protocols_of_a_link_are_stated_together() -> None:
    node = {**H100["node"], "scaleup_base_us": 18.0}
    with pytest.raises(InputError, match="protocols are missing: scaleup_quick_base_us"):
        device_spec(check_record({**H100, "node": node}, noun="device file"), kernel_efficiency)
    node |= {"scaleup_quick_base_us": 5, "scaleup_quick_step_us": 0.8, "scaleup_quick_share": 0.4}
    node |= {"scaleup_few_ranks": 0.5, "scaleup_in_switch_us": 50}
    spec = device_spec(check_record({**H100, "node": node}, noun="device file"), kernel_efficiency)
    assert spec.node is not None
    assert spec.node.scaleup_protocols is not None
    assert spec.node.scaleup_protocols.quick_base_s == pytest.approx(5e-6)


def test_all_problems_come_together() -> None:
    with pytest.raises(InputError) as caught:
        check_record(
            {
                "name": "../x",
                "memory_gb": 80,
                "memory_gb_s": -1,
                "units": 1.5,
                "node": {"fabric_gbit": 1, "scaleup_efficiency": 80},
                "source": {"units": {"basis": "guess", "source": "me"}},
            },
            noun="device file",
        )
    text = str(caught.value)
    for fragment in (
        "name is '../x'",
        "unknown key 'memory_gb'",
        "memory_gib",
        "memory_gb_s is -1",
        "units is 1.5",
        "generation is missing",
        "no peak is given",
        "node.fabric_gbit",
        "did you mean fabric_gb_s",
        "node.scaleup_efficiency is 80",
        "source.units.basis is 'guess'",
    ):
        assert fragment in text


def test_an_unknown_generation_names_the_known() -> None:
    with pytest.raises(UnsupportedError, match="did you mean hopper"):
        device_spec(check_record({**H100, "generation": "hoper"}, noun="device file"), kernel_efficiency)


def test_a_right_file_has_no_findings() -> None:
    assert lint() == []


@pytest.mark.parametrize(
    ("changes", "field", "suggestion"),
    [
        # with sparsity
        ({"bf16_tflops": 1979}, "bf16_tflops", "989.5"),
        ({"bf16_tflops": 1979, "fp8_tflops": 3958}, "bf16_tflops", "989.5"),
        ({"bf16_tflops": 1979, "fp8_tflops": None}, "bf16_tflops", "989.5"),
        ({"fp8_tflops": 3958}, "fp8_tflops", "1979"),
        ({"bf16_tflops": 1979, "fp16_tflops": 989, "fp8_tflops": None}, "bf16_tflops", "989.5"),
        ({"bf16_tflops": 1979, "tf32_tflops": 494.5, "fp8_tflops": None}, "bf16_tflops", "989.5"),
        ({"tf32_tflops": 989}, "tf32_tflops", "494.5"),
        # wrong prefix
        ({"bf16_tflops": 989e12, "fp8_tflops": None}, "bf16_tflops", "989"),
        ({"bf16_tflops": 989_000, "fp8_tflops": None}, "bf16_tflops", "989"),
        ({"bf16_tflops": 0.989, "fp8_tflops": None}, "bf16_tflops", "989"),
        ({"memory_gb_s": 3.35}, "memory_gb_s", "3350"),
        ({"memory_gb_s": 3350e9}, "memory_gb_s", "3350"),
        ({"memory_gb_s": 3_350_000}, "memory_gb_s", "3350"),
        # bits
        ({"memory_gb_s": 26_800}, "memory_gb_s", "3350"),
        ({"memory_gb_s": 38_400, "memory_gib": 139.8}, "memory_gb_s", "4800"),
        ({"node": {"fabric_gb_s": 400}}, "node.fabric_gb_s", "50"),
        ({"node": {"fabric_gb_s": 3200}}, "node.fabric_gb_s", "400"),
        ({"node": {"scaleup_gb_s": 7200}}, "node.scaleup_gb_s", "900"),
        ({"host_gb_s": 3600}, "host_gb_s", "450"),
        # GB, MiB, bytes for GiB
        ({"memory_gib": 84.94}, "memory_gib", "79.11"),
        ({"memory_gib": 85.5}, "memory_gib", "79.63"),
        ({"memory_gib": 81_559}, "memory_gib", "79.65"),
        ({"memory_gib": 85e9}, "memory_gib", "79.16"),
    ],
)
def test_known_mistakes_are_errors_with_the_right_number(changes: dict[str, Any], field: str, suggestion: str) -> None:
    found = errors(**changes)
    assert field in found
    assert suggestion in found[field].suggestion


def test_the_a100_with_sparsity() -> None:
    assert "bf16_tflops" in errors(
        name="A100-mine",
        generation="ampere",
        bf16_tflops=624,
        fp8_tflops=None,
        memory_gib=79.2,
        memory_gb_s=2039,
        units=108,
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_gib": 80}, "memory_gib"),
        ({"memory_gib": 53}, "memory_gib"),
        ({"memory_gb_s": 25_000, "memory_gib": 53, "units": None}, "memory_gb_s"),
        ({"node": {"scaleup_gb_s": 900, "fabric_gb_s": 50}}, "node.scaleup_gb_s"),
        ({"node": {"scaleup_gb_s": 20, "fabric_gb_s": 50}}, "node.scaleup_gb_s"),
        ({"source": None}, "source"),
        ({"units": None}, "units"),
    ],
)
def test_doubts_are_warnings(changes: dict[str, Any], field: str) -> None:
    findings = [finding for finding in lint(**changes) if finding.field == field]
    assert [finding.level for finding in findings] == ["warning"]


def test_impossible_balance_is_an_error() -> None:
    assert "memory_gb_s" in errors(
        name="Odd", memory_gib=53, memory_gb_s=25_000, bf16_tflops=100, fp8_tflops=200, units=50
    )
    assert "bf16_tflops" in errors(
        name="Odd", memory_gib=53, memory_gb_s=100, bf16_tflops=900, fp8_tflops=None, units=50
    )


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-10, 10**25)
values = st.one_of(numbers, st.text(max_size=5), st.booleans(), st.none(), st.just({}), st.just([]))


@given(st.dictionaries(st.sampled_from([*H100, "fp16_tflops", "fp4_tflops", "tf32_tflops", "host_gb_s"]), values))
def test_any_table_is_a_device_with_findings_or_a_clear_error(changes: dict[str, object]) -> None:
    with contextlib.suppress(InputError, UnsupportedError):
        record = check_record({**H100, **changes}, noun="device file")
        for finding in lint_device(record, devices()):
            assert finding.message
            assert finding.suggestion
        assert device_spec(record, kernel_efficiency).memory_bytes > 0
