"""Nothing fits: what is proposed can be typed beside what was, works, and says what it costs."""

from __future__ import annotations

import re

import pytest

from meshwright import plan
from meshwright.errors import InputError, UnsupportedError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from meshwright.planning.repair.no_plan import NoPlanError
from meshwright.planning.repair.of_job import _slower

CARD = {"gpus": "1xRTX-4090", "global_batch": 16, "seq_len": 2048}


def repairs(model: str = "llama-3.1-8b", **asked: object) -> NoPlanError:
    with pytest.raises(NoPlanError) as refused:
        plan(model, **asked)
    return refused.value


def freed(refused: NoPlanError) -> list[str]:
    return [one.option for one in refused.repairs if one.option.startswith("free")]


def test_a_host_that_is_too_small_is_told_how_large_it_must_be() -> None:
    found = repairs(offload="optimizer", host_ram="16GB", **CARD).repairs
    size = next(match[1] for one in found if (match := re.fullmatch(r"--host-ram (\d+GB)", one.option)))
    assert plan("llama-3.1-8b", offload="optimizer", host_ram=size, top=1, **CARD).plans
    repairs(offload="optimizer", host_ram=f"{int(size[:-2]) - 8}GB", **CARD)


def test_pins_that_leave_one_device_all_it_has_are_not_freed() -> None:
    assert not freed(repairs(pin=("tp=1",), **CARD))


def test_a_pin_is_freed_where_something_fits_without_it() -> None:
    asked = {"gpus": "2xH100", "global_batch": 8, "seq_len": 4096}
    first = repairs(pin=("sharding=z0", "recompute=none"), **asked).repairs[0]
    assert first.option == "free the pin sharding=z0"
    found = plan("llama-3.1-8b", pin=("recompute=none",), **asked).best.estimate
    assert found.step_time_s <= first.step_time_s * (1 + 1e-9)
    # The plan of least memory keeps to this pin: nothing is won without it.
    assert not freed(repairs("llama-2-13b", gpus="2xRTX-4090", pin=("mbs=1",)))


def test_the_plan_of_least_memory_keeps_the_pinned_overlap() -> None:
    asked = {"gpus": "8xH100", "global_batch": 16, "offload": "none"}
    pinned = repairs("llama-3.1-70b", pin=("tp=8", "tp_overlap=bulk"), **asked)
    assert "plan of least memory (tp8.dp1.mbs1.gbs16.rc-full)" in str(pinned)
    assert all("tpov" not in one.plan for one in pinned.repairs)
    assert "plan of least memory (tp8.dp1.mbs1.gbs16.rc-full.tpov)" in str(
        repairs("llama-3.1-70b", pin=("tp=8",), **asked)
    )


def test_repairs_state_no_sequences_beside_tokens() -> None:
    asked = {"gpus": "2xRTX-4090", "seq_len": 4096}
    assert any("--gbs" in one.option for one in repairs(global_batch=32, **asked).repairs)
    assert all("--gbs" not in one.option for one in repairs(tokens_per_step=131_072, **asked).repairs)


def test_slower_devices_say_so() -> None:
    """GB10 has the least memory that is enough, and an eighth of the peak: it stands behind quicker ones."""
    found = repairs("llama-3.1-70b", gpus="8xH100", global_batch=16, offload="none").repairs
    larger = [match[1] for one in found if (match := re.fullmatch(r"--gpus 8x(\D.*)", one.option))]
    assert larger
    peak = device("H100").peak("bf16") or 0.0
    for name in larger:
        assert (device(name).peak("bf16") or 0.0) >= peak / 2
    assert _slower(device("GB10"), resolve_gpus("8xH100").groups[0]).endswith("of the memory bandwidth of H100")
    assert _slower(device("B200"), resolve_gpus("8xH100").groups[0]) == ""


def test_offload_on_several_kinds_of_device_is_refused_with_a_command() -> None:
    with pytest.raises(UnsupportedError, match="--gpus 1xRTX-4090 --offload optimizer"):
        plan("llama-3.1-8b", gpus="1xRTX-4090+1xRTX-3090", offload="auto")


def test_drives_hold_what_a_small_host_cannot_on_one_card() -> None:
    """One device has nothing to shard: DeepSpeed runs it as ZeRO 3, whose states may lie on drives (ZeRO-Infinity)."""
    found = repairs("llama-3.1-8b", gpus="1xRTX4090", host_ram="64GB", nvme="2TB@7GB/s").repairs
    drives = next(one for one in found if one.option == "--offload optimizer,weights,nvme")
    assert {"deepspeed", "llamafactory"} == set(drives.run_by or ())


def test_a_sequence_is_bounded() -> None:
    with pytest.raises(InputError, match="at most 134,217,728"):
        plan("llama-3.1-8b", gpus="8xH100", seq_len=99_999_999_999)


def test_an_optimizer_that_stays_on_devices_is_answered_without_the_host() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("llama-3.1-8b", gpus="1xA100-40", optimizer="galore")
    assert caught.value.repairs
    assert not any("--offload" in one.option for one in caught.value.repairs)


def test_a_card_is_told_of_adapters_in_16_bits_and_of_all_weights_trained_in_them() -> None:
    found = repairs(gpus="1xA100-80", global_batch=32, seq_len=2048).repairs
    options = [one.option for one in found]
    assert "--lora r=16" in options
    pure = next(one for one in found if one.option == "--main-copy none --grad-dtype bf16 --moment-dtype bf16")
    assert {"axolotl", "llamafactory"} <= set(pure.run_by or ())
    assert pure.changes_training


def test_frozen_parts_of_a_script_leave_every_kind_of_repair() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("llama-3.2-3b", gpus="1xRTX4090", freeze="layers.0-3", seq_len=2048, global_batch=8)
    options = " ".join(one.option for one in caught.value.repairs)
    assert all(word in options for word in ("--offload", "--gpus", "--lora", "--main-copy none"))


def test_on_devices_of_no_trainer_adapters_are_a_repair_and_pages_are_not() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("llama-3.1-8b", gpus="1xM3-Max-128", seq_len=2048, global_batch=8)
    options = [one.option for one in caught.value.repairs]
    assert "--lora r=16" in options
    assert not any("paged" in option for option in options)


def test_what_products_in_few_bits_keep_beside_the_weights_may_be_left_out() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("gemma-3-12b", gpus="1xRTX5090", dtype="mxfp8", lora="r=16", seq_len=2048, global_batch=8)
    assert any(one.option.startswith("--dtype bf16") for one in caught.value.repairs)


def test_products_that_are_in_16_bits_already_are_no_repair() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan("llama-3.1-8b", gpus="1xRTX4090", main_copy="none", grad_dtype="bf16", seq_len=2048, global_batch=8)
    assert not any("--dtype" in one.option for one in caught.value.repairs)
