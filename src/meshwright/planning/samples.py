"""What a sample holds beside text: images, and the input of an encoder. Streams get their tokens, or go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from meshwright.errors import InputError, Problem
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

    Without a number of images the towers are left out: text alone is trained. An encoder's input is as long as the
    decoder's where nothing else is said.

    Args:
        model: as its config or a plan has it.
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
    towers = [stream for stream in streams if stream.tower]
    if towers and (job.images == 0 or (job.images is None and towers[0].sequences is None)):
        names = {stream.name for stream in towers}
        notes.append(_left_out(model, names))
        return _without(replace(model, streams=streams), names), notes
    if towers:
        streams = tuple(_with_images(streams, job, model, seq_len))
    if job.lengths is not None:
        why = f"samples of {model.name} hold more than text, and lengths do not state how much"
        fix = "leave --lengths out" + (", or --images" if towers else "")
        raise InputError(what="lengths are given", why=why, fix=fix, field="lengths", code="MW203")
    model = replace(model, streams=streams)
    notes += [_understood(model, stream) for stream in streams if not stream.window_of]
    return model, notes


def _unasked(model: ModelSpec, job: JobFields) -> Iterator[Problem]:
    """Options that say something of what the model has not."""
    towers = any(stream.tower for stream in model.streams)
    pictures = any(stream.images for stream in model.streams)
    for name, value in (("images", job.images), ("image_size", job.image_size)):
        if value is not None and not towers:
            why = "one image is one sample" if pictures else "it reads text"
            why, fix = f"{model.name} has no vision tower beside its text: {why}", f"leave {name} out"
            if TEXT_ONLY in model.notes:
                why, fix = f"only the text of {model.name} is known here", f"{fix}, or give its whole config.json"
            yield Problem(what=f"{name} is {value}", why=why, fix=fix, field=name)
    if job.encoder_seq_len is not None and not any(stream.embedded for stream in model.streams):
        fixed = next((s.length for s in model.streams if not s.tower), None)
        why = f"its encoder takes {fixed:,} tokens" if fixed else f"{model.name} has no encoder of text"
        what = f"encoder_seq_len is {job.encoder_seq_len}"
        yield Problem(what=what, why=why, fix="leave it out", field="encoder_seq_len")
    if job.image_size is not None and towers and job.images in (None, 0):
        why = "no images per sample are given, so that the vision tower is left out"
        yield Problem(what=f"image_size is {job.image_size}", why=why, fix="say --images 1 too", field="images")


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


def _with_images(streams: tuple[Stream, ...], job: JobFields, model: ModelSpec, seq_len: int) -> Iterator[Stream]:
    """Towers with so many images, each of so many tokens; windows of them follow."""
    found: dict[str, Stream] = {}
    for stream in streams:
        if stream.tower and stream.images is not None:
            length = stream.length if job.image_size is None else _length(stream, stream.images, job.image_size, model)
            if length is None:
                why = f"{model.name} takes images of any size, so that their patches cannot be known without it"
                fix = "say --image-size 1024x1024, or what your images have"
                raise InputError(what="image_size is not given", why=why, fix=fix, field="image_size", code="MW203")
            sequences = stream.sequences if job.images is None else float(job.images)
            stream = replace(stream, sequences=sequences, length=length)
            _check_room(stream, model, seq_len)
        elif stream.window_of:
            whole = found[stream.window_of]
            assert stream.length is not None
            assert whole.length is not None
            assert whole.sequences is not None
            length = min(stream.length, whole.length)
            stream = replace(stream, length=length, sequences=whole.sequences * whole.length / length)
        found[stream.name] = stream
        yield stream


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


def _check_room(stream: Stream, model: ModelSpec, seq_len: int) -> None:
    """Refuse more images than a sequence has room for, where they take the place of text."""
    if any(layer.memory == stream.name for layer in model.kinds()):
        return
    assert stream.images is not None
    assert stream.length is not None
    assert stream.sequences is not None
    each = stream.images.text_tokens(stream.length)
    if each * stream.sequences <= seq_len:
        return
    most = seq_len // each
    raise InputError(
        what=f"images is {stream.sequences:g}",
        why=f"each takes {each:,} tokens of a sequence of {seq_len:,}",
        fix=(f"use --images {most} or less, or " if most else "use smaller images, or ")
        + f"--seq {int(each * stream.sequences):,}".replace(",", "")
        + " or more",
        field="images",
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


def _left_out(model: ModelSpec, names: set[str]) -> Assumption:
    """That text alone is trained, and what is left out."""
    count = model.parameters - _without(model, names).parameters
    value = f"none per sample: the vision tower ({significant(count / 1e9)}B parameters) is left out, --images adds it"
    return Assumption(name="images", value=value, basis="assumed")


def _understood(model: ModelSpec, stream: Stream) -> Assumption:
    """What a stream holds."""
    own = {layer: count for layer, count in model.kind_counts().items() if layer.stream.startswith(stream.name)}
    count = stream.parameters + sum(number * layer.parameters(stream.hidden) for layer, number in own.items())
    shape = f"{sum(own.values())} layers, {significant(count / 1e9)}B parameters"
    assert stream.length is not None
    if stream.images is None:
        value = f"{stream.length:,} tokens of width {stream.hidden:,} per sample ({shape})"
    elif not stream.tower:
        value = f"one image per sample, {stream.length:,} tokens ({shape})"
    else:
        text = stream.images.text_tokens(stream.length)
        read = any(layer.memory == stream.name for layer in model.kinds())
        taken = "read by cross attention" if read else f"{text:,} tokens of the text"
        pieces = f"; {stream.images.pieces}" if stream.images.pieces else ""
        value = f"{stream.sequences:g} per sample, each {stream.length:,} patches, {taken} ({shape}){pieces}"
    return Assumption(name=stream.name if stream.images is None else "images", value=value, basis="assumed")
