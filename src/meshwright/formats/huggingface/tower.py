"""What readers of towers share: a tower, its layers, and the sizes that several families spell alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.streams import Images, Projection, Stream

PART = Family(title="a part beside the text", required=())
VISION = "vision"
WINDOWS = "vision windows"
TILES = "a tile of a larger image, or its thumbnail, counts as an image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Layers of images, and what stands around them."""

    runs: tuple[LayerRun, ...]
    streams: tuple[Stream, ...]
    readers: frozenset[int] = frozenset()
    """Layers of the text whose attention reads images instead of text."""
    width: int = 0
    """Width of what they read."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerLayer:
    """One layer of a tower: tokens of an image see each other whatever their order."""

    hidden: int
    heads: int
    width: int
    head_dim: int = 0
    """hidden / heads where 0."""
    kv_heads: int = 0
    """Key-value heads; as many as heads where 0."""
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    norms: int = 2

    def layer(self, stream: str = VISION) -> LayerSpec:
        """The layer as one of a stream."""
        attention = Attention(
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            causal=False,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            qk_norm=self.qk_norm,
        )
        mlp = DenseMlp(ffn_hidden=self.width, gated=self.gated, bias=self.mlp_bias)
        return LayerSpec(attention=attention, mlp=mlp, norm=self.norm, norms=self.norms, stream=stream)

    def runs(self, layers: int, stream: str = VISION) -> tuple[LayerRun, ...]:
        """A run of so many equal layers."""
        return (LayerRun(layers=(self.layer(stream),), repeats=layers),)

    def stream(
        self,
        *,
        images: Images,
        stem: tuple[Projection, ...],
        projector: tuple[Projection, ...] = (),
        tables: int,
        length: int | None = None,
    ) -> Stream:
        """What passes such layers, from pixels to the text.

        Args:
            images: how they become tokens.
            stem: the stem from a patch to a token of the tower.
            projector: the projector from a token of the tower to the text.
            tables: parameters beside layers, stem and projector: positions, norms, learned tokens.
            length: tokens of the tower; None where they depend on the size of the image.
        """
        return Stream(
            name=VISION,
            hidden=self.hidden,
            tower=True,
            images=images,
            stem=stem,
            projector=projector,
            tables=tables,
            length=length,
        )

    def tower(self, layers: int, stream: Stream, *, notes: tuple[str, ...] = ()) -> Tower:
        """A tower of so many equal layers, all of which images pass.

        Args:
            layers: how many.
            stream: the stream of images.
            notes: what the reader should know.
        """
        return Tower(runs=self.runs(layers), streams=(stream,), notes=notes)


def section(config: Mapping[str, object], name: str, path: str = "") -> Fields:
    """The fields of a part of a config that is no text model.

    Args:
        config: the part.
        name: the name of the model.
        path: the path where the part is in its config.
    """
    return Fields(config, name=name, family=PART, path=path)


def one_side(config: Mapping[str, object], whole: ModelSpec) -> None:
    """Refuse a class that is one side of an encoder-decoder: `T5EncoderModel`, `BartForCausalLM`.

    Args:
        config: the whole config.
        whole: the model with both sides.

    Raises:
        UnsupportedError: the class is one side.
    """
    said = config.get("architectures")
    name = said[0] if isinstance(said, list) and said and isinstance(said[0], str) else ""
    both = any(layer.stream for layer in whole.kinds()) and any(layer.memory for layer in whole.kinds())
    if both and ("Encoder" in name.replace("EncoderDecoder", "") or name.endswith("ForCausalLM")):
        problem = Problem(
            what=f"model {whole.name}: architectures is {name!r}",
            why="it is one side of a model that is read with its encoder and its decoder",
            fix="leave architectures out to plan both sides",
            field="architectures",
        )
        raise UnsupportedError(problem, code="MW402")


def nested(fields: Fields, key: str) -> Fields:
    """The fields of the object under a key; of an empty one where there is none."""
    value = fields.raw(key)
    return section(value if isinstance(value, Mapping) else {}, fields.name, f"{key}.")


def side_of(fields: Fields, key: str, default: int) -> int:
    """A number of pixels, which some configs write twice, for width and height."""
    value = fields.raw(key)
    if not isinstance(value, (list, tuple)):
        return fields.whole(key, default=default)
    if not value or any(one != value[0] for one in value):
        fields.problem(key, value, "must be one number of pixels: images are square")
        return default
    return section({key: value[0]}, fields.name).whole(key, default=default)


def heads_of(fields: Fields, hidden: int, *keys: str, default: int | None = None) -> int:
    """Heads that divide the width.

    Args:
        fields: the fields of the tower.
        hidden: its width.
        keys: spellings of the number of heads.
        default: the default of its class.
    """
    heads = fields.whole(*keys, default=default)
    if hidden % heads:
        fields.problem(keys[0], heads, f"must divide the width {hidden} of the tower", "use a divisor")
        return 1
    return heads


def encoder_sizes(fields: Fields, *, hidden: int, layers: int, heads: int, width: int) -> tuple[int, int, int, int]:
    """Width, layers, heads and hidden width of the MLP of an encoder that spells them as text models do.

    Args:
        fields: the fields of the encoder.
        hidden: the default hidden size; the others are defaults too.
        layers: the number of layers by default.
        heads: the default number of heads.
        width: the width by default.
    """
    wide = fields.whole("hidden_size", default=hidden)
    deep = fields.whole("num_hidden_layers", default=layers, high=MAX_LAYERS)
    count = heads_of(fields, wide, "num_attention_heads", default=heads)
    return wide, deep, count, fields.whole("intermediate_size", default=width)


def patch_matrix(inputs: int, hidden: int, *, bias: bool = False) -> Projection:
    """The product from the pixels of a patch to a token of the tower."""
    return Projection(name="patches", inputs=inputs, outputs=hidden, bias=bias)


def frames_of_patch(fields: Fields, patch: int, hidden: int, *, bias: bool, default: int = 2) -> tuple[Projection]:
    """A convolution over the pixels of a patch in as many frames as make one token.

    Args:
        fields: the fields of the tower.
        patch: pixels on a side.
        hidden: width of the tower.
        bias: whether it has one.
        default: frames of its class.
    """
    channels = fields.whole("in_channels", "in_chans", "num_channels", default=3)
    frames = fields.whole("temporal_patch_size", default=default)
    return (patch_matrix(channels * frames * patch * patch, hidden, bias=bias),)


def as_text(fields: Fields, key: str, text: int) -> None:
    """Note that the width a tower hands on is not the text's, where the config states it."""
    width = fields.maybe(key)
    if width not in (None, text):
        fields.problem(key, width, f"must be the text's hidden_size = {text}, whose tokens images become")


def frames_of_sound(mel: int, hidden: int) -> tuple[Projection, Projection]:
    """Two convolutions over frames of 10 ms, the second of stride 2.

    Args:
        mel: values of a frame.
        hidden: width of the encoder.
    """
    return (
        Projection(name="first convolution", inputs=3 * mel, outputs=hidden, bias=True, rate=2.0),
        Projection(name="second convolution", inputs=3 * hidden, outputs=hidden, bias=True),
    )


def two_matrices(
    inputs: int, middle: int, outputs: int, *, bias: bool = True, rate: float = 1.0
) -> tuple[Projection, Projection]:
    """A projector of two matrices.

    Args:
        inputs: width of what it takes.
        middle: width between them.
        outputs: width of what it makes.
        bias: whether both have one.
        rate: tokens of the text per token of the tower.
    """
    return (
        Projection(name="projector in", inputs=inputs, outputs=middle, bias=bias, split="column", rate=rate),
        Projection(name="projector out", inputs=middle, outputs=outputs, bias=bias, split="row", rate=rate),
    )


def patches_of(fields: Fields, size: int, patch: int) -> int:
    """Patches of a square image of a fixed size."""
    if size % patch:
        fields.problem("patch_size", patch, f"must divide image_size = {size}", "use a divisor")
    return max(1, size // patch) ** 2
