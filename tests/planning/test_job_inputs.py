"""What users say becomes nouns; what they leave out is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.fields.kinds import Count
from meshwright.formats.host import Disks
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.job_inputs import (
    BATCH_TOLERANCE,
    job_inputs,
    resolve_cluster,
    sensible_batch,
)
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
    ("gpus", "dtype"), [("8xV100-32", "fp16"), ("8xV100-32,8xT4", "fp16"), ("8xH100,8xV100-32", "bf16")]
)
def test_devices_without_bf16_train_in_fp16(gpus: str, dtype: str) -> None:
    assert job_inputs(JobFields(model="llama-3-8b", gpus=gpus)).workload.precision.name == dtype


def test_gradients_are_projected_below_the_width() -> None:
    with pytest.raises(InputError, match="has rank 999,999"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", optimizer="galore:rank=999999"))
    found = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", optimizer="galore:rank=64"))
    assert found.workload.optimizer == "galore:rank=64"


def test_a_short_model_keeps_its_length() -> None:
    assert job_inputs(JobFields(model="gpt2", gpus="8xH100")).workload.seq_len == 1024


@pytest.mark.parametrize(
    ("per_step", "seq", "batch"), [("1M", 32768, 32), (4_194_304, 4096, 1024), ("4_096_000", 4096, 1000)]
)
def test_tokens_per_step_become_sequences(per_step: str | int, seq: int, batch: int) -> None:
    found = job_inputs(
        JobFields(model="llama-3-8b", gpus="8xH100", seq_len=seq, tokens_per_step=Count(whole=True).read("", per_step))
    )
    assert found.workload.global_batch == batch
    rounded = any(assumption.name == "global_batch" for assumption in found.assumptions)
    assert rounded == (batch * seq != Count(whole=True).read("tokens_per_step", per_step))


@given(target=st.floats(1, 1e6), devices=st.integers(1, 4096))
def test_a_default_batch_is_near_its_target(target: float, devices: int) -> None:
    batch = sensible_batch(target, devices)
    assert batch >= 1
    assert abs(batch - target) <= max(BATCH_TOLERANCE * target, 0.5)


@given(power=st.integers(0, 20))
def test_a_power_of_two_stays_on_devices_that_divide_it(power: int) -> None:
    assert sensible_batch(2**power, 64) == 2**power


@given(nodes=st.integers(1, 12))
def test_the_odd_part_of_the_devices_divides_the_default_batch(nodes: int) -> None:
    odd = nodes // (nodes & -nodes)
    assert sensible_batch(1024, nodes * 8) % odd == 0


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


def test_positions_that_are_learned_end() -> None:
    with pytest.raises(InputError, match="learned positions"):
        job_inputs(JobFields(model="gpt2", gpus="8xH100", seq_len=4096))
    longer = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", seq_len=32768))
    assert any("longer than" in assumption.value for assumption in longer.assumptions)


def test_a_device_must_compute_in_the_format() -> None:
    with pytest.raises(UnsupportedError, match="fp8"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xA100-80", dtype="fp8"))


def test_very_short_sequences_still_have_a_step() -> None:
    assert job_inputs(JobFields(model="llama-3-8b", gpus="64xH100", seq_len=1)).workload.global_batch == 2**20


@pytest.mark.parametrize(
    ("gpus", "tokens"),
    [("1xRTX4090", 65_536), ("8xH100", 524_288), ("64xH100", 4_194_304), ("1024xH100", 4_194_304)],
)
def test_a_step_nobody_stated_suits_the_number_of_devices(gpus: str, tokens: int) -> None:
    found = job_inputs(JobFields(model="llama-3-8b", gpus=gpus))
    assert found.workload.tokens_per_step == tokens
    (said,) = (one.value for one in found.assumptions if one.name == "global_batch")
    assert ("65,536 per device" in said) == (tokens < 4_194_304)


def test_a_stated_host_is_that_of_every_group() -> None:
    disks = Disks(bytes_per_s=7e9, size_bytes=2e12)
    job = JobFields(model="llama-3-8b", gpus="1xRTX4090,1xRTX3090", host_ram=64e9, nvme=disks, pcie=12e9)
    hosts = [group.host for group in job_inputs(job).cluster.groups]
    assert hosts == [HostSpec(memory_bytes=64e9, link_bytes_per_s=12e9, disk_bytes=2e12, disk_read_bytes_per_s=7e9)] * 2


def test_the_load_of_experts_is_not_asked_of_a_dense_model() -> None:
    with pytest.raises(InputError) as caught:
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", expert_imbalance=2.0))
    assert caught.value.problems[0].field == "expert_imbalance"
    with pytest.raises(InputError, match="no experts"):
        job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", dispatch_dtype="fp8"))


@pytest.mark.parametrize("model", [3, ["llama-3-8b"]])
def test_what_is_no_model_is_refused_like_anything_else(model: object) -> None:
    with pytest.raises(InputError, match="must be a name of the library"):
        job_inputs(JobFields(model=model, gpus="8xH100"))  # type: ignore[arg-type]
