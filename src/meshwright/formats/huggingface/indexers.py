"""Indexers that pick the keys each query sees, from the fields of a config."""

from __future__ import annotations

from meshwright.formats.huggingface.fields import Fields
from meshwright.specs.layers.indexer import Indexer


def read_indexers(fields: Fields, layers: int) -> list[Indexer | None]:
    """The indexer of each layer, None where it has none.

    Args:
        fields: the config.
        layers: how many there are.
    """
    if fields.given("sparse_attention_config"):
        return _of_blocks(fields, layers)
    if fields.given("index_topk_blocks"):
        return _of_marked(fields, layers)
    if not fields.given("index_topk"):
        return [None] * layers
    own = Indexer(
        heads=fields.whole("index_n_heads"), dim=fields.whole("index_head_dim"), top_k=fields.whole("index_topk")
    )
    taken = Indexer(heads=own.heads, dim=own.dim, top_k=own.top_k, own=False)
    words = fields.pattern("indexer_types", layers, ("full", "shared"))
    every = fields.whole("index_topk_freq", default=1)
    first = fields.whole("index_skip_topk_offset", low=0, default=0)
    if words is not None:
        return [own if word == "full" else taken for word in words]
    return [own if i < first or (i - first) % every == every - 1 else taken for i in range(layers)]


def _of_blocks(fields: Fields, layers: int) -> list[Indexer | None]:
    """An indexer that picks blocks of keys (MiniMax-M3)."""
    inside = fields.inside("sparse_attention_config")
    if not inside.flag("use_sparse_attention", default=True):
        return [None] * layers
    block, blocks = inside.whole("sparse_block_size"), inside.whole("sparse_topk_blocks")
    indexer = Indexer(
        heads=inside.whole("sparse_num_index_heads"),
        dim=inside.whole("sparse_index_dim"),
        top_k=block * blocks,
        block=block,
        weighted=False,
    )
    where = inside.switches("sparse_attention_freq", layers)
    return [indexer if where is None or where[i] else None for i in range(layers)]


def _of_marked(fields: Fields, layers: int) -> list[Indexer | None]:
    """The same as files saved by transformers 5 say it: sizes beside the others, and a word for each layer with one."""
    fields.has("index_local_blocks")  # blocks that are seen without being picked, of those that are picked
    block, blocks = fields.whole("index_block_size"), fields.whole("index_topk_blocks")
    indexer = Indexer(
        heads=fields.whole("index_n_heads"),
        dim=fields.whole("index_head_dim"),
        top_k=block * blocks,
        block=block,
        weighted=False,
    )
    words = fields.raw("layer_types")
    listed = words if isinstance(words, (list, tuple)) and len(words) == layers else [""] * layers
    return [indexer if word == "minimax_m3_sparse" else None for word in listed]
