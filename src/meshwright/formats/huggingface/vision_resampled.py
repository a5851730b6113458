"""Towers whose patches are read by fewer queries, learned or means of them: of Aria, Idefics 2 and Molmo 2.

Of the attention of these queries the matrices are counted, and not the products of queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import (
    TILES,
    Tower,
    TowerLayer,
    encoder_sizes,
    nested,
    patch_matrix,
    side_of,
)
from meshwright.formats.huggingface.vision_siglip import siglip_layers
from meshwright.specs.streams import Images, Projection

ARIA_QUERIES = {1225: 128, 4900: 256}
"""Patches of an image to its queries, of the class."""


def aria(fields: Fields, outer: Fields, text: int) -> Tower:
    """Aria: SigLIP, 128 or 256 queries in one cross attention, and an MLP (Li et al. 2024, arXiv 2410.05993)."""
    known = _queries(outer)
    outer.done()
    block, layers, plain = siglip_layers(fields, head=False)
    hidden, length, rows = plain.hidden, plain.length or 1, max(known.values())
    queries = known.get(length, rows)
    rate = queries / length
    projector = (
        *(Projection(name=f"queries {i}", inputs=hidden, outputs=hidden, bias=i > 1, rate=rate) for i in (1, 2)),
        *(Projection(name=f"keys {i}", inputs=hidden, outputs=hidden, bias=i > 1) for i in (1, 2)),
        *(Projection(name=f"values {i}", inputs=hidden, outputs=hidden, bias=i > 1) for i in (1, 2)),
        *(Projection(name=f"projector {i}", inputs=hidden, outputs=hidden, bias=True, rate=rate) for i in (1, 2)),
        Projection(name="projector in", inputs=hidden, outputs=text, split="column", rate=rate),
        Projection(name="projector out", inputs=text, outputs=text, split="row", rate=rate),
    )
    assert plain.images is not None
    stream = replace(
        plain,
        images=replace(plain.images, tokens=queries, pieces=TILES),
        projector=projector,
        # The queries, and norms of them, of the patches and of what comes out.
        tables=plain.tables + rows * hidden + 6 * hidden,
    )
    return block.tower(layers, stream)


def _queries(outer: Fields) -> dict[int, int]:
    """Patches of an image to its queries: stated, or of the class."""
    key = "projector_patch_to_query_dict"
    stated = outer.raw(key)
    if not stated:
        return ARIA_QUERIES
    found: dict[int, int] = {}
    for patches, queries in stated.items() if isinstance(stated, Mapping) else ():
        if str(patches).isdecimal() and type(queries) is int and queries > 0:
            found[int(patches)] = queries
    if not found or not isinstance(stated, Mapping) or len(found) < len(stated):
        outer.problem(key, stated, "must be an object of numbers of patches and of queries, whole and above 0")
        return ARIA_QUERIES
    return found


def idefics2(fields: Fields, outer: Fields, text: int) -> Tower:
    """Idefics 2: SigLIP, a gated MLP to the text's width, a perceiver of 64 latents (Laurençon et al. 2024)."""
    resampler, own = nested(outer, "perceiver_config"), nested(outer, "text_config")
    wide = own.whole("intermediate_size", default=14336)
    count = resampler.whole("resampler_n_latents", default=64)
    depth = resampler.whole("resampler_depth", default=3, high=MAX_LAYERS)
    heads, head_dim = (
        resampler.whole("resampler_n_heads", default=16),
        resampler.whole("resampler_head_dim", default=96),
    )
    groups = resampler.whole("num_key_value_heads", default=4)
    outer.done()
    resampler.done()
    block, layers, plain = siglip_layers(fields, tokens=count, tiles=True, head=False)
    rate = count / (plain.length or 1)
    first = (
        Projection(name="projector in", inputs=plain.hidden, outputs=2 * wide, split="column"),
        Projection(name="projector out", inputs=wide, outputs=text, split="row"),
    )
    # Latents read the patches and themselves.
    layer = (
        Projection(name="queries", inputs=text, outputs=heads * head_dim, split="column", rate=rate),
        Projection(name="keys", inputs=text, outputs=groups * head_dim, split="column", rate=1 + rate),
        Projection(name="values", inputs=text, outputs=groups * head_dim, split="column", rate=1 + rate),
        Projection(name="latents", inputs=heads * head_dim, outputs=text, split="row", rate=rate),
        Projection(name="latents in", inputs=text, outputs=8 * text, split="column", rate=rate),
        Projection(name="latents out", inputs=4 * text, outputs=text, split="row", rate=rate),
    )
    tables = plain.tables + count * text + (3 * depth + 1) * text
    return block.tower(layers, replace(plain, projector=(*first, *layer * depth), tables=tables))


def molmo2(fields: Fields, outer: Fields, text: int) -> Tower:
    """Molmo 2: SigLIP's layers, two of which are read, and windows of 2 x 2 patches pooled by attention."""
    adapter = nested(outer, "adapter_config")
    read = adapter.raw("vision_feature_layer")
    levels = len(read) if isinstance(read, list) and read else 2
    own, wide = adapter.whole("hidden_size", default=1152), adapter.whole("intermediate_size", default=18944)
    outer.done()
    adapter.done()
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1152, layers=25, heads=16, width=4304)
    size, patch = side_of(fields, "image_size", 378), side_of(fields, "patch_size", 14)
    channels, places = fields.whole("num_channels", default=3), fields.whole("num_position_embeddings", default=729)
    fields.done()
    side = max(1, size // patch)
    tokens = (-(-side // 2)) ** 2
    rate, inputs = tokens / side**2, levels * hidden
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        length=side**2,
        images=Images(patch=patch, size=(size, size), tokens=tokens, pieces=TILES),
        stem=(patch_matrix(channels * patch * patch, hidden, bias=True),),
        projector=(
            Projection(name="queries", inputs=inputs, outputs=own, bias=True, rate=rate),
            Projection(name="keys and values", inputs=inputs, outputs=2 * own, bias=True),
            Projection(name="pooled", inputs=own, outputs=own, bias=True, rate=rate),
            Projection(name="projector in", inputs=own, outputs=2 * wide, split="column", rate=rate),
            Projection(name="projector out", inputs=wide, outputs=text, split="row", rate=rate),
        ),
        tables=places * hidden,
    )
    return block.tower(layers, stream)
