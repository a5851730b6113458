"""Adapters on products that a class has in one module: PEFT finds that module, and no part of it.

Source: classes of transformers 5.23.0 (2026-11); of chatglm, baichuan, internlm2 and qwen the files that come with the
models THUDM/chatglm3-6b, baichuan-inc/Baichuan-7B, internlm/internlm2-7b and Qwen/Qwen-7B on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.errors import Problem
from meshwright.specs.model import ModelSpec
from meshwright.specs.tuning import ALL_LINEAR, Lora

FUSED: dict[str, tuple[str, str]] = {
    "baichuan": ("W_pack", ""),
    "bloom": ("query_key_value", ""),
    "chatglm": ("query_key_value", "dense_h_to_4h"),
    "codegen": ("qkv_proj", ""),
    "falcon": ("query_key_value", ""),
    "glm": ("", "gate_up_proj"),
    "glm4": ("", "gate_up_proj"),
    "gpt2": ("c_attn", ""),
    "gpt_bigcode": ("c_attn", ""),
    "gpt_neox": ("query_key_value", ""),
    "gpt_neox_japanese": ("query_key_value", ""),
    "internlm2": ("wqkv", ""),
    "mpt": ("Wqkv", ""),
    "openai_gpt": ("c_attn", ""),
    "persimmon": ("query_key_value", ""),
    "phi3": ("qkv_proj", "gate_up_proj"),
    "qwen": ("c_attn", ""),
}
"""Fused modules by family: that of queries, keys and values, and that of gate and up; empty where these have one
each."""
_PARTS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
_WHOLE = "attention.linear_qkv", "mlp.linear_fc1"


def with_whole(model: ModelSpec, lora: Lora) -> Lora:
    """Adapters of all modules with those that are one in the class.

    Args:
        model: the model of the transformers library.
        lora: the LoRA settings as a user asks for it.
    """
    if ALL_LINEAR not in lora.targets:
        return lora
    more = tuple(one for one in _added(model) if one not in lora.targets)
    return replace(lora, targets=(*lora.targets, *more)) if more else lora


def without_whole(model: ModelSpec, lora: Lora) -> Lora:
    """The adapters as a user asks for them, of what `with_whole` gave."""
    added = _added(model)
    if not added or not {*added} <= {*lora.targets}:
        return lora
    return replace(lora, targets=tuple(one for one in lora.targets if one not in added))


def problems(model: ModelSpec) -> Iterator[Problem]:
    """Names that stand for a part of a module, at which PEFT stops, or which it leaves out."""
    lora = model.lora
    if lora is None:
        return
    for name, parts in zip(FUSED.get(model.family, ("", "")), _PARTS, strict=True):
        said = [part for part in parts if name and part in lora.targets]
        if said:
            why = f"{' and '.join(said)} are parts of one module of {model.family}, {name}, and PEFT finds none of them"
            yield Problem(what=f"plan: adapters are on {', '.join(said)}", why=why, fix=f"name {name}", field="tuning")


def _added(model: ModelSpec) -> tuple[str, ...]:
    names = zip(FUSED.get(model.family, ("", "")), _PARTS, _WHOLE, strict=True)
    return tuple(one for name, parts, whole in names if name for one in (*(f"-{part}" for part in parts), whole))
