"""Audio towers beside a text model: Whisper's encoder and its kin, whose tokens take the place of tokens of the text.

A family is a function that reads `audio_config` and the keys of the projector, as those of vision towers do. Sources:
configuration, modelling and processing classes of transformers 5.23.0, read 2026-11-29; frames of 10 ms (16 kHz, hops
of 160) and pieces of 30 s are those of its WhisperFeatureExtractor.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import Tower, TowerLayer, frames_of_sound, heads_of, two_matrices
from meshwright.specs.streams import Clips, Projection, Stream

SOUND = "audio"

WHISPER_S = 30.0
"""Seconds that an encoder with as many learned positions reads at once."""


def _encoder(
    fields: Fields,
    clips: Clips,
    projector: Callable[[int, int], tuple[Projection, ...]],
    *,
    places: bool,
    tables: int = 0,
) -> Tower:
    """Whisper's encoder: LayerNorm before and behind, biases but of keys.

    Args:
        fields: the fields of the encoder.
        clips: how they become tokens.
        projector: the projector to the text, of the encoder's width and that of its MLPs.
        places: whether positions are learned.
        tables: parameters beside those of the encoder.
    """
    hidden, layers, heads, width = _sizes(fields, hidden=1280, layers=32, heads=20, width=5120)
    mel = fields.whole("num_mel_bins", default=128)
    positions = fields.whole("max_source_positions", default=clips.piece) if places else 0
    if places and clips.padded and positions != clips.piece:
        fields.problem("max_source_positions", positions, f"must be {clips.piece:,}, the tokens of {clips.piece_s:g} s")
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width, qkv_bias=False)
    stream = Stream(
        name=SOUND,
        hidden=hidden,
        tower=True,
        clips=clips,
        stem=frames_of_sound(mel, hidden),
        projector=projector(hidden, width),
        # Positions, the norm behind, and biases of queries and values: keys have none.
        tables=positions * hidden + 2 * hidden + 2 * layers * hidden + tables,
    )
    return Tower(runs=block.runs(layers, SOUND), streams=(stream,))


def _sizes(fields: Fields, *, hidden: int, layers: int, heads: int, width: int) -> tuple[int, int, int, int]:
    """Width, layers, heads and width of the MLPs; those of the class where a config leaves them out."""
    wide = fields.whole("d_model", "hidden_size", default=hidden)
    return (
        wide,
        fields.whole("encoder_layers", "num_hidden_layers", default=layers, high=MAX_LAYERS),
        heads_of(fields, wide, "encoder_attention_heads", "num_attention_heads", default=heads),
        fields.whole("encoder_ffn_dim", "intermediate_size", default=width),
    )


def qwen2_audio(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen2-Audio: Whisper's encoder on 30 s, two tokens averaged into one, and one matrix."""
    clips = Clips(longest_s=WHISPER_S)
    return _encoder(
        fields,
        clips,
        lambda hidden, _: (Projection(name="projector", inputs=hidden, outputs=text, bias=True, rate=0.5),),
        places=True,
    )


def audioflamingo3(fields: Fields, outer: Fields, text: int) -> Tower:
    """Audio Flamingo 3 and Music Flamingo: the same on pieces of 30 s, with two matrices."""
    bias = outer.flag("projector_bias", default=True)
    outer.done()
    return _encoder(
        fields, Clips(), lambda hidden, _: two_matrices(hidden, text, text, bias=bias, rate=0.5), places=True
    )


def voxtral(fields: Fields, outer: Fields, text: int) -> Tower:
    """Voxtral: Whisper's encoder on pieces of 30 s, tokens side by side as wide as its MLPs, and two matrices."""
    merge = _side_by_side(fields)
    return _encoder(
        fields,
        Clips(merge=merge, filled=True),
        lambda _, width: two_matrices(width, text, text, bias=False, rate=1 / merge),
        places=True,
    )


def glmasr(fields: Fields, outer: Fields, text: int) -> Tower:
    """GLM-ASR: rotary positions, clips as they are, tokens side by side as wide as its MLPs, and two matrices."""
    merge = _side_by_side(fields)
    return _encoder(
        fields,
        Clips(merge=merge, padded=False),
        lambda _, width: two_matrices(width, 2 * text, text, rate=1 / merge),
        places=False,
    )


def qwen2_5_omni(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen2.5-Omni's thinker: attention within windows of 2 s, two tokens averaged into one, and one matrix."""
    window, out = fields.whole("n_window", default=100), fields.whole("output_dim", default=3584)
    if out != text:
        fields.problem("output_dim", out, f"must be the text's hidden_size = {text}, whose tokens audio becomes")
    return _encoder(
        fields,
        Clips(padded=False, piece_s=2 * window / 100),
        lambda hidden, _: (Projection(name="projector", inputs=hidden, outputs=out, bias=True, rate=0.5),),
        places=False,
        tables=2 * out,  # beginning and end of audio
    )


def qwen3_omni(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen3-Omni's thinker: three convolutions of stride 2 over pieces of 1 s, attention within windows of 8 s."""
    return _convolved(fields, _sizes(fields, hidden=1280, layers=32, heads=20, width=5120), text)


def qwen3_asr(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen3-ASR: the encoder of Qwen3-Omni at its own width."""
    return _convolved(fields, _sizes(fields, hidden=1024, layers=24, heads=16, width=4096), text)


def _convolved(fields: Fields, sizes: tuple[int, int, int, int], text: int) -> Tower:
    """An encoder behind convolutions over frames and their values, each of stride 2 in both directions."""
    hidden, layers, heads, width = sizes
    mel, channels = fields.whole("num_mel_bins", default=128), fields.whole("downsample_hidden_size", default=480)
    piece, seen = 2 * fields.whole("n_window", default=50), fields.whole("n_window_infer", default=800)
    out = fields.whole("output_dim", default=3584)
    if out != text:
        fields.problem("output_dim", out, f"must be the text's hidden_size = {text}, whose tokens audio becomes")
    if seen % piece:
        fields.problem("n_window_infer", seen, f"must be a multiple of 2 x n_window = {piece}")
    fields.done()
    high = [_halved(mel, times) for times in (1, 2, 3)]
    tokens = _halved(piece, 3)
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = Stream(
        name=SOUND,
        hidden=hidden,
        tower=True,
        clips=Clips(per_s=100 * tokens / piece, merge=1, padded=False, piece_s=seen / 100),
        stem=(
            Projection(name="first convolution", inputs=9, outputs=channels, bias=True, rate=16.0 * high[0]),
            Projection(name="second convolution", inputs=9 * channels, outputs=channels, bias=True, rate=4.0 * high[1]),
            Projection(name="third convolution", inputs=9 * channels, outputs=channels, bias=True, rate=high[2]),
            Projection(name="frames", inputs=channels * high[2], outputs=hidden),
        ),
        projector=two_matrices(hidden, hidden, out),
        tables=2 * hidden,
    )
    return Tower(runs=block.runs(layers, SOUND), streams=(stream,))


def _halved(length: int, times: int) -> int:
    """A length behind so many convolutions of stride 2."""
    for _ in range(times):
        length = -(-length // 2)
    return length


def _side_by_side(fields: Fields) -> int:
    """Tokens of the encoder that are as wide together as its MLPs."""
    hidden = fields.whole("d_model", "hidden_size", default=1280)
    width = fields.whole("encoder_ffn_dim", "intermediate_size", default=5120)
    if width % hidden:
        fields.problem("intermediate_size", width, f"must be a multiple of hidden_size = {hidden}")
    return max(1, width // hidden)
