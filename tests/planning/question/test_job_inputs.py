"""What users say becomes nouns; what they leave out is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.formats.host import Disks
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.for_target import priced_as
from meshwright.planning.question.job_inputs import job_inputs, resolve_cluster
from meshwright.specs.cluster import HostSpec


def test_defaults_are_named() -> None:
    found = job_inputs(JobFields(model="llama-3.1-70b", gpus="64xH100"))
    assert (found.workload.seq_len, found.workload.global_batch) == (4096, 1024)
    names = {assumption.name for assumption in found.assumptions}
    assert {"seq_len", "global_batch", "dtype", "optimizer", "memory reserve"} <= names
    assert all(assumption.value and assumption.basis for assumption in found.assumptions)


def test_what_is_given_is_no_assumption() -> None:
    found = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", seq_len=8192, global_batch=64, price=2.0))
    names = {assumption.name for assumption in found.assumptions}
    assert not names & {"seq_len", "global_batch", "price"}
    assert found.cluster.groups[0].price_per_hour == 2.0


@pytest.mark.parametrize(
    ("lora", "stated", "software"),
    [
        ("r=16,base=nf4", None, "transformers"),
        ("r=16,base=fp4-single", None, "transformers"),
        ("r=16,base=int8", None, "transformers"),
        ("r=16,base=nf4", "megatron-core", "megatron-core"),
        ("r=16,base=fp8", None, "megatron-core"),
        ("r=16", None, "megatron-core"),
        (None, None, "megatron-core"),
    ],
)
def test_adapters_on_weights_of_bitsandbytes_are_priced_under_what_loads_them(
    lora: str | None, stated: str | None, software: str
) -> None:
    asked = JobFields(model="llama-3-8b", gpus="1xRTX4090", lora=lora, software=stated)
    found = job_inputs(asked)
    assert found.workload.software == software
    assert found.software_given is (stated is not None)
    said = next(one.value for one in found.assumptions if one.name == "software")
    assert ("PEFT and bitsandbytes" in said) is (lora is not None and "base=fp8" not in lora and "base" in lora)
    # A plan file keeps what it was made with, stated again or not.
    old = replace(found.workload, software="megatron-core")
    assert job_inputs(replace(asked, software=None, like=old)).workload.software == "megatron-core"
    assert priced_as(asked, "bridge").software == "megatron-core"
    loads = "transformers" if "PEFT and bitsandbytes" in said else "pytorch-eager-no-sync"
    assert priced_as(replace(asked, software=None), "axolotl").software == loads


@pytest.mark.parametrize(
    ("gpus", "dtype"), [("8xV100-32", "fp16"), ("8xV100-32,8xT4", "fp16"), ("8xH100,8xV100-32", "bf16")]
)
def test_devices_without_bf16_train_in_fp16(gpus: str, dtype: str) -> None:
    assert job_inputs(JobFields(model="llama-3-8b", gpus=gpus)).workload.precision.name == dtype


def test_gradients_are_projected_below_the_width() -> None:
    with pytest.raises(InputError, match="has rank 999,999"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", optimizer="galore:rank=999999"))
    found = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", optimizer="galore:rank=64"))
    assert found.workload.optimizer == "galore:rank=64"


def test_all_problems_come_together() -> None:
    with pytest.raises(InputError) as caught:
        job_inputs(JobFields(model="lama-3-8b", gpus="8xH1000", dtype="bf17", global_batch=8, tokens_per_step=4096))
    text = str(caught.value)
    for part in ("lama-3-8b", "H1000", "bf17", "both a global batch"):
        assert part in text
    assert len(caught.value.problems) == 4


def test_only_unknown_names_are_unsupported() -> None:
    with pytest.raises(UnsupportedError) as caught:
        job_inputs(JobFields(model="lama-3-8b", gpus="8xH1000", dtype="bf17"))
    assert len(caught.value.problems) == 3


def test_one_cluster_is_given() -> None:
    with pytest.raises(InputError, match="no cluster"):
        resolve_cluster(None)
    with pytest.raises(InputError, match="both"):
        resolve_cluster("8xH100", "8xH100")


def test_a_cluster_is_a_spec_a_line_or_a_file(tmp_path: Path) -> None:
    spec = resolve_gpus("8xH100")
    assert resolve_cluster(spec) is spec
    assert resolve_cluster("8xH100") == spec
    file = tmp_path / "lab.toml"
    file.write_text('[[group]]\ndevice = "H100"\nnodes = 2\ndevices_per_node = 8\n')
    assert resolve_cluster(file).devices == resolve_cluster(str(file)).devices == 16


def test_a_device_must_compute_in_the_format() -> None:
    with pytest.raises(UnsupportedError, match="fp8"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xA100-80", dtype="fp8"))


def test_a_stated_host_is_that_of_every_group() -> None:
    disks = Disks(bytes_per_s=7e9, size_bytes=2e12)
    job = JobFields(model="llama-3-8b", gpus="1xRTX4090,1xRTX3090", host_ram=64e9, nvme=disks, pcie=12e9)
    hosts = [group.host for group in job_inputs(job).cluster.groups]
    assert hosts == [HostSpec(memory_bytes=64e9, link_bytes_per_s=12e9, disk_bytes=2e12, disk_read_bytes_per_s=7e9)] * 2


def test_the_load_of_experts_is_not_asked_of_a_dense_model() -> None:
    with pytest.raises(InputError) as caught:
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", expert_load=2.0))
    assert caught.value.problems[0].field == "expert_load"
    with pytest.raises(InputError, match="no experts"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", dispatch_dtype="fp8"))


def test_tiles_of_dense_layers_need_some() -> None:
    with pytest.raises(InputError, match="mlp_tiles is 4"):
        job_inputs(JobFields(model="olmoe-1b-7b", gpus="8xH100", mlp_tiles=4))


@pytest.mark.parametrize("model", [3, ["llama-3-8b"]])
def test_what_is_no_model_is_refused_like_anything_else(model: object) -> None:
    with pytest.raises(InputError, match="must be a name of the library"):
        job_inputs(JobFields(model=model, gpus="8xH100"))
