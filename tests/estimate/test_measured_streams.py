"""Training steps of encoders and vision models beside published ones, all on A100-80."""

from __future__ import annotations

import pytest

from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.huggingface import read_config
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.planning.question.samples import with_samples
from meshwright.planning.question.tuned import with_tuning
from meshwright.specs.model import ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload

BERT_4B = read_config(
    {
        "model_type": "bert",
        "hidden_size": 2560,
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "intermediate_size": 10240,
        "vocab_size": 30592,
    },
    "bert-4b",
)


def _step_s(model: ModelSpec, seq_len: int, batch: int, devices: int, plan: str) -> float:
    cluster = resolve_gpus(f"{devices}xA100-80")
    row = parse_row(plan, devices=devices, global_batch=batch, schedules=("1f1b",))
    workload = Workload(seq_len=seq_len, global_batch=batch)
    return estimate_plan(expand(row, model, seq_len), model, cluster, workload).step_time_s


def test_an_encoder_of_four_billion() -> None:
    """57,287 tokens a second on a node, sequences of 512. Source: NVIDIA NeMo Framework user guide, BERT results."""
    step_s = _step_s(BERT_4B, 512, 2880, 8, "dp8.z1.mbs10.rc-sel")
    assert 2880 * 512 / step_s == pytest.approx(57_287, rel=0.05)


def test_an_encoder_decoder_of_three_billion() -> None:
    """110,769 tokens a second on a node: encoders of 512, decoders of 128, 2 tensor ranks, 2160 samples a step.

    Source: NVIDIA NeMo Framework user guide, T5 results, and its 3B configuration.
    """
    model = with_samples(spec("flan-t5-xl"), JobFields(encoder_seq_len=512), 128)[0]
    step_s = _step_s(model, 128, 2160, 8, "tp2.dp4.z1.mbs18")
    assert 2160 * 512 / step_s == pytest.approx(110_769, rel=0.07)


@pytest.mark.parametrize(("name", "hours"), [("llava-1.5-7b", 3.5), ("llava-1.5-13b", 5.5)])
def test_a_projector_trained_between_a_frozen_tower_and_a_frozen_text(name: str, hours: float) -> None:
    """558,000 images with captions, 256 a step, 8 devices. Source: README of haotian-liu/LLaVA, v1.5, pretraining."""
    model = with_samples(spec(name), JobFields(images=1), 640)[0]
    model = with_tuning(model, None, ["vision", "text"])
    step_s = _step_s(model, 640, 256, 8, "dp8.z2.mbs32.rc-full")
    assert step_s * 558_000 / 256 / 3600 == pytest.approx(hours, rel=0.25)
