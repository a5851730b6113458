"""What may be trained instead of all weights where these do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.library.models import spec
from meshwright.planning.question.tuning_text import read_lora
from meshwright.planning.repair.no_plan import NoPlanError
from meshwright.planning.repair.of_tuning import lighter, lora_option
from meshwright.specs.tuning import Lora, Tuning
from meshwright.specs.workload import Workload

MODEL = spec("llama-3.1-8b")
STEP = Workload(seq_len=2048, global_batch=8)


def test_full_training_may_become_adapters_and_these_stand_beside_4_bits() -> None:
    options = [option for option, *_ in lighter(MODEL, STEP, software_given=False)]
    assert options == ["--lora r=16", "--lora r=16,base=nf4"]
    stored = replace(MODEL, tuning=Tuning(lora=Lora(rank=8, base="nf4")))
    assert list(lighter(stored, STEP, software_given=False)) == []


def test_a_repair_in_4_bits_is_priced_under_what_loads_them_unless_the_framework_is_stated() -> None:
    peft = ["pytorch-eager-no-sync", "transformers"]  # whose adapters are on products that Megatron-Core fuses
    for given, under in ((False, peft), (True, ["megatron-core"] * 2 + ["transformers"])):
        assert [step.software for *_, step in lighter(MODEL, STEP, software_given=given)] == under
    *_, (option, text, _, _) = lighter(MODEL, STEP, software_given=True)
    assert option == "--lora r=16,base=nf4 --software transformers"
    assert text.endswith("under transformers")


def test_more_devices_for_adapters_are_as_many_as_a_trainer_takes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "qwen3-32b", "--lora", "r=16,base=nf4", "--gpus", "1xRTX4090", "--software", "transformers"]
    assert main([*asked, "--json"]) != 0
    repairs = json.loads(capsys.readouterr().out)["repairs"]
    more = [one for one in repairs if one["option"].startswith("--gpus") and "RTX-4090" in one["option"]]
    assert [bool(one["run_by"]) for one in more] == [True]


def test_adapters_are_said_as_the_command_line_reads_them() -> None:
    lora = Lora(rank=8, targets=("q_proj", "v_proj"), base="nf4", dora=True, dropout=0.05, layers=((0, 3), (8, 9)))
    assert read_lora(lora_option(lora)) == lora
    assert read_lora(lora_option(replace(lora, train=("embedding", "head")))).train == ("embedding", "head")


@pytest.mark.parametrize(
    ("model", "lora", "gpus", "repair"),
    [
        ("llama-2-13b", None, "1xA100-40", "--lora r=16"),
        ("llama-3.1-70b", "r=16", "1xA100-80", "--lora r=16,base=nf4"),
        ("llama-3.1-70b", "r=16", "1xRTX4090", "--lora r=16,base=nf4 --gpus"),
        ("llama-3.1-8b", "r=16", "1xRTX3060", "--lora r=16,base=nf4 --loss-tiles"),
        ("qwen3-32b", "r=16", "2xRTX4090", "--lora r=16,base=nf4"),
    ],
)
def test_what_does_not_fit_is_answered_with_adapters_that_do(
    model: str, lora: str | None, gpus: str, repair: str
) -> None:
    with pytest.raises(NoPlanError) as caught:
        mw.plan(model, gpus=gpus, lora=lora, seq_len=2048, global_batch=8)
    options = [one.option for one in caught.value.repairs]
    assert any(option.startswith(repair) for option in options), options
    assert all(one.changes_training for one in caught.value.repairs if "--lora" in one.option)


def test_products_in_8_bits_that_no_trainer_has_beside_adapters_are_repaired_in_16_bits() -> None:
    """Sixteen GPUs were the answer, where two hold it and nobody runs it on either."""
    with pytest.raises(NoPlanError) as caught:
        mw.plan("gemma-3-12b", gpus="1xRTX5090", lora="r=16", dtype="mxfp8")
    repairs = caught.value.repairs
    assert any(one.option.startswith("--dtype bf16 --loss-tiles") for one in repairs)
    assert all(one.run_by for one in repairs)
    assert {one.devices for one in repairs} == {1}


def test_weights_in_4_bits_that_one_of_two_gpus_cannot_hold_are_answered_with_what_a_trainer_runs() -> None:
    """Two tensor ranks fit, no trainer makes them of packed weights, and nothing else was looked for."""
    with pytest.raises(NoPlanError) as caught:
        mw.plan("qwen3-32b", gpus="2xRTX4090", lora="r=16,base=nf4")
    said = {one.option.partition(" ")[0] for one in caught.value.repairs if one.run_by}
    assert {"--offload", "--loss-tiles", "--gpus"} <= said


def test_adapters_on_more_devices_are_no_repair_where_as_many_hold_what_was_asked_for() -> None:
    """A long sequence's activations, not its weights, are too large: 4-bit weights save no device."""
    with pytest.raises(NoPlanError) as caught:
        mw.plan("llama-3.1-8b", gpus="8xH100", lora="r=16", seq_len=1_000_000)
    plain = next(one for one in caught.value.repairs if one.option.startswith("--gpus 16xH100"))
    assert all(one.devices < plain.devices for one in caught.value.repairs if "base=nf4" in one.option)


@pytest.mark.parametrize("software", [{}, {"--software": "transformers"}])
@pytest.mark.parametrize(
    ("model", "lora", "gpus"), [("llama-3.1-70b", {"--lora": "r=16"}, "1xA100-80"), ("qwen3-32b", {}, "1xRTX4090")]
)
def test_the_command_of_a_repair_in_4_bits_gives_the_numbers_it_promises(
    model: str, lora: dict[str, str], gpus: str, software: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"--gpus": gpus, "--seq": "2048", "--gbs": "8", **software}

    def answer(verb: str, options: dict[str, str]) -> dict[str, Any]:
        main([verb, model, *(word for option in options.items() for word in option), "--json"])
        return json.loads(capsys.readouterr().out)

    promised = [one for one in answer("plan", asked | lora)["repairs"] if "base=nf4" in one["option"]]
    assert promised
    for one in promised:
        words = one["option"].split()
        repaired = asked | dict(zip(words[::2], words[1::2], strict=True))
        assert ("under transformers" in one["text"]) is not bool(software)
        of_plan = {name: value for name, value in repaired.items() if name != "--offload"}
        found = answer("estimate", of_plan | {"--plan": one["plan"]})["plans"][0]["estimate"]
        assert found["step_time_s"] == pytest.approx(one["step_time_s"], rel=1e-6)
        peak = max(stage["peak_memory_bytes"] for stage in found["stages"])
        assert peak == pytest.approx(one["peak_memory_bytes"], rel=1e-6)
        best = answer("plan", repaired)["plans"][0]["estimate"]
        assert best["step_time_s"] <= one["step_time_s"] * (1 + 1e-6)


def test_under_software_that_loads_no_base_in_4_bits_that_of_peft_is_named() -> None:
    with pytest.raises(NoPlanError) as caught:
        mw.plan("qwen3-32b", gpus="1xRTX4090", software="megatron-core", seq_len=2048, global_batch=8)
    assert caught.value.repairs
    stored = [one.option for one in caught.value.repairs if "base=nf4" in one.option]
    assert stored
    assert all("--software transformers" in option for option in stored)


def test_adapters_that_fit_no_trainers_memory_may_fit_under_unsloth(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "qwen3-14b", "--lora", "r=16,base=nf4", "--gpus", "1xRTX4060Ti-16", "--seq", "2048"]
    assert main([*asked, "--json"]) != 0
    repairs = json.loads(capsys.readouterr().out)["repairs"]
    (option,) = (one["option"] for one in repairs if one["option"].startswith("--software"))
    assert option == "--software unsloth --loss-tiles 4"
    assert main([*asked, *option.split(), "--json"]) == 0


def test_experts_in_4_bits_are_a_repair_where_one_trainer_stores_them() -> None:
    with pytest.raises(NoPlanError) as caught:
        mw.plan("qwen3-30b-a3b", gpus="2xRTX4090", lora="r=16", seq_len=2048, global_batch=8)
    run_by = {one.option: one.run_by for one in caught.value.repairs}
    assert run_by["--lora r=16,base=nf4"] == ("axolotl",)


@pytest.mark.parametrize(("lora", "said"), [("r=16,base=nf4", ""), ("r=16", "--lora r=16,base=nf4")])
def test_a_card_of_8_gb_is_answered_with_shorter_sequences_under_unsloth(lora: str, said: str) -> None:
    """No single change was enough, and the answer was another card."""
    with pytest.raises(NoPlanError) as caught:
        mw.plan("qwen3-8b", gpus="1xRTX-4070-Laptop", lora=lora)
    last = caught.value.repairs[-1]
    assert last.option.startswith("--software unsloth")
    assert said in last.option
    assert "--seq " in last.option
    assert last.changes_training
    assert last.peak_memory_bytes <= last.capacity_bytes
