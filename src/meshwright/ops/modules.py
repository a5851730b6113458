"""The matrices of an operator by the names that adapters are asked for: those of PEFT, of NeMo and of model classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from meshwright.specs.operators import LayerWork, Linear, Op, Vector, whole_product
from meshwright.specs.tuning import ALL_LINEAR, Lora

Units = tuple[tuple[int, int], ...]

_UP = ("linear_fc1", "fc1", "c_fc", "dense_h_to_4h", "wi", "w1", "lin1")
NAMES: dict[str, tuple[str, ...]] = {
    "qkv": ("linear_qkv", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "att_proj"),
    "output gates": ("g_proj", "gate_proj"),
    "attention out": ("o_proj", "linear_proj", "out_proj", "dense", "c_proj", "wo", "attn_out", "o_b_proj"),
    "query up": ("q_b_proj", "linear_q_up_proj"),
    "entry queries": ("q_b_proj",),
    "grouped output": ("o_a_proj",),
    "latent queries": ("q_proj", "linear_q_proj"),
    "key-value up": ("kv_b_proj", "linear_kv_up_proj"),
    "keys and values absorbed": ("kv_b_proj", "linear_kv_up_proj"),
    "index queries": ("wq_b", "indexer_wq_b"),
    "queries": ("q_proj", "q", "query"),
    "queries, keys and values": ("qkv_proj", "in_proj_qkv"),
    "queries, keys, values and gate": ("in_proj_qkvz", "qkv_proj"),
    "rates and decays": ("in_proj_ba", "b_proj"),
    "rates": ("b_proj",),
    "delta out": ("o_proj", "out_proj"),
    "delta-net out": ("out_proj",),
    "mamba in": ("in_proj",),
    "mamba out": ("out_proj",),
    "selection": ("x_proj",),
    "steps": ("dt_proj",),
    "router": ("router", "gate"),
    "shared expert weights": ("coefficient",),
    "shared expert gate": ("shared_expert_gate",),
    "mlp per-layer projection": ("per_layer_model_projection",),
    "mlp per-layer gate": ("per_layer_input_gate",),
    "mlp per-layer out": ("per_layer_projection",),
    "residual low rank in": ("linear_left",),
    "residual low rank out": ("linear_right",),
}
"""Names of a whole operator, those most used first."""
_ALONE = {
    "latent down": (("q_a_proj", "linear_q_down_proj"), ("kv_a_proj_with_mqa", "linear_kv_down_proj")),
    "index keys and weights": (("wk",), ("weights_proj",)),
    "queries and keys down": (("q_a_proj",), ("kv_proj",)),
    "entries and their gates": (("kv_proj",), ("gate_proj",)),
    "index entries, gates and weights": (("kv_proj",), ("gate_proj",), ("weights_proj",)),
}
"""Names of products that classes have apart, and kernels take together; queries may have none of their own."""
_APART: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "queries, keys, values and gate": (("in_proj_qkv",), ("in_proj_z",)),
    "rates and decays": (("in_proj_b", "b_proj"), ("in_proj_a", "a_proj")),
}
"""Names of both products of an operator that some classes have in one."""
_EACH = {
    "queries, keys, values and gate": ("q_proj", "k_proj", "v_proj", "g_proj"),
    "queries, keys and values": ("q_proj", "k_proj", "v_proj"),
    "low ranks": ("f_a_proj", "g_a_proj"),
    "low rank": ("f_a_proj",),
    "decays": ("f_b_proj",),
    "wide gate": ("g_proj",),
    "decays and gate": ("f_b_proj", "g_b_proj"),
    "wide decays and gate": ("f_proj", "g_proj"),
}
"""Names of as many products as an operator has outputs, which no class has in one."""
_DOWN = ("down_proj", "linear_fc2", "fc2", "dense_4h_to_h", "c_proj", "w2", "ff_out", "lin2")
_GATED = (("gate_proj", "w1"), ("up_proj", "w3"))
_FUSED_UP = ("linear_fc1", "gate_up_proj", "dense_h_to_4h", "w12", "Wi")


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix, or one of several that an operator multiplies by at once."""

    names: tuple[str, ...]
    outputs: Units
    """Outputs of the operator, or of the part that the module makes."""
    single: bool = True
    """Whether model classes have it as a product of its own; False for a name of several together."""


def product_of(op: Op) -> Linear | None:
    """An operator as a product that adapters may stand beside: itself, or the gate of shared experts, whose scalar
    product is priced with the choice of experts; None for others."""
    if isinstance(op, Vector) and op.name == "top-k" and op.parameters:
        return whole_product("shared expert gate", op.parameters, 1, module=op.module)
    return op if isinstance(op, Linear) else None


def products_of(work: LayerWork) -> Iterator[Linear]:
    """Products of a layer that adapters may stand beside.

    Args:
        work: the layer.
    """
    yield from (product for op in work.ops if (product := product_of(op)) is not None)


def modules_of(op: Linear) -> tuple[Module, ...]:
    """The modules of an operator.

    Args:
        op: the operator of a layer.
    """
    if op.name in _ALONE:
        names = _ALONE[op.name][-len(op.outputs) :] if op.name == "latent down" else _ALONE[op.name]
        return tuple(Module(own, (units,)) for own, units in zip(names, op.outputs, strict=False))
    if len(op.outputs) == len(_EACH.get(op.name, ())):
        return tuple(Module((name,), (units,)) for name, units in zip(_EACH[op.name], op.outputs, strict=True))
    if op.name in _APART and len(op.outputs) > 1 + (op.name == "queries, keys, values and gate"):
        *together, last = op.outputs
        first, second = _APART[op.name]
        fused = Module(NAMES[op.name], op.outputs, single=False)
        return Module(first, tuple(together)), Module(second, (last,)), fused
    if op.name == "qkv" and len(op.outputs) > 1:
        # Wide gates are made with the queries, one a head is not; keys that are values too have no product for these.
        (heads, width), (kv_heads, both), *gates = op.outputs
        wide = tuple(gate for gate in gates if gate[1] > 1)
        parts = [("q_proj", ((heads, width), *wide)), ("k_proj", ((kv_heads, min(width, both)),))]
        parts += [("g_proj", (gate,)) for gate in gates if gate[1] == 1]
        if both > width:
            parts.append(("v_proj", ((kv_heads, both - width),)))
        return (*(Module((name,), own) for name, own in parts), Module(NAMES["qkv"], op.outputs, single=False))
    if op.name == "keys and values":
        ((heads, both),) = op.outputs
        return tuple(Module((f"{one}_proj", one), ((heads, both // 2),)) for one in ("k", "v"))
    if op.name.endswith(" up") and op.name not in NAMES and len(op.outputs) == 1:
        ((units, columns),) = op.outputs
        if columns == 1:
            return (Module(("up_proj", *_UP), op.outputs),)
        return (*(Module(names, ((units, 1),)) for names in _GATED), Module(_FUSED_UP, op.outputs, single=False))
    if op.name.endswith(" down") and op.name not in NAMES:
        return (Module(_DOWN, op.outputs),)
    if op.name.endswith(" mixing"):
        # Of copies of the residual stream: parameters of a class, and no linear layers of it.
        return (Module((re.sub(r"[^a-z0-9]+", "_", op.name.lower()),), op.outputs, single=False),)
    called = (*NAMES.get(op.name, ()), re.sub(r"[^a-z0-9]+", "_", op.name.lower()))
    # Classes have one projection for the inputs of all layers: as an adapter a layer it would be counted many times.
    return (Module(called, op.outputs, single=op.name != "mlp per-layer projection"),)


def part_of(op: Op) -> str:
    """The part of a layer that an operator belongs to, as `specs.tuning.PARTS` names them."""
    if op.name.endswith("norm"):
        return "norms"
    if op.name in ("router", "top-k"):
        return "router"
    first = op.name.partition(" ")[0]
    return {"experts": "experts", "mlp": "mlp", "shared": "mlp"}.get(first, "attention")


def targeted(op: Linear, targets: Iterable[str]) -> Iterator[Module]:
    """The modules of an operator that adapters are asked for.

    Args:
        op: the operator of a layer.
        targets: names, such as `q_proj`; `all-linear`, which takes every module but the router; patterns of names, such
            as `*_proj`. A part before the name takes modules of that part alone, such as `mlp.up_proj`; a `-` before
            it leaves them out, of every module where nothing else is said.
    """
    wanted, part = [*targets], part_of(op)
    without = [target[1:] for target in wanted if target.startswith("-")]
    given = [target for target in wanted if not target.startswith("-")] or [ALL_LINEAR]
    for module in modules_of(op):
        taken = any(names_module(target, module, part) for target in given)
        if taken and not any(names_module(target, module, part) for target in without):
            yield module


@dataclass(frozen=True, slots=True)
class Adapted:
    """A module with an adapter."""

    module: Module
    rank: int
    on_weight: bool
    """Whether it is added to the whole weight before each product."""


def adapted_modules(op: Linear, lora: Lora) -> Iterator[Adapted]:
    """The modules of an operator that have adapters.

    Args:
        op: the operator of a layer.
        lora: the adapters.
    """
    part = part_of(op)
    for module in targeted(op, lora.targets) if lora.targets else ():
        yield Adapted(module, lora.rank_of(module.names, part), on_weight=False)
    for module in modules_of(op):
        if any(names_module(name, module, part) for name in lora.parameters):
            yield Adapted(module, lora.rank_of(module.names, part), on_weight=True)


def names_module(target: str, module: Module, part: str) -> bool:
    """Whether a target without its sign is a module of a part; a pattern stands for modules by their usual names."""
    single = module.single and part != "router"
    if target == ALL_LINEAR:
        return single
    within, dot, name = target.rpartition(".")
    if dot and within != part:
        return False
    return (single and fnmatchcase(module.names[0], name)) if is_pattern(name) else name in module.names


def is_pattern(target: str) -> bool:
    """Whether a target stands for several names."""
    return "*" in target
