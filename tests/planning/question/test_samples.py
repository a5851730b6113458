"""What samples hold beside text: images, clips of audio and the input of an encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshwright
from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.huggingface import read_config
from meshwright.ops.counts import trained_parameters
from meshwright.planning.axes import space_of
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.job_inputs import JobInputs, job_fields, job_inputs
from meshwright.report.words.identities import identities
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row_text import parse_row
from tests.formats.huggingface.sounds import CLASSES as SOUNDS
from tests.formats.huggingface.test_encoders import PUBLISHED as ENCODERS
from tests.formats.huggingface.towers import LLAVA, MLLAMA, QWEN25_VL

QWEN, LLAVA_7B = read_config(QWEN25_VL, "qwen"), read_config(LLAVA, "llava")
HEARS, VOXTRAL = read_config(SOUNDS["qwen2-audio"][0], "hears"), read_config(SOUNDS["voxtral"][0], "voxtral")
OMNI = read_config(SOUNDS["qwen2.5-omni"][0], "omni")
T5 = read_config(ENCODERS["t5-base"][0], "t5")


def _inputs(model: ModelSpec | str, **said: object) -> JobInputs:
    return job_inputs(JobFields(model=model, gpus="8xH100", **said))


def _said(found: JobInputs, name: str) -> str:
    return next(one.value for one in found.assumptions if one.name == name)


def test_without_images_the_text_alone_is_planned_and_it_is_said() -> None:
    found = _inputs(QWEN)
    assert not found.model.streams
    assert found.model.num_layers == 28
    assert "the vision tower (0.677B parameters) is in memory, frozen; --images puts it to work" in _said(
        found, "images"
    )
    assert _inputs(QWEN, images=0).model == found.model


def test_a_tower_without_images_lies_in_memory() -> None:
    found = _inputs(QWEN)
    assert found.model.idle_parameters == QWEN.parameters - found.model.parameters
    assert _inputs(QWEN, images=1, image_size="448x448").model.idle_parameters == 0

    def weights_bytes(model: ModelSpec) -> float:
        one = plan_question("dp8.mbs1.rc-full", JobFields(model=model, gpus="8xH200", lora="r=8")).job
        stage = estimate_plan(one.plan, one.model, one.cluster, one.workload).fullest
        return dict(stage.memory_bytes)["weights"]

    alone = replace(found.model, idle_parameters=0)
    assert weights_bytes(found.model) - weights_bytes(alone) == pytest.approx(2 * found.model.idle_parameters)
    assert weights_bytes(QWEN) == weights_bytes(found.model)


def test_images_are_understood_as_patches_and_tokens_of_the_text() -> None:
    found = _inputs(QWEN, images=2, image_size="1024x768")
    assert found.model.num_layers == 60
    assert "2 per sample, each 4,144 patches, 1,036 tokens of the text" in _said(found, "images")


def test_windows_follow_the_images() -> None:
    windows = _inputs(QWEN, images=2, image_size="1024x768").model.stream("vision windows")
    assert windows is not None
    assert windows.tokens.count == pytest.approx(2 * 4144)


def test_images_of_any_size_need_theirs() -> None:
    with pytest.raises(InputError) as caught:
        _inputs(QWEN, images=1)
    (problem,) = caught.value.problems
    assert problem.field == "image_size"


@pytest.mark.parametrize("size", ["wide", "0x5", "1024x", "-3x4", "99999x99999", "1e3x4"])
def test_sizes_that_are_none_are_refused(size: str) -> None:
    with pytest.raises(InputError, match="image_size"):
        _inputs(QWEN, images=1, image_size=size)


def test_a_tower_of_one_size_takes_no_other() -> None:
    with pytest.raises(InputError, match="336x336"):
        _inputs(LLAVA_7B, images=1, image_size="448x448")
    assert _inputs(LLAVA_7B, images=1, image_size="336").model.streams


def test_more_images_than_fit_a_sequence_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        _inputs(LLAVA_7B, images=8)
    (problem,) = caught.value.problems
    assert "each takes 576 tokens of a sequence of 4,096" in problem.why
    assert "--images 7 or less" in problem.fix


def test_images_that_are_read_by_cross_attention_take_no_text() -> None:
    found = _inputs(read_config(MLLAMA, "mllama"), images=8, seq_len=512)
    assert "read by cross attention" in _said(found, "images")


def test_without_images_layers_that_read_them_are_left_out() -> None:
    assert _inputs(read_config(MLLAMA, "mllama")).model.num_layers == 32


@pytest.mark.parametrize(
    ("said", "field"),
    [({"images": 1}, "images"), ({"image_size": "336"}, "image_size"), ({"encoder_seq_len": 64}, "encoder_seq_len")],
)
def test_what_a_text_model_has_not_is_refused(said: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        _inputs("llama-3.1-8b", **said)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_an_encoder_is_as_long_as_its_decoder_unless_it_is_said() -> None:
    encoder = _inputs(T5, seq_len=128).model.stream("encoder")
    assert encoder is not None
    assert encoder.length == 128
    longer = _inputs(T5, seq_len=128, encoder_seq_len=512).model.stream("encoder")
    assert longer is not None
    assert longer.length == 512


def test_whisper_takes_no_other_length() -> None:
    with pytest.raises(InputError, match="1,500"):
        _inputs(read_config(ENCODERS["whisper-large-v3"][0], "whisper"), encoder_seq_len=100)


def test_a_job_keeps_its_images() -> None:
    found = _inputs(QWEN, images=2, image_size="448")
    again = job_inputs(job_fields(found.model, found.cluster, found.workload))
    assert again.model == found.model


def test_a_vision_transformer_is_asked_for_images_by_its_batch() -> None:
    found = _inputs(read_config(ENCODERS["vit-l-16"][0], "vit"))
    assert (found.workload.seq_len, found.workload.global_batch) == (1, 4096)
    with pytest.raises(InputError, match="one prediction per sample"):
        _inputs(read_config(ENCODERS["vit-l-16"][0], "vit"), seq_len=197)


def test_targets_without_streams_refuse_them() -> None:
    with pytest.raises(UnsupportedError, match="a stream of encoder"):
        meshwright.plan(T5, gpus="8xH100", global_batch=64, target="megatron")


@pytest.mark.parametrize(("name", "said"), [("qwen2.5-vl-3b", {"images": 1, "image_size": "448"}), ("t5-base", {})])
def test_streams_are_planned_on_several_kinds_of_device(name: str, said: dict[str, Any]) -> None:
    inputs = job_inputs(JobFields(model=name, gpus="2xH100,2xA100-80", global_batch=64, **said))

    def space_for(part: ClusterSpec) -> Space:
        return space_of(inputs.model, inputs.workload, part.devices, pin=(), forbid=(), schedule=None)

    source = NativeSource(inputs, space_for)
    found = source.composed(source.whole, 6)
    assert any(len(pipeline.workers) > 1 for one in found for pipeline in one.plan.pipelines)
    for one in found:
        assert source.bound_s() <= one.step_time_s
        for pipeline in one.plan.pipelines:
            ends = [last for worker in pipeline.workers for chunk in worker.chunks for _, last in chunk.layers]
            assert min(ends) >= inputs.model.tower_layers, "a tower stands whole on the first stage"


def test_a_plan_says_how_many_layers_are_a_towers() -> None:
    inputs = _inputs(LLAVA_7B, images=1, global_batch=64)
    row = parse_row("pp2.dp4", devices=8, global_batch=64, schedules=("1f1b",))
    plan = expand(row, inputs.model, inputs.workload.seq_len)
    job = Job(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, plan=plan)
    (said,) = (line for line in identities(job, row) if line.startswith("layers"))
    assert said.endswith(" = 56, 24 of them a tower's")


def test_parallelizers_are_not_asked_for_streams() -> None:
    with pytest.raises(UnsupportedError, match="has a stream of encoder"):
        meshwright.plan(T5, gpus="2xH100,2xA100-80", global_batch=64, parallelizer="native")


def test_clips_take_the_place_of_text() -> None:
    assert "the audio tower (0.642B parameters) is in memory, frozen; --audio puts it to work" in _said(
        _inputs(HEARS), "audio"
    )
    found = _inputs(HEARS, audio=2, audio_seconds=10)
    assert "2 per sample of 10 s, pieces of 1,500 tokens, each clip 250 tokens of the text" in _said(found, "audio")
    audio = found.model.stream("audio")
    assert audio is not None
    assert audio.tokens.count == 2 * 1500, "each is filled up to 30 s"
    assert audio.text_tokens == 250


def test_a_long_clip_is_cut_into_pieces_that_are_filled_up() -> None:
    audio = _inputs(VOXTRAL, audio=1, audio_seconds=45).model.stream("audio")
    assert audio is not None
    assert (audio.sequences, audio.length, audio.text_tokens) == (2.0, 1500, 750)


def test_images_and_clips_share_the_room_of_a_sequence() -> None:
    found = _inputs(OMNI, images=1, image_size="1024x768", audio=2, audio_seconds=12.5, seq_len=4096)
    assert {stream.name for stream in found.model.streams} == {"vision", "vision windows", "audio"}
    with pytest.raises(InputError, match=r"each takes 312 tokens of a sequence of 964"):
        _inputs(OMNI, images=1, image_size="1024x768", audio=4, audio_seconds=12.5, seq_len=2000)
    heard = _inputs(OMNI, audio=1, audio_seconds=12.5)
    assert {stream.name for stream in heard.model.streams} == {"audio"}
    assert "the vision tower" in _said(heard, "images")


@pytest.mark.parametrize(
    ("model", "said", "match"),
    [
        (HEARS, {"audio": 1, "audio_seconds": 31}, "reads 30 s at most"),
        (HEARS, {"audio": 8, "seq_len": 4096}, "use --audio 5 or less, or --seq 6000 or more"),
        (HEARS, {"audio_seconds": 3}, "say --audio 1 too"),
        (HEARS, {"images": 1}, "it reads clips of audio"),
        (OMNI, {"audio": 1}, "say --audio-seconds 30"),
        (LLAVA_7B, {"audio": 1}, "it reads images"),
        (T5, {"audio": 1}, "has no audio tower"),
        ("llama-3.1-8b", {"audio": 1}, "it reads text"),
    ],
)
def test_what_is_said_of_clips_must_suit_the_model(model: ModelSpec | str, said: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        _inputs(model, **said)


@pytest.mark.parametrize("name", ["audio", "audio_tower"])
def test_an_audio_tower_is_frozen_as_a_whole(name: str) -> None:
    model = _inputs(HEARS, audio=1, freeze=(name,)).model
    whole = _inputs(HEARS, audio=1).model
    audio = whole.stream("audio")
    assert audio is not None
    own = sum(
        count * layer.parameters(audio.hidden)
        for layer, count in whole.kind_counts().items()
        if layer.stream == "audio"
    )
    around = audio.parameters - sum(one.parameters for one in audio.projector)
    assert model.parameters == whole.parameters
    assert trained_parameters(model) == whole.parameters - own - around


def test_lengths_of_an_encoder_decoder_are_the_decoders() -> None:
    found = _inputs(T5, seq_len=512, encoder_seq_len=1024, lengths="histogram:128=.5,512=.5")
    assert found.model.stream("encoder").length == 1024
    assert "2 tokens of the encoder for one of the decoder" in _said(found, "encoder lengths")
    with pytest.raises(InputError, match="context ranks of its own"):
        _inputs(T5, seq_len=512, lengths="histogram:128=.5,512=.5", dynamic_cp=True)


def test_lengths_are_of_text_without_a_tower() -> None:
    assert not _inputs(QWEN, lengths="histogram:128=.5,512=.5").model.streams
    with pytest.raises(UnsupportedError, match="leave --lengths out, or --images"):
        _inputs(QWEN, lengths="histogram:128=.5,512=.5", images=1, image_size="448x448")


def test_an_encoder_decoder_with_sequences_grouped_by_time() -> None:
    """Half of the sequences fill a row, the others an eighth: most of the padding of a row each is saved."""
    said = {"gpus": "4xH100", "seq_len": 512, "global_batch": 32, "top": 1, "lengths": "histogram:64=.5,512=.5"}
    grouped, padded = (meshwright.plan(T5, packing=how, **said).plans[0].estimate for how in ("dynapipe", "pad"))
    assert grouped.filling is not None
    assert padded.filling is not None
    assert grouped.filling.padding < padded.filling.padding
    assert grouped.tokens_per_s_per_device > padded.tokens_per_s_per_device
