"""What a sample holds beside text: images, clips of audio, and the input of an encoder. Streams get tokens, or go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import Assumption
from meshwright.formats.huggingface.nested import TEXT_ONLY
from meshwright.specs.model import LayerRun, ModelSpec
from meshwright.specs.streams import Images, Stream
from meshwright.units import significant

MAX_SIDE = 65_536
_SIZE = re.compile(r"\s*([0-9]{1,6})\s*(?:[xX×]\s*([0-9]{1,6})\s*)?")


def with_samples(model: ModelSpec, job: JobFields, seq_len: int) -> tuple[ModelSpec, list[Assumption]]:
    """A model whose streams have their tokens, and what was assumed.

    Without a number of images text alone is trained, and towers only lie in memory. An encoder's input is as long as
    the decoder's where nothing else is said.

    Args:
        model: the model as its config or a plan has it.
        job: `images`, `image_size` and `encoder_seq_len` as far as they are given.
        seq_len: tokens of the text.

    Raises:
        InputError: what is said does not suit the model.
    """
    problems = list(_unasked(model, job))
    if problems:
        raise InputError(problems, code="MW203")
    if not model.streams:
        return model, []
    notes: list[Assumption] = []
    streams = tuple(_encoder(stream, job, seq_len, model, notes) for stream in model.streams)
    model, room = replace(model, streams=streams), seq_len
    for medium in MEDIA:
        names = medium.names(model)
        count = getattr(job, medium.option)
        if not names:
            continue
        if count == 0 or (count is None and all(one.sequences is None for one in model.streams if one.name in names)):
            idle = model.parameters - _without(model, names).parameters
            notes.append(_idle(idle, medium))
            model = replace(_without(model, names), idle_parameters=model.idle_parameters + idle)
            continue
        model = replace(model, streams=tuple(_with_medium(model, job, names, medium, room)))
        room -= round(sum(_taken(one, model) for one in model.streams if one.name in names))
    if not model.streams:
        return model, notes
    towers = [stream for stream in model.streams if stream.tower]
    encoded = all(stream.embedded for stream in model.streams)
    if encoded and job.dynamic_cp:
        what, why = "dynamic_cp is asked", f"the encoder of {model.name} would need context ranks of its own"
        raise InputError(what=what, why=why, fix="leave --dynamic-cp out", field="dynamic_cp", code="MW203")
    if job.lengths is not None and not encoded:
        why = f"samples of {model.name} hold more than text, and lengths do not state how much"
        fix = "leave --lengths out" + (
            ", or --images" if any(one.images for one in towers) else ", or --audio" if towers else ""
        )
        raise UnsupportedError(
            what=f"lengths of sequences for {model.name}", why=why, fix=fix, field="lengths", code="MW406"
        )
    notes += [_understood(model, stream) for stream in model.streams if not stream.window_of]
    if job.lengths is not None:
        each = ", ".join(
            f"{(stream.length or 0) / seq_len:.3g} tokens of the {stream.name}" for stream in model.streams
        )
        value = f"each sequence has {each} for one of the decoder, and sees no other sequence in either"
        notes.append(Assumption(name="encoder lengths", value=value, basis="assumed"))
    return model, notes


def _unasked(model: ModelSpec, job: JobFields) -> Iterator[Problem]:
    """Options that say something of what the model has not."""
    for medium in MEDIA:
        yield from medium.unasked(model, job)
    if job.encoder_seq_len is not None and not any(stream.embedded for stream in model.streams):
        fixed = next((s.length for s in model.streams if not s.tower), None)
        why = f"its encoder takes {fixed:,} tokens" if fixed else f"{model.name} has no encoder of text"
        what = f"encoder_seq_len is {job.encoder_seq_len}"
        yield Problem(what=what, why=why, fix="leave it out", field="encoder_seq_len")


def _encoder(stream: Stream, job: JobFields, seq_len: int, model: ModelSpec, notes: list[Assumption]) -> Stream:
    """An encoder of text with its length."""
    if not stream.embedded:
        return stream
    if job.encoder_seq_len is not None:
        return replace(stream, length=job.encoder_seq_len)
    if stream.length is None:
        value = f"{seq_len:,} tokens into the encoder of {model.name}, as many as into its decoder"
        notes.append(Assumption(name="encoder_seq_len", value=value, basis="assumed"))
        return replace(stream, length=seq_len)
    return stream


@dataclass(frozen=True, slots=True, kw_only=True)
class _Medium:
    """Something beside text that a tower reads."""

    option: str
    """How many of them a sample has."""
    size: str
    """How large each is."""
    noun: str
    tower: str
    reads: Callable[[Stream], bool]
    sized: Callable[[Stream, JobFields, ModelSpec], Stream]
    """One per sample: its pieces and tokens."""

    def names(self, model: ModelSpec) -> set[str]:
        """Streams of the tower, and windows of them."""
        own = {one.name for one in model.streams if one.tower and self.reads(one)}
        return own | {one.name for one in model.streams if one.window_of in own}

    def unasked(self, model: ModelSpec, job: JobFields) -> Iterator[Problem]:
        """Options that say something of what the model has not, or of what is left out."""
        known = bool(self.names(model))
        if known and getattr(job, self.size) is not None and getattr(job, self.option) in (None, 0):
            why = f"no {self.noun} per sample are given, so that the {self.tower} is left out"
            what = f"{self.size} is {getattr(job, self.size)}"
            yield Problem(what=what, why=why, fix=f"say --{self.option} 1 too", field=self.option)
        for name in (self.option, self.size):
            value = getattr(job, name)
            if value is None or known:
                continue
            single = any(self.reads(stream) for stream in model.streams)
            why = f"one {self.noun.removesuffix('s')} is one sample" if single else "it reads text"
            if any(not (one.tower or one.embedded or self.reads(one)) for one in model.streams):
                why = "its encoder takes one input of a fixed length"
            if any(one.tower for one in model.streams):
                why = f"it reads {' and '.join(one.noun for one in MEDIA if one.names(model))}"
            why, fix = f"{model.name} has no {self.tower} beside its text: {why}", f"leave {name} out"
            if any(note.startswith(TEXT_ONLY) for note in model.notes):
                why, fix = f"only the text of {model.name} is known here", f"{fix}, or give its whole config.json"
            yield Problem(what=f"{name} is {value}", why=why, fix=fix, field=name)


def _with_medium(model: ModelSpec, job: JobFields, names: set[str], medium: _Medium, room: int) -> Iterator[Stream]:
    """Streams, those of a tower with so many images or clips, each of so many tokens; windows of them follow."""
    found: dict[str, Stream] = {}
    for stream in model.streams:
        if stream.name in names and not stream.window_of:
            count = getattr(job, medium.option)
            stream = stream if count is None else replace(stream, sequences=float(count))
            stream = medium.sized(stream, job, model)
            _check_room(stream, model, room, medium)
        elif stream.name in names:
            whole = found[stream.window_of]
            assert stream.length is not None
            assert whole.length is not None
            assert whole.sequences is not None
            length = min(stream.length, whole.length)
            stream = replace(stream, length=length, sequences=whole.sequences * whole.length / length)
        found[stream.name] = stream
        yield stream


def _images_sized(stream: Stream, job: JobFields, model: ModelSpec) -> Stream:
    """A stream of images with the patches of each."""
    assert stream.images is not None
    length = stream.length if job.image_size is None else _length(stream, stream.images, job.image_size, model)
    if length is None:
        why = f"{model.name} takes images of any size, so that their patches cannot be known without it"
        fix = "say --image-size 1024x1024, or what your images have"
        raise InputError(what="image_size is not given", why=why, fix=fix, field="image_size", code="MW203")
    return replace(stream, length=length)


def _clips_sized(stream: Stream, job: JobFields, model: ModelSpec) -> Stream:
    """A stream of clips with their pieces, and the tokens of each."""
    clips = stream.clips
    assert clips is not None
    if job.audio is None:
        return stream  # of a plan that has them
    seconds = job.audio_seconds if job.audio_seconds is not None else clips.piece_s if clips.padded else None
    if seconds is None:
        why = f"{model.name} takes clips of any length, so that their tokens cannot be known without it"
        fix = "say --audio-seconds 30, or what your clips have"
        raise InputError(what="audio_seconds is not given", why=why, fix=fix, field="audio_seconds", code="MW203")
    if clips.longest_s is not None and seconds > clips.longest_s:
        why = f"{model.name} reads {clips.longest_s:g} s at most"
        fix = f"use {clips.longest_s:g} or less, and --audio for the clips that a longer one is cut into"
        raise InputError(what=f"audio_seconds is {seconds:g}", why=why, fix=fix, field="audio_seconds", code="MW206")
    pieces, length = clips.of_seconds(seconds)
    return replace(stream, clips=replace(clips, seconds=seconds), sequences=job.audio * pieces, length=length)


MEDIA = (
    _Medium(
        option="images",
        size="image_size",
        noun="images",
        tower="vision tower",
        reads=lambda stream: stream.images is not None,
        sized=_images_sized,
    ),
    _Medium(
        option="audio",
        size="audio_seconds",
        noun="clips of audio",
        tower="audio tower",
        reads=lambda stream: stream.clips is not None,
        sized=_clips_sized,
    ),
)


def _count(stream: Stream) -> float:
    """Images or clips per sample."""
    assert stream.sequences is not None
    if stream.clips is None or stream.clips.seconds is None:
        return stream.sequences
    return stream.sequences / stream.clips.of_seconds(stream.clips.seconds)[0]


def _taken(stream: Stream, model: ModelSpec) -> float:
    """Tokens of a sample's text whose place a tower's tokens take."""
    if stream.window_of or any(layer.memory == stream.name for layer in model.kinds()):
        return 0.0
    return _count(stream) * (stream.text_tokens or 0)


def _length(stream: Stream, images: Images, said: str, model: ModelSpec) -> int | None:
    """Tokens of the stream for an image of this size."""
    match = _SIZE.fullmatch(str(said))
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        why = f"must be width x height in pixels, each from 1 to {MAX_SIDE:,}"
        raise InputError(
            what=f"image_size is {said!r}", why=why, fix="for example 1024x768", field="image_size", code="MW206"
        )
    if images.size is None and images.patches is None:
        return images.of_size(width, height) + images.extra
    if images.size is not None and images.size != (width, height):
        own = f"{images.size[0]}x{images.size[1]}"
        why = f"{model.name} brings every image to {own} pixels"
        fix = f"leave it out{'; ' + images.pieces if images.pieces else ''}"
        raise InputError(what=f"image_size is {width}x{height}", why=why, fix=fix, field="image_size", code="MW206")
    return stream.length


def _check_room(stream: Stream, model: ModelSpec, room: int, medium: _Medium) -> None:
    """Refuse more images or clips than a sequence has room for, where they take the place of text."""
    taken = _taken(stream, model)
    if taken <= room:
        return
    each = stream.text_tokens or 0
    most, smaller = room // each, "smaller images" if stream.images is not None else "shorter clips"
    raise InputError(
        what=f"{medium.option} is {_count(stream):g}",
        why=f"each takes {each:,} tokens of a sequence of {room:,}",
        fix=(f"use --{medium.option} {most} or less, or " if most else f"use {smaller}, or ")
        + f"--seq {int(taken):,}".replace(",", "")
        + " or more",
        field=medium.option,
        code="MW203",
    )


def _without(model: ModelSpec, names: set[str]) -> ModelSpec:
    """The model without streams, their layers, and layers that read them."""
    gone = [(layer.stream in names or layer.memory in names) for run in model.runs for layer in run.layers]
    if any(gone):
        kept = tuple(
            LayerRun(layers=layers, repeats=run.repeats)
            for run in model.runs
            if (layers := tuple(one for one in run.layers if one.stream not in names and one.memory not in names))
        )
        model = replace(model, runs=kept)
    return replace(model, streams=tuple(stream for stream in model.streams if stream.name not in names))


def _idle(parameters: int, medium: _Medium) -> Assumption:
    """The assumption that a tower is held and not used."""
    size = significant(parameters / 1e9)
    held = f"the {medium.tower} ({size}B parameters) is in memory, frozen"
    value = f"none per sample: {held}; --{medium.option} puts it to work"
    return Assumption(name=medium.option, value=value, basis="assumed")


def _understood(model: ModelSpec, stream: Stream) -> Assumption:
    """What a stream holds."""
    own = {layer: count for layer, count in model.kind_counts().items() if layer.stream.startswith(stream.name)}
    count = stream.parameters + sum(number * layer.parameters(stream.hidden) for layer, number in own.items())
    shape = f"{sum(own.values())} layers, {significant(count / 1e9)}B parameters"
    assert stream.length is not None
    if stream.images is None and stream.clips is None:
        value = f"{stream.length:,} tokens of width {stream.hidden:,} per sample ({shape})"
        return Assumption(name=stream.name, value=value, basis="assumed")
    if not stream.tower:
        value = f"one image per sample, {stream.length:,} tokens ({shape})"
        return Assumption(name="images", value=value, basis="assumed")
    read = any(layer.memory == stream.name for layer in model.kinds())
    taken = "read by cross attention" if read else f"{stream.text_tokens or 0:,} tokens of the text"
    if stream.clips is not None:
        value = f"{_count(stream):g} per sample of {stream.clips.seconds or 0:g} s, pieces of {stream.length:,} tokens"
        return Assumption(name="audio", value=f"{value}, each clip {taken} ({shape})", basis="assumed")
    pieces = f"; {stream.images.pieces}" if stream.images is not None and stream.images.pieces else ""
    value = f"{stream.sequences:g} per sample, each {stream.length:,} patches, {taken} ({shape}){pieces}"
    return Assumption(name="images", value=value, basis="assumed")
