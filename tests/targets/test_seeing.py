"""Which programs run plans of models that see, and what they refuse."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.targets import TARGETS, seeing
from tests.targets.test_round_trip import written

LOADERS = ("accelerate", "deepspeed", "axolotl", "llamafactory", "automodel")


def asked(model: str, line: str = "dp8.z2", gpus: str = "8xH100", **fields: object) -> Job:
    given = {"seq_len": 8192, "global_batch": 8, "software": "megatron-core", **fields}
    return plan_question(line, JobFields(model=model, gpus=gpus, **given)).job  # type: ignore[arg-type]


def refusals(target: str, job: Job) -> list[str]:
    return [f"{one.what}: {one.why}" for one in TARGETS[target].refused(job)]


def test_a_plan_of_adapters_names_the_trainers_that_run_it() -> None:
    found = plan(
        "qwen2.5-vl-7b", gpus="1xRTX4090", lora="r=16,base=nf4", images=1, image_size="1024x1024", global_batch=16
    ).to_dict()
    fits = {one["trainer"]: one["fits"] for one in found["trainers"]}
    assert {name for name, does in fits.items() if does} == set(LOADERS)
    assert "vlm_step" in next(one["why"] for one in found["trainers"] if one["trainer"] == "bridge")


@pytest.mark.parametrize("target", LOADERS)
def test_a_class_whose_modules_are_not_known_is_refused(target: str) -> None:
    job = asked("internvl3-8b", "dp1", gpus="1xH100", images=1, lora="r=8")
    assert any("internvl_chat" in one for one in refusals(target, job))


def test_a_program_refuses_a_class_that_it_does_not_know_the_parts_of() -> None:
    job = asked("llava-1.5-7b", "dp1", gpus="1xH100", images=1, lora="r=8")
    assert not refusals("llamafactory", job)
    assert set(seeing.CLASSES) > {"aria", "llava", "qwen3_vl"}


def test_ranks_do_not_share_samples_with_images() -> None:
    job = asked("qwen2.5-vl-7b", "tp2.nosp.dp4.z1", images=1, image_size="448x448", lora="r=8")
    assert any("plan: tp is 2" in one for one in refusals("deepspeed", job))


def test_images_are_as_large_as_the_plan_has_them() -> None:
    job = asked("qwen2.5-vl-7b", images=2, image_size="640x480", freeze=("vision",))
    text = written("deepspeed", job)["train.py"]
    assert "IMAGES, WIDTH, HEIGHT = 2, 644, 504" in text  # whole groups of 28 pixels
    assert 'FROZEN = ("model.visual.patch_embed", "model.visual.blocks",)' in text


def test_text_alone_loads_the_whole_class_with_its_tower_frozen() -> None:
    job = asked("llava-1.5-7b")
    text = written("deepspeed", job)["train.py"]
    assert "AutoModelForImageTextToText" in text
    assert 'FROZEN = ("model.vision_tower", "model.multi_modal_projector",)' in text
    assert any("vlm_step" in one for one in refusals("bridge", job))
