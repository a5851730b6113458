"""Models and engines that a file describes without naming them: MaxText's sizes, and files that programs ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import check
from meshwright.targets import TARGETS

SCALED = "python3 -m MaxText.train base.yml run_name=a per_device_batch_size=1 max_target_length=2048 "


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ("enable_profiler=true base_num_heads=16", 1_100_000_000),
        ("global_parameter_scale=1024 ici_tensor_parallelism=8", 997_000_000_000),
        (
            "base_emb_dim=4096 base_num_query_heads=32 base_num_kv_heads=32 base_mlp_dim=11008 "
            "base_num_decoder_layers=32",
            6_738_000_000,
        ),
    ],
)
def test_sizes_of_maxtext_are_a_model(tmp_path: Path, keys: str, parameters: int) -> None:
    """Its defaults are a model of about a billion; the second is named 1024b; the third is Llama 2 7B."""
    script = tmp_path / "run.sh"
    script.write_text(SCALED + keys + "\n")
    report = check(script, cluster="8xH100", search=False)
    assert not [one for one in report.violations if one.code in ("ASK", "OPTIONS")]
    assert report.inputs is not None
    assert report.inputs.model.parameters == pytest.approx(parameters, rel=0.01)


def test_a_model_that_the_keys_do_not_describe_is_contradicted(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCALED + "base_emb_dim=5120 ici_fsdp_prefetch_size=2\n")
    report = check("llama-2-7b", source=script, cluster="8xH100", search=False)
    assert {one.code for one in report.violations} >= {"MODEL"}


@pytest.mark.parametrize("key", ["ici_sequence_parallelism=2", "dcn_diloco_parallelism=2", "ici_parallelism=[1,8]"])
def test_axes_that_plans_do_not_have_are_refused(tmp_path: Path, key: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{SCALED}{key}\n")
    report = check(script, cluster="8xH100", search=False)
    assert [one.field for one in report.violations if one.code == "OPTIONS"] == [key.partition("=")[0]]


ENGINES = """base_model: meta-llama/Llama-3.1-8B
datasets: [{path: a, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: auto
optimizer: adamw_torch
deepspeed: deepspeed_configs/%s
"""


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("zero1.json", "dp8.z1.mbs1.gbs16"),
        ("zero2.json", "dp8.z2.mbs1.gbs16.off-og"),
        ("zero3_bf16_cpuoffload_all.json", "dp8.z3.mbs1.gbs16.off-wog"),
    ],
)
def test_files_of_deepspeed_that_are_shipped_need_not_be_here(name: str, plan: str) -> None:
    found = TARGETS["axolotl"].read({"sft.yaml": ENGINES % name}, devices=8)
    assert found.row is not None
    assert found.row.format() == plan
    assert any(name in note for note in found.notes)
    batch = '"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"'
    own = {"sft.yaml": ENGINES % name, name: f'{{{batch}, "zero_optimization": {{"stage": 0}}}}'}
    read = TARGETS["axolotl"].read(own, devices=8)
    assert read.row is not None
    assert read.row.sharding == "z0"


def test_another_file_of_deepspeed_is_asked_for() -> None:
    found = TARGETS["axolotl"].read({"sft.yaml": ENGINES % "mine.json"}, devices=8)
    assert [one.field for one in found.questions] == ["deepspeed"]
