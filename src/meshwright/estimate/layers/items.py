"""Items: what stages are made of, one column each: a layer kind under a recompute mode, the embedding, the head.

A stage is counts x items; that is why a plan of a thousand layers costs as little as one of ten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.estimate.layers.work_seconds import ModuleSeconds, WorkSeconds
from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.operators import LayerWork
from meshwright.specs.software import Software
from meshwright.specs.strategy import HALF_PRODUCTS, LAST_PRODUCT, Recompute
from meshwright.specs.workload import Workload

NONE = Recompute()
SELECTIVE = Recompute(kind="selective", modules=("core_attn",))
FULL = Recompute(kind="full")
TILED = Recompute(kind="selective", modules=("mlp",))
"""What feed-forward parts in tiles do to any layer."""


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the cost table."""

    part: str
    """`layer`, `embedding`, `head`, `mtp` (one module), `tie` (takes back a shared table), `copy` (adds one)."""
    layer: LayerSpec | None = None
    recompute: Recompute = NONE


def items_of(model: ModelSpec, modes: tuple[Recompute, ...]) -> tuple[Item, ...]:
    """The items of a model under these recompute modes: kinds x modes, then the edges.

    Args:
        model: the model.
        modes: recompute modes any layer of the plan may have.

    Returns:
        Items in a fixed order: for each mode the layer kinds, then embedding, head, tie, copy, and the
        multi-token-prediction module under each mode.
    """
    layers = tuple(Item("layer", kind, mode) for mode in modes for kind in model.kinds())
    edges = tuple(Item(part) for part in ("embedding", "head", "tie", "copy"))
    modules = tuple(Item("mtp", model.mtp_kind, mode) for mode in modes) if model.mtp_layers else ()
    return layers + edges + modules


def works_of(
    item: Item, model: ModelSpec, workload: Workload, driver: Software | None = None
) -> list[tuple[LayerWork, bool, Recompute]]:
    """What an item computes: each work, whether in the compute format, and what of it is recomputed.

    Args:
        item: the item of a model.
        model: the model whose layers it has.
        workload: its attention kernel and tiles.
        driver: the framework, where it matters what of a layer it makes again.
    """
    layer = work_of(model, item.layer, workload.attention_kernel) if item.layer else None
    if layer is not None and HALF_PRODUCTS in item.recompute.modules:
        from meshwright.ops.half_products import half_products_work  # few plans repeat so

        layer = half_products_work(layer, compiled=driver is None or not driver.unfused)
    stops = driver is not None and driver.stops_recompute and workload.mlp_tiles == 1
    ends = item.recompute.kind == "full" or "mlp" in item.recompute.modules
    if stops and ends and item.layer is not None and layer is not None:
        from meshwright.ops.last_product import without_last_product  # other frameworks repeat whole layers

        layer = without_last_product(layer, item.layer)
    if item.part == "layer" and layer is not None:
        return [(layer, True, item.recompute)]
    if item.part == "mtp" and layer is not None:
        return [
            (layer, True, item.recompute),
            (edge_work(model, "mtp"), True, NONE),
            (edge_work(model, "head", workload.loss_tiles), False, NONE),
        ]
    if item.part == "embedding":
        return [(work, False, NONE) for work in edge_works(model, "embedding")]
    return [(edge_work(model, "head", workload.loss_tiles), False, NONE)]


def with_tiles(recompute: Recompute) -> Recompute:
    """Recompute with feed-forward parts in tiles: backward makes each tile again, whatever else it repeats."""
    if recompute.kind == "none":
        return TILED
    if recompute.kind == "selective" and "mlp" not in recompute.modules:
        return replace(recompute, modules=(*recompute.modules, "mlp"))
    return recompute


def repeated_modules(seconds: WorkSeconds, recompute: Recompute, *, tiled: bool) -> list[ModuleSeconds]:
    """The forward work that backward repeats; a layer made again as a whole repeats its tiles once more.

    Source: Bekman et al., "Arctic Long Sequence Training", 2025 (arXiv 2506.13996), section 3.1 (TiledMLP).
    """
    if LAST_PRODUCT in seconds.by_module and recompute.kind != "selective":
        return [module for name, module in seconds.by_module.items() if name != LAST_PRODUCT]
    if recompute.kind in ("full", "grouped"):
        again = seconds.by_module.get("mlp") if tiled else None
        return [seconds.forward] if again is None else [seconds.forward, again]
    return [module for name, module in seconds.by_module.items() if times_repeated(name, recompute, tiled=tiled)]


def times_repeated(module: str, recompute: Recompute, *, tiled: bool) -> int:
    """How often backward repeats the forward work of a module.

    Args:
        module: the module of an operator.
        recompute: the recompute of its layer.
        tiled: whether its feed-forward part is made in tiles.
    """
    if module == LAST_PRODUCT:
        return 0
    if recompute.kind in ("full", "grouped"):
        return 1 + (tiled and module == "mlp")
    if recompute.kind == "selective":
        return int(module in recompute.modules or (module == "moe_act" and "moe" in recompute.modules))
    return 0
