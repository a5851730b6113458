"""What MaxText's YAML says of formats is what is priced, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright
from meshwright.app.export import export
from meshwright.formats.launch_file import LaunchFile
from meshwright.targets import target_named
from meshwright.targets.maxtext import QUANTIZATIONS

YAML = "per_device_batch_size: 2\nmax_target_length: 4096\nici_fsdp_parallelism: 8\nquantization: '{}'\n"


def read(quantization: str) -> LaunchFile:
    target = target_named("maxtext")
    assert target.read is not None
    return target.read({"config.yml": YAML.format(quantization)}, 8)


@pytest.mark.parametrize(
    ("quantization", "compute"),
    [("", "bf16"), ("fp8", "fp8"), ("te_fp8_currentscaling", "fp8"), ("te_mxfp8", "mxfp8"), ("int8", "int8")],
)
def test_quantized_products_are_read(quantization: str, compute: str) -> None:
    found = read(quantization)
    assert not found.problems
    assert found.workload["precision"].compute == compute


def test_a_format_that_is_not_priced_is_refused() -> None:
    assert [problem.field for problem in read("int4").problems] == ["quantization"]


@pytest.mark.parametrize("dtype", QUANTIZATIONS)
def test_formats_come_back(dtype: str) -> None:
    plans = meshwright.plan("llama-3.1-8b", gpus="8xB200", target="maxtext", dtype=dtype)
    target = target_named("maxtext")
    assert target.read is not None
    found = target.read(dict(export(plans.best, "maxtext").files), 8)
    assert not found.problems
    assert found.workload["precision"].name == dtype


def test_adapters_that_it_has_not_are_the_reason_for_no_other_plan(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(YAML.format(""))
    report = meshwright.check(tmp_path / "config.yml", model="llama-3.1-8b", gpus="8xH100", lora="r=8")
    assert any("no other plan was searched: the model is trained with adapters" in one for one in report.warnings)
