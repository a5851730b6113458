"""Towers of GLM: RMS norms and gated MLPs, a convolution that merges patches, and a gated MLP before the text.

Images keep their size. Source: GLM-V team 2025, arXiv 2507.01006, section 2, and the classes of GLM-OCR and GLM-5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import Tower, TowerLayer, as_text, frames_of_patch, heads_of, side_of
from meshwright.specs.streams import Images, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What the towers of GLM spell alike."""

    hidden: int
    layers: int
    heads: int
    out: int
    """Width of the text."""
    patch: int
    merge: int
    bias: bool

    @classmethod
    def read(cls, fields: Fields, *, hidden: int, heads: int, out: int, bias: bool) -> _Sizes:
        """The sizes of a config, and those of its class where it leaves them out."""
        wide = fields.whole("hidden_size", default=hidden)
        return cls(
            hidden=wide,
            layers=fields.whole("depth", default=24, high=MAX_LAYERS),
            heads=heads_of(fields, wide, "num_heads", default=heads),
            out=fields.whole("out_hidden_size", default=out),
            patch=side_of(fields, "patch_size", 14),
            merge=fields.whole("spatial_merge_size", default=2),
            bias=fields.flag("attention_bias", default=bias),
        )

    def tower(self, fields: Fields, block: TowerLayer, text: int, *, wide: int, tables: int) -> Tower:
        """The tower's layers with their way to the text.

        Args:
            fields: the fields of the tower.
            block: a layer.
            text: width of the text.
            wide: width of the MLP before the text.
            tables: parameters beside layers, matrices and the norm before the text.
        """
        as_text(fields, "out_hidden_size", text)
        stem = frames_of_patch(fields, self.patch, self.hidden, bias=True)
        fields.done()
        stream = block.stream(
            images=Images(patch=self.patch, merge=self.merge),
            stem=stem,
            projector=_downsampled(self.hidden, self.out, wide, self.merge),
            tables=tables + 2 * self.out,
        )
        return block.tower(self.layers, stream)


def glm4v(fields: Fields, outer: Fields, text: int) -> Tower:
    """GLM-4.1V, 4.5V and 4.6V: MLPs as wide as the text, learned positions."""
    sizes = _Sizes.read(fields, hidden=1536, heads=12, out=4096, bias=False)
    wide, size = fields.whole("intermediate_size", default=13696), side_of(fields, "image_size", 336)
    block = TowerLayer(
        hidden=sizes.hidden,
        heads=sizes.heads,
        width=sizes.out,
        gated=True,
        qkv_bias=sizes.bias,
        out_bias=False,
        mlp_bias=False,
        norm="rmsnorm",
    )
    # Positions, and norms before and behind the layers.
    places = max(1, size // sizes.patch) ** 2 + 2
    return sizes.tower(fields, block, text, wide=wide, tables=places * sizes.hidden)


def glm_ocr(fields: Fields, outer: Fields, text: int) -> Tower:
    """GLM-OCR: norms on queries and keys, MLPs of their own width, and no learned positions."""
    sizes = _Sizes.read(fields, hidden=1024, heads=16, out=1536, bias=True)
    return _normed(fields, sizes, text, wide=fields.whole("in_channels", default=3) * sizes.out)


def glm5_next(fields: Fields, outer: Fields, text: int) -> Tower:
    """GLM-5.3: the layers of GLM-OCR, and an MLP of a width of its own before the text."""
    sizes = _Sizes.read(fields, hidden=1024, heads=16, out=1536, bias=True)
    return _normed(fields, sizes, text, wide=fields.whole("projection_intermediate_size", default=10240))


def _normed(fields: Fields, sizes: _Sizes, text: int, *, wide: int) -> Tower:
    """A tower with norms on queries and keys, before an MLP of this width."""
    width = fields.whole("intermediate_size", default=4096)
    block = TowerLayer(
        hidden=sizes.hidden,
        heads=sizes.heads,
        width=width,
        gated=True,
        qkv_bias=sizes.bias,
        out_bias=sizes.bias,
        mlp_bias=sizes.bias,
        qk_norm=True,
        norm="rmsnorm",
    )
    return sizes.tower(fields, block, text, wide=wide, tables=sizes.hidden)


def _downsampled(hidden: int, out: int, wide: int, merge: int) -> tuple[Projection, ...]:
    """A convolution that merges patches, a matrix, and a gated MLP: GLM's way to the text."""
    rate = merge**-2.0
    return (
        Projection(name="downsample", inputs=hidden * merge**2, outputs=out, bias=True, rate=rate),
        Projection(name="projector", inputs=out, outputs=out, rate=rate),
        Projection(name="projector in", inputs=out, outputs=2 * wide, split="column", rate=rate),
        Projection(name="projector out", inputs=wide, outputs=out, split="row", rate=rate),
    )
