"""Adapters as torchtitan has them: its `LoRAConverter`, by the names of its products.

Queries, keys and values are one product, with one adapter; products of experts are none that it converts.
Source: torchtitan/components/lora.py and models/common/attention.py of torchtitan 0.3.0 (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.model import ModelSpec
from meshwright.targets import adapters
from meshwright.targets.sayable import Plan
from meshwright.targets.torchtitan.flavors import flavor_of

NAMES = {"linear_qkv": "wqkv", "o_proj": "wo", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Torchtitan's names of modules by ours."""
_FUSED = ("llama3", "qwen3", "gpt_oss")
"""Models whose queries, keys and values are one product."""


def usual_modules(model: ModelSpec) -> str:
    """Modules with adapters where nobody names them: all products it converts; empty for models it has none for."""
    flavor = flavor_of(model)
    if flavor is None or flavor.module not in _FUSED:
        return ""
    return "qkv_proj,o_proj" + ("" if model.is_moe else ",mlp.gate_proj,mlp.up_proj,mlp.down_proj")


def converter(plan: Plan) -> str:
    """The converter of a plan with adapters, as Python; empty where all of the model is trained."""
    lora = plan.model.lora
    if lora is None:
        return ""
    modules = ", ".join(f'"{name}"' for name in adapters.named_by(plan, NAMES)[0])
    return f"LoRAConverter.Config(rank={lora.rank}, alpha={2.0 * lora.rank}, target_modules=[{modules}])"


def untrainable_by_torchtitan(plan: Plan) -> Iterator[Problem]:
    """What torchtitan does not do of the tuning of a plan."""
    yield from adapters.frozen_parts(plan)
    lora, flavor = plan.model.lora, flavor_of(plan.model)
    if lora is None or flavor is None:
        return
    usual = "use targets=qkv_proj,o_proj,mlp.gate_proj,mlp.up_proj,mlp.down_proj, or some of these"
    without = adapters.named_by(plan, NAMES)[1]
    for what, refused, fix in (
        (f"adapters are on {', '.join(without)}", bool(without), usual),
        (f"adapters in its {flavor.module}", flavor.module not in _FUSED, "use --target automodel"),
        ("adapters are on some layers", bool(lora.layers), "leave out layers="),
        ("parts are trained beside adapters", bool(lora.train), "leave out train="),
        ("adapters are DoRA", lora.dora, "leave out dora"),
        ("inputs of adapters are dropped", lora.dropout > 0, "leave out dropout="),
        (f"frozen weights are stored in {lora.base}", lora.base not in (None, "fp32"), "leave out base="),
    ):
        if refused:
            yield Problem(what=f"plan: {what}", why="its LoRAConverter does not say so", fix=fix, field="tuning")
