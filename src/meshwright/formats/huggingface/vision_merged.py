"""Towers that take images of any size: Qwen-VL and its kin, Pixtral and Mistral 3, Kimi, Gemma 4, MiniMax M3.

Neighbouring patches are merged into one token of the text by the projector.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.huggingface.fields import MAX_LAYERS, Fields
from meshwright.formats.huggingface.tower import (
    VISION,
    WINDOWS,
    Tower,
    TowerLayer,
    as_text,
    encoder_sizes,
    frames_of_patch,
    heads_of,
    nested,
    patch_matrix,
    two_matrices,
)
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.streams import Images, Projection, Stream


def _merger(hidden: int, merge: int, text: int) -> tuple[Projection, Projection]:
    """Two matrices on merged patches, as wide between them as a merged patch."""
    return two_matrices(hidden * merge**2, hidden * merge**2, text, rate=merge**-2.0)


def qwen2_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen2-VL: LayerNorm, a plain MLP, full attention (Wang et al. 2024, arXiv 2409.12191)."""
    hidden = fields.whole("embed_dim", default=1280)
    layers = fields.whole("depth", default=32, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_heads", default=16)
    patch = fields.whole("patch_size", "spatial_patch_size", default=14)
    merge = fields.whole("spatial_merge_size", default=2)
    ratio = fields.whole("mlp_ratio", default=4)
    as_text(fields, "hidden_size", text)
    stem = frames_of_patch(fields, patch, hidden, bias=False)
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=ratio * hidden)
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=_merger(hidden, merge, text),
        tables=2 * hidden,
    )
    return block.tower(layers, stream)


def qwen2_5_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen2.5-VL: RMS norms, a gated MLP, attention within windows in most layers (Bai et al. 2025, arXiv 2502.13923).

    EXAONE 4.5 has fewer heads of keys and values than of queries.

    A window is 112 pixels a side: 64 patches of 14 pixels, of which those at the edge of an image hold fewer.
    """
    hidden = fields.whole("hidden_size", default=3584)
    layers = fields.whole("depth", default=32, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_heads", default=16)
    groups = fields.whole("num_key_value_heads", default=heads)
    if heads % groups:
        fields.problem("num_key_value_heads", groups, f"must divide num_heads = {heads}", "use a divisor")
    width = fields.whole("intermediate_size", default=3420)
    patch = fields.whole("patch_size", "spatial_patch_size", default=14)
    merge = fields.whole("spatial_merge_size", default=2)
    window = fields.whole("window_size", default=112)
    whole = fields.positions("fullatt_block_indexes", layers)
    as_text(fields, "out_hidden_size", text)
    stem = frames_of_patch(fields, patch, hidden, bias=False)
    fields.done()
    whole = frozenset(range(7, layers, 8)) if whole is None else whole
    block = TowerLayer(hidden=hidden, heads=heads, kv_heads=groups, width=width, gated=True, norm="rmsnorm")
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=_merger(hidden, merge, text),
        tables=hidden,
    )
    windows = Stream(name=WINDOWS, hidden=hidden, tower=True, length=max(1, window // patch) ** 2, window_of=VISION)
    runs = layer_runs([block.layer(VISION if number in whole else WINDOWS) for number in range(layers)])
    return Tower(runs=runs, streams=(stream, windows))


DEEPSTACK = 3
"""Inner layers whose features the text takes up where nothing is said: 8, 16 and 24; Qwen3.5 has none."""


def qwen3_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """Qwen3-VL and Qwen3.5: LayerNorm, a plain MLP, learned positions, features of inner layers added to the text's.

    Source: Qwen3-VL technical report, arXiv 2511.21631, section 2.
    """
    hidden = fields.whole("hidden_size", default=1152)
    layers = fields.whole("depth", default=27, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_heads", default=16)
    width = fields.whole("intermediate_size", default=4304)
    patch, merge = fields.whole("patch_size", default=16), fields.whole("spatial_merge_size", default=2)
    positions = fields.whole("num_position_embeddings", default=2304)
    inner = fields.positions("deepstack_visual_indexes", layers)
    as_text(fields, "out_hidden_size", text)
    stem = frames_of_patch(fields, patch, hidden, bias=True)
    fields.done()
    usual = 0 if str(outer.raw("model_type")).startswith("qwen3_5") else DEEPSTACK
    taken = usual if inner is None else len(inner)
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=_merger(hidden, merge, text) * (1 + taken),
        tables=positions * hidden + 2 * hidden + taken * 2 * hidden * merge**2,
    )
    return block.tower(layers, stream)


def pixtral(fields: Fields) -> tuple[TowerLayer, int, Stream]:
    """Pixtral's encoder: RMS norms, gated MLPs, no biases, rotary positions (Agrawal et al. 2024, arXiv 2410.07073).

    Returns:
        A layer, how many there are, and the stream without a projector.
    """
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1024, layers=24, heads=16, width=4096)
    head_dim, patch = fields.maybe("head_dim") or hidden // heads, fields.whole("patch_size", default=16)
    stem = frames_of_patch(fields, patch, hidden, bias=False, default=1)
    fields.done()
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        width=width,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        norm="rmsnorm",
    )
    return block, layers, block.stream(images=Images(patch=patch), stem=stem, tables=hidden)


def mistral3(fields: Fields, outer: Fields, text: int) -> Tower:
    """Mistral 3: Pixtral's encoder, 2 x 2 patches merged into one token of the text."""
    block, layers, plain = pixtral(fields)
    merge = outer.whole("spatial_merge_size", default=2)
    bias = outer.flag("multimodal_projector_bias", default=False)
    outer.done()
    rate, hidden = merge**-2.0, block.hidden
    assert plain.images is not None
    merger = Projection(name="patch merger", inputs=hidden * merge**2, outputs=hidden, rate=rate)
    stream = replace(
        plain,
        images=replace(plain.images, merge=merge),
        projector=(merger, *two_matrices(hidden, text, text, bias=bias, rate=rate)),
        tables=2 * hidden,
    )
    return block.tower(layers, stream)


def _moonvit(fields: Fields, text: int, keys: dict[str, str], tables: int) -> Tower:
    """MoonViT: LayerNorm, biases, learned positions of a grid beside rotary ones."""
    hidden = fields.whole(keys.get("hidden_size", "hidden_size"), default=1152)
    layers = fields.whole(keys.get("num_hidden_layers", "num_hidden_layers"), default=27, high=MAX_LAYERS)
    heads = heads_of(fields, hidden, keys.get("num_attention_heads", "num_attention_heads"), default=16)
    width = fields.whole(keys.get("intermediate_size", "intermediate_size"), default=4304)
    patch = fields.whole("patch_size", default=14)
    high, wide = fields.whole("init_pos_emb_height", default=64), fields.whole("init_pos_emb_width", default=64)
    stem = frames_of_patch(fields, patch, hidden, bias=True, default=1)
    fields.done()
    merge = 2
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=_merger(hidden, merge, text),
        # Positions, the final norm and the norm before the projector.
        tables=high * wide * hidden + 2 * hidden + tables * hidden,
    )
    return block.tower(layers, stream)


def kimi_vl(fields: Fields, outer: Fields, text: int) -> Tower:
    """Kimi-VL (Kimi team 2025, arXiv 2504.07491)."""
    return _moonvit(fields, text, {}, 2)


def kimi_k25(fields: Fields, outer: Fields, text: int) -> Tower:
    """Kimi K2.5: the same encoder with its own spellings."""
    keys = {
        "hidden_size": "vt_hidden_size",
        "num_hidden_layers": "vt_num_hidden_layers",
        "num_attention_heads": "vt_num_attention_heads",
        "intermediate_size": "vt_intermediate_size",
    }
    return _moonvit(fields, text, keys if fields.has("vt_hidden_size") else {}, 2)


def kimi_k3(fields: Fields, outer: Fields, text: int) -> Tower:
    """Kimi K3: RMS norms, no biases, heads of their own width, and a norm behind the projector (arXiv 2607.24653)."""
    hidden = fields.whole("vt_hidden_size", default=1024)
    layers = fields.whole("vt_num_hidden_layers", default=27, high=MAX_LAYERS)
    heads = fields.whole("vt_num_attention_heads", default=12)
    width, patch = fields.whole("vt_intermediate_size", default=4096), fields.whole("patch_size", default=14)
    queries = fields.whole("qkv_hidden_size", default=1536)
    if queries % heads and not fields.bad("qkv_hidden_size", "vt_num_attention_heads"):
        fields.problem("vt_num_attention_heads", heads, f"must divide qkv_hidden_size = {queries}", "use a divisor")
    high, wide = fields.whole("init_pos_emb_height", default=64), fields.whole("init_pos_emb_width", default=64)
    as_text(fields, "text_hidden_size", text)
    stem = frames_of_patch(fields, patch, hidden, bias=False, default=1)
    fields.done()
    merge = 2
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        head_dim=queries // heads,
        width=width,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        norm="rmsnorm",
    )
    merged = hidden * merge**2
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=stem,
        projector=two_matrices(merged, merged, text, bias=False, rate=merge**-2.0),
        # Positions, the final norm, and the norm behind the projector.
        tables=high * wide * hidden + hidden + text,
    )
    return block.tower(layers, stream)


def gemma4(fields: Fields, outer: Fields, text: int) -> Tower:
    """Gemma 4: four RMS norms, gated MLPs, positions of both directions, 3 x 3 patches averaged to one token."""
    hidden, layers = (
        fields.whole("hidden_size", default=768),
        fields.whole("num_hidden_layers", default=16, high=MAX_LAYERS),
    )
    heads = fields.whole("num_attention_heads", default=12)
    head_dim, width = fields.whole("head_dim", default=64), fields.whole("intermediate_size", default=3072)
    patch, pool = fields.whole("patch_size", default=16), fields.whole("pooling_kernel_size", default=3)
    rows = fields.whole("position_embedding_size", default=10240)
    bias, clipped = fields.flag("attention_bias", default=False), fields.flag("use_clipped_linears", default=False)
    standard = fields.flag("standardize", default=False)
    tokens = outer.whole("vision_soft_tokens_per_image", default=280)
    fields.done()
    outer.done()
    block = TowerLayer(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        width=width,
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=False,
        qk_norm=True,
        norm="rmsnorm",
        norms=4,
    )
    stream = block.stream(
        length=tokens * pool**2,
        images=Images(patch=patch, merge=pool, patches=tokens * pool**2, tokens=tokens),
        stem=(patch_matrix(3 * patch * patch, hidden),),
        projector=(Projection(name="projector", inputs=hidden, outputs=text, rate=pool**-2.0),),
        tables=2 * rows * hidden + (2 * hidden if standard else 0),
    )
    notes = ("limits of the vision tower's matrices (use_clipped_linears) cost nothing",) if clipped else ()
    return block.tower(layers, stream, notes=notes)


def minimax_m3(fields: Fields, outer: Fields, text: int) -> Tower:
    """MiniMax M3: a CLIP encoder with rotary positions; patches are projected, then merged 2 x 2."""
    hidden = fields.whole("hidden_size")
    layers = fields.whole("num_hidden_layers", high=MAX_LAYERS)
    heads = heads_of(fields, hidden, "num_attention_heads")
    width, patch = fields.whole("intermediate_size"), fields.whole("patch_size")
    compress = nested(fields, "img_token_compression_config")
    merge, frames = compress.whole("spatial_merge_size", default=2), compress.whole("temporal_patch_size", default=2)
    middle = outer.whole("projector_hidden_size", default=text)
    fields.done()
    outer.done()
    rate = merge**-2.0
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=(patch_matrix(3 * frames * patch * patch, hidden),),
        projector=(*two_matrices(hidden, middle, text), *two_matrices(text * merge**2, middle, text, rate=rate)),
        tables=2 * hidden,
    )
    return block.tower(layers, stream)


def hyperclovax(fields: Fields, outer: Fields, text: int) -> Tower:
    """HyperCLOVA X Vision 2: the tower of Qwen2.5-VL, and a matrix from its width to the text's.

    Source: HyperCLOVAXVisionV2Model of transformers 5.23.0 (2026-11).
    """
    width = fields.whole("out_hidden_size", default=3584)
    tower = qwen2_5_vl(fields, outer, width)
    first, *others = tower.streams
    assert first.images is not None
    last = Projection(name="projector", inputs=width, outputs=text, bias=True, rate=first.images.merge**-2.0)
    return replace(tower, streams=(replace(first, projector=(*first.projector, last)), *others))


def muse_glimmer(fields: Fields, outer: Fields, text: int) -> Tower:
    """Muse Glimmer: LayerNorm, plain MLPs, a table of positions; most layers attend within windows, priced as whole.

    Source: MuseGlimmerVisionModel and MuseGlimmerVisionAdapter of transformers 5.23.0 (2026-11).
    """
    hidden, layers, heads, width = encoder_sizes(fields, hidden=1536, layers=50, heads=16, width=8960)
    patch, merge = fields.whole("patch_size", default=14), fields.whole("merge_size", default=2)
    rows = fields.whole("pos_emb_height", default=32) * fields.whole("pos_emb_width", default=32)
    frames = fields.whole("patch_temporal", default=2)
    middle = outer.whole("projector_hidden_size", default=4096)
    fields.done()
    block = TowerLayer(hidden=hidden, heads=heads, width=width)
    rate = merge**-2.0
    adapter = two_matrices(hidden * merge**2, middle, middle, bias=False, rate=rate)
    last = Projection(name="vision projection", inputs=middle, outputs=text, rate=rate)
    stream = block.stream(
        images=Images(patch=patch, merge=merge),
        stem=(patch_matrix(3 * frames * patch * patch, hidden),),
        projector=(*adapter, last),
        tables=rows * hidden + 4 * hidden,
    )
    return block.tower(layers, stream, notes=("windows of attention in the tower are priced as attention to all",))
