"""Where ranks of Accelerate sum the gradients of several micro-batches: priced as files say it, and written so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import check, export, plan
from meshwright.app.check import CheckReport

SYNCED = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
SHARDS = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"


def checked(folder: Path, accelerator: object, steps: int = 8) -> CheckReport:
    said = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": steps, "bf16": True}
    (folder / "training_args.json").write_text(json.dumps(said | {"accelerator_config": accelerator}))
    file = folder / "around.yaml"
    file.write_text(f"{SHARDS}fsdp_config:\n  fsdp_version: 2\n")
    return check("qwen3-0.6b", cluster="8xH100", source=file, search=False)


@pytest.mark.parametrize(
    ("accelerator", "steps", "software"),
    [
        (None, 8, "pytorch-eager-no-sync"),
        ({"split_batches": False}, 8, "pytorch-eager-no-sync"),
        ({"gradient_accumulation_kwargs": {"sync_each_batch": False}}, 8, "pytorch-eager-no-sync"),
        (SYNCED, 8, "pytorch-eager"),
        (json.dumps(SYNCED), 8, "pytorch-eager"),
        (SYNCED, 1, "pytorch-eager-no-sync"),
    ],
)
def test_gradients_are_summed_where_the_arguments_say(
    tmp_path: Path, accelerator: object, steps: int, software: str
) -> None:
    report = checked(tmp_path, accelerator, steps)
    assert report.inputs is not None
    assert report.inputs.workload.software == software


def test_gradients_of_each_batch_need_less_memory(tmp_path: Path) -> None:
    whole, summed = (checked(tmp_path, said).estimate for said in (None, SYNCED))
    assert whole is not None
    assert summed is not None
    assert summed.peak_memory_bytes < whole.peak_memory_bytes


@pytest.mark.parametrize(
    ("accelerator", "field"),
    [
        ("accelerator.json", "accelerator_config"),
        (
            {"gradient_accumulation_kwargs": {"sync_each_batch": "yes"}},
            "accelerator_config.gradient_accumulation_kwargs.sync_each_batch",
        ),
    ],
)
def test_what_does_not_say_it_is_refused_by_its_key(tmp_path: Path, accelerator: object, field: str) -> None:
    assert field in [one.field for one in checked(tmp_path, accelerator).violations]


@pytest.mark.parametrize("software", ["pytorch-eager", "pytorch-eager-no-sync"])
def test_a_job_sums_gradients_as_the_plan_was_priced(tmp_path: Path, software: str) -> None:
    pins = ("sharding=fsdp", "mbs=1", "tp=1", "cp=1")
    found = plan("llama-3.1-8b", gpus="8xH100", global_batch=64, software=software, target="accelerate", pin=pins)
    export(found[0], "accelerate", tmp_path)
    said = json.loads((tmp_path / "training_args.json").read_text())
    assert said.get("accelerator_config") == (SYNCED if software == "pytorch-eager" else None)
    report = check("llama-3.1-8b", cluster="8xH100", source=tmp_path / "accelerate.yaml", search=False)
    assert report.inputs is not None
    assert report.inputs.workload.software == software


@pytest.mark.parametrize("strategy", ["12", "6", '"23"', "SHARDED"])
def test_a_strategy_of_fsdp_that_there_is_not_is_refused_by_its_key(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "training_args.json").write_text('{"per_device_train_batch_size": 1, "bf16": true}')
    file = tmp_path / "around.yaml"
    file.write_text(f"{SHARDS}fsdp_config:\n  fsdp_version: 1\n  fsdp_sharding_strategy: {strategy}\n")
    report = check("qwen3-0.6b", cluster="8xH100", source=file, search=False)
    assert "fsdp_config.fsdp_sharding_strategy" in [one.field for one in report.violations]


def test_a_number_format_that_nothing_says_is_assumed_and_not_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 1"
    for more, formats in (("", []), (" --mixed_precision bf16", ["bf16"])):
        script.write_text(command.replace(" train.py", f"{more} train.py") + "\n")
        report = check("qwen2.5-0.5b", source=script, cluster="8xH100", seq_len=512, search=False)
        assert report.launch is not None
        assert [one.value for one in report.launch.said if one.option == "mixed_precision"] == formats
        assert any("mixed_precision no, the default" in note for note in report.warnings) == (not formats)


def test_a_key_of_several_tables_has_the_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{\n"train_micro_batch_size_per_gpu": 1,\n"zero_optimization": {\n"stage": 3,\n'
        '"offload_optimizer": {\n"device": "cpu"},\n"offload_param": {\n"device": "cpu"}}}\n'
    )
    report = check("qwen2.5-0.5b", source=tmp_path / "ds.json", cluster="8xH100", seq_len=512, search=False)
    assert report.launch is not None
    places = {one.option: one.place for one in report.launch.said}
    of = [places[f"zero_optimization.offload_{what}.device"] for what in ("optimizer", "param")]
    assert of == ["ds.json:6", "ds.json:8"]


def test_shards_sum_gradients_in_the_format_of_products_and_copies_do_not(tmp_path: Path) -> None:
    """A file of shards is told to sum in bf16, which can be stated; copies have no way to."""
    report = checked(tmp_path, None)
    assert any("--reduce-dtype bf16" in note for note in report.warnings)
    stated = check("qwen3-0.6b", cluster="8xH100", source=tmp_path / "around.yaml", search=False, reduce_dtype="bf16")
    assert report.inputs is not None
    assert stated.inputs is not None
    assert (report.inputs.workload.precision.reduce, stated.inputs.workload.precision.reduce) == ("fp32", "bf16")


@pytest.mark.parametrize("kind", ["MULTI_GPU", "MULTI_NPU", "multi_xpu"])
def test_replicas_on_devices_of_any_maker_are_data_parallel(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "around.yaml"
    file.write_text(f"distributed_type: {kind}\ncompute_environment: LOCAL_MACHINE\nnum_processes: 8\n")
    (tmp_path / "training_args.json").write_text(json.dumps({"per_device_train_batch_size": 2, "bf16": True}))
    report = check("qwen3-0.6b", cluster="8xH100", source=file, search=False)
    assert report.launch is not None
    assert report.launch.row is not None
    assert report.launch.row.format() == "dp8.mbs2.gbs16"
