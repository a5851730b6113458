"""What would fit where nothing does on several kinds of device."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.errors import InputError
from meshwright.planning.axes.offload import read_offload
from meshwright.planning.repair.no_plan import NoPlanError

MODEL, GPUS = "llama-3.1-8b", "1xRTX4090,1xRTX3090"


@pytest.fixture(scope="module")
def error() -> NoPlanError:
    with pytest.raises(NoPlanError) as caught:
        plan(MODEL, gpus=GPUS)
    return caught.value


def test_one_kind_may_keep_states_on_its_host(error: NoPlanError) -> None:
    repair = error.repairs[0]
    words = repair.option.split()
    assert words[0::2] == ["--gpus", "--gbs", "--offload"]
    again = plan(MODEL, gpus=words[1], global_batch=int(words[3]), offload=words[5])
    assert repair.run_by
    # The answer may be a plan that no framework runs, and says so; the repair is one that some do.
    assert 0.8 * repair.step_time_s < again[0].estimate.step_time_s <= repair.step_time_s


def test_adapters_fit_on_both_together(error: NoPlanError) -> None:
    repair = error.repairs[1]
    assert repair.option == "--lora r=16"
    assert repair.changes_training
    again = plan(MODEL, gpus=GPUS, lora="r=16")
    assert again[0].estimate.step_time_s == repair.step_time_s
    assert again.mixing is not None
    assert all(one.step_time_s is not None for one in again.mixing.alone), "each card holds it alone, nearly full"


def test_a_repair_keeps_the_batch_that_follows_the_devices() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("mistral-7b", gpus="1xRTX4090", offload="activations")
    assert "free a pin" not in str(caught.value)
    options = [one.option for one in caught.value.repairs]
    assert any(option.startswith("--offload optimizer") for option in options)
    assert any(option.startswith("--gpus 7x") and option.endswith("--gbs 16") for option in options)


def test_where_states_go_is_no_answer_to_which() -> None:
    with pytest.raises(InputError, match="--offload optimizer,nvme"):
        plan("mistral-7b", gpus="1xRTX4090", offload="nvme")


def test_an_offload_is_read_as_plans_write_it() -> None:
    assert read_offload("off-wog") == read_offload("wog") == ("wog",)


def test_what_an_optimizer_keeps_on_the_device_is_left_out_of_auto() -> None:
    plans = plan("llama-3.2-1b", gpus="8xH100", optimizer="paged-adamw-8bit", offload="auto", pin="pp=1")
    assert plans[0].estimate.fits == "yes"


def test_the_plan_of_least_memory_is_said_where_memory_is_one() -> None:
    with pytest.raises(NoPlanError, match="the plan of least memory") as caught:
        plan("llama-3.1-8b", gpus="1xM4-Max", offload="auto")
    assert caught.value.problems[0].why
