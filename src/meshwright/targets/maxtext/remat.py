"""MaxText's rematerialisation: which tensors of a layer are kept, as the recompute of a plan.

Source: remat_policy and the names of tensors in src/maxtext/configs/base.yml, and get_remat_policy of
src/maxtext/layers/decoders.py (2026-08).
"""

from __future__ import annotations

from meshwright.targets.keys import KeyReader

_QKV = ("query_proj", "key_proj", "value_proj")
_POLICIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "minimal_with_context": ("qkv", "context", "out", "inner", "outer"),
    "minimal_flash": ("qkv", "context", "out", "inner", "outer"),
    "minimal": ("qkv", "out", "inner", "outer"),
    "save_dot_with_context_except_mlp": ("qkv", "context", "out"),
    "save_dot_except_mlp": ("qkv", "out"),
    "save_dot_except_mlpwi": ("qkv", "out", "outer"),
    "save_qkv_proj": ("qkv",),
    "save_out_proj": ("out",),
}
"""Tensors that a policy keeps: inputs of attention, its result, and those of its and the MLP's products."""
_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "qkv": (("qkv_proj",), _QKV),
    "context": (("context",),),
    "out": (("out_proj",),),
    "inner": (("mlpwi",), ("mlpwi_0", "mlpwi_1"), ("moe_mlpwi_0", "moe_mlpwi_1")),
    "outer": (("mlpwo",), ("moe_mlpwo",)),
}
"""Keys of `custom` that keep one of these: any group of them, whole."""
_INPUT = "decoder_layer_input"


def remat_of(reader: KeyReader) -> tuple[str, tuple[str, ...], str]:
    """The recompute of a row: its kind, the modules where it is selective, and what is offloaded.

    Args:
        reader: the keys; a policy that no plan says becomes a problem.
    """
    policy = reader.word("remat_policy", "full")
    offload = ""
    if policy == "custom":
        kept = tuple(name for name, groups in _NAMES.items() if any(_whole(reader, group) for group in groups))
        where = reader.word(_INPUT, "device")
        away = [key for groups in _NAMES.values() for group in groups for key in group if reader.word(key) == "offload"]
        if away:
            why = "results of products in the host's memory are no part of a plan"
            reader.refuse("remat_policy", f"custom with {', '.join(away)} on the host", why, "use device or remat")
        if where == "offload" and kept:
            why = "inputs of layers are on the host while other results stay, which no plan says"
            reader.refuse(_INPUT, where, why, "use device")
        offload = "a" if where == "offload" and not kept and not away else ""
    elif policy in _POLICIES:
        kept = _POLICIES[policy]
    else:
        reader.refuse("remat_policy", policy, "what it keeps is no part of a plan", "use full or minimal_with_context")
        return "none", (), ""
    held = set(kept)
    if not held:
        return "full", (), offload
    if held >= {"qkv", "out", "inner"}:
        return ("none", (), "") if "context" in held else ("sel", ("core_attn",), "")
    if held >= {"qkv", "out"} and not held & {"inner", "outer"}:
        return "sel", ("mlp",) if "context" in held else ("core_attn", "mlp"), ""
    why = "which products are computed again is in no plan: attention's result, MLPs, or whole layers are"
    reader.refuse("remat_policy", policy, why, "use full, minimal, save_dot_except_mlp or minimal_with_context")
    return "none", (), ""


def _whole(reader: KeyReader, group: tuple[str, ...]) -> bool:
    return all(reader.word(key, "remat") == "device" for key in group)
