"""Sequences of a step: their length and number as they are asked for, or chosen where nobody says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.fields.kinds import Count
from meshwright.planning.question.batch import BATCH_TOLERANCE, sensible_batch
from meshwright.planning.question.job_inputs import job_inputs


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


@pytest.mark.parametrize(
    ("gpus", "batch"), [("32xH100,7xH100,32xA100-80,32xL40S", 1024), ("64xH100,32xA100-80", 1056), ("31xH100", 496)]
)
def test_powers_of_two_come_before_a_total_that_no_degree_has(gpus: str, batch: int) -> None:
    assert job_inputs(JobFields(model="llama-3.1-70b", gpus=gpus)).workload.global_batch == batch


def test_positions_that_are_learned_end() -> None:
    with pytest.raises(InputError, match="learned positions"):
        job_inputs(JobFields(model="gpt2", gpus="8xH100", seq_len=4096))
    longer = job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", seq_len=32768))
    assert any("longer than" in assumption.value for assumption in longer.assumptions)


def test_very_short_sequences_still_have_a_step() -> None:
    assert job_inputs(JobFields(model="llama-3-8b", gpus="64xH100", seq_len=1)).workload.global_batch == 2**20


@pytest.mark.parametrize(
    ("gpus", "tokens"),
    [
        ("1xRTX4090", 65_536),
        ("8xH100", 524_288),
        ("64xH100", 4_194_304),
        ("1024xH100", 4_194_304),
        ("16384xH100", 2**24),
    ],
)
def test_a_step_nobody_stated_suits_the_number_of_devices(gpus: str, tokens: int) -> None:
    found = job_inputs(JobFields(model="llama-3-8b", gpus=gpus))
    assert found.workload.tokens_per_step == tokens
    (said,) = (one.value for one in found.assumptions if one.name == "global_batch")
    assert ("65,536 per device" in said) == (tokens < 4_194_304)
    assert ("1,024 per device" in said) == (tokens > 4_194_304)
