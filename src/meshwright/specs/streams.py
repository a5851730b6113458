"""Streams: tokens of another width or length than the text of a model, such as patches of images or frames of audio.

A layer belongs to one stream; its operators work on the tokens of that stream. Two kinds stand beside the text:

* a *tower* stands whole on the first pipeline stage, before the text's layers, and its tokens take the place of tokens
  of the text, or are keys of its cross attention (vision towers);
* an *encoder* is cut over pipeline stages as other layers are, and cross attention of later layers reads its output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from meshwright.errors import InputError
from meshwright.specs.check import Check
from meshwright.specs.operators import StreamTokens

ProjectionSplit = Literal["replicated", "column", "row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix, or a convolution as one, that tokens pass on their way into the layers of a stream or out of them."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    split: ProjectionSplit = "replicated"
    """How tensor ranks share it; `replicated` works on the tokens of the rank with all weights."""
    rate: float = 1.0
    """Positions it works on per token of the stream: 0.25 behind a merge of 2 x 2, 2 before a stride of 2."""

    def __post_init__(self) -> None:
        check = Check(f"projection {self.name}")
        check.whole("inputs", self.inputs)
        check.whole("outputs", self.outputs)
        check.positive("rate", self.rate)
        check.done()

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """How images become tokens of a stream and of the text."""

    patch: int
    """Pixels on a side of a patch."""
    merge: int = 1
    """Patches on a side that become one token of the text."""
    extra: int = 0
    """Tokens beside the patches of an image, such as a class token."""
    size: tuple[int, int] | None = None
    """Width and height in pixels to which every image is brought; None for images as they are."""
    patches: int | None = None
    """Patches of every image where the number is fixed whatever its size."""
    tokens: int | None = None
    """Tokens of the text that an image takes, where it is not patches / merge^2."""
    pieces: str = ""
    """What counts as an image where one is cut into several, for the answer."""

    def __post_init__(self) -> None:
        check = Check("images")
        check.whole("patch", self.patch)
        check.whole("merge", self.merge)
        check.whole("extra", self.extra, 0)
        check.done()

    def of_size(self, width: int, height: int) -> int:
        """Patches of an image of this size in pixels: whole groups of merged patches, the last ones filled up.

        Args:
            width: the width in pixels.
            height: the height in pixels.
        """
        side = self.patch * self.merge
        return -(-width // side) * -(-height // side) * self.merge**2

    def text_tokens(self, length: int) -> int:
        """Tokens of the text for an image of so many tokens of the stream."""
        return (length - self.extra) // self.merge**2 if self.tokens is None else self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """How clips of audio become tokens of a stream and of the text."""

    per_s: float = 50.0
    """Tokens of the stream for a second: frames of 10 ms behind a stride of 2."""
    merge: int = 2
    """Tokens of the stream that become one of the text."""
    piece_s: float = 30.0
    """Seconds that the tower reads at once: longer clips are cut into pieces."""
    padded: bool = True
    """Whether a shorter piece is filled up."""
    filled: bool = False
    """Whether the text has tokens of what was filled up, too."""
    longest_s: float | None = None
    """The longest clip; None for any."""
    seconds: float | None = None
    """Seconds of each clip; None until the workload says it."""

    def __post_init__(self) -> None:
        check = Check("clips")
        check.positive("per_s", self.per_s)
        check.whole("merge", self.merge)
        check.positive("piece_s", self.piece_s)
        if self.seconds is not None:
            check.positive("seconds", self.seconds)
        check.done()

    @property
    def piece(self) -> int:
        """Tokens of the stream in a whole piece."""
        return round(self.per_s * self.piece_s)

    def of_seconds(self, seconds: float) -> tuple[float, int]:
        """Pieces of a clip, and the tokens of the stream in each; of pieces as they are the last one counts in part.

        Args:
            seconds: the seconds of the clip.
        """
        tokens = math.ceil(self.per_s * seconds)
        if self.padded:
            return float(-(-tokens // self.piece)), self.piece
        length = min(tokens, self.piece)
        return tokens / length, length

    def text_tokens(self) -> int:
        """Tokens of the text for a clip; 0 while nobody has said how long it is."""
        if self.seconds is None:
            return 0
        pieces, length = self.of_seconds(self.seconds)
        tokens = pieces * length if self.filled else math.ceil(self.per_s * self.seconds)
        return int(tokens) // self.merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Tokens beside the text, with what stands before and behind their layers."""

    name: str
    """Name by which layers refer to it in `stream`, and cross attention in `memory`."""
    hidden: int
    """Width of its residual stream."""
    tower: bool
    """Whether its layers stand whole on the first pipeline stage; an encoder's are cut as the text's are."""
    sequences: float | None = None
    """Sequences per sample: images, pieces of clips, or one input of an encoder; windows of them where attention stays
    within windows. None until the workload says it."""
    length: int | None = None
    """Tokens of each, None until the workload says it: an image size, the length of an encoder's input."""
    images: Images | None = None
    """How images become tokens; None for a stream of something else."""
    clips: Clips | None = None
    """How clips of audio become tokens; None for a stream of something else."""
    window_of: str = ""
    """The stream whose tokens these are, cut into windows of `length`."""
    embedded: bool = False
    """Whether its tokens are looked up in the text's table."""
    stem: tuple[Projection, ...] = ()
    """Products from pixels, frames or tokens to the layers."""
    projector: tuple[Projection, ...] = ()
    """Products from the layers to the text."""
    tables: int = 0
    """Parameters outside matrices and layers: position tables, class tokens, norms."""

    def __post_init__(self) -> None:
        check = Check(f"stream {self.name}")
        check.whole("hidden", self.hidden)
        if self.sequences is not None:
            check.positive("sequences", self.sequences)
        if self.length is not None:
            check.whole("length", self.length)
        check.whole("tables", self.tables, 0)
        check.done()

    @property
    def tokens(self) -> StreamTokens:
        """Tokens of the stream per sample.

        Raises:
            InputError: the workload has not said how many there are.
        """
        if self.length is None or self.sequences is None:
            fix, field = (
                ("say --images and --image-size", "images") if self.tower else ("say --encoder-seq", "encoder_seq_len")
            )
            if self.clips is not None:
                fix, field = "say --audio and --audio-seconds", "audio"
            raise InputError(
                what=f"how many tokens of {self.name} a sample has is not given",
                why="a plan is priced for samples of one kind",
                fix=fix,
                field=field,
                code="MW203",
            )
        return StreamTokens(sequences=self.sequences, length=self.length, whole=self.tower)

    @property
    def text_tokens(self) -> int | None:
        """Tokens of the text that an image or a clip takes; None while nobody said its size, or of other streams."""
        if self.images is not None:
            return None if self.length is None else self.images.text_tokens(self.length)
        return self.clips.text_tokens() or None if self.clips is not None else None

    @property
    def parameters(self) -> int:
        """Parameters before and behind the layers."""
        return sum(each.parameters for each in (*self.stem, *self.projector)) + self.tables

    def describe(self) -> dict[str, object]:
        """Sizes of the stream by name."""
        found: dict[str, object] = {
            "name": self.name,
            "hidden": self.hidden,
            "sequences": self.sequences,
            "length": self.length,
            "images": self.images is not None,
        }
        if self.clips is not None:
            found["audio_seconds"] = self.clips.seconds
        if self.text_tokens is not None:
            found["text_tokens"] = self.text_tokens
        return found
