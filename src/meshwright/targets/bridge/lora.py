"""Adapters as Megatron-Bridge has them: overrides of `peft`, by the names of Megatron-Core's products.

Queries, keys and values are one product, gates and ups another, each with one adapter; a name stands for experts, too.
Source: megatron/bridge/peft/lora.py of megatron-bridge 0.3.1 (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshwright.errors import Problem
from meshwright.ops.layers import work_of
from meshwright.ops.modules import part_of, targeted
from meshwright.specs.job import Job
from meshwright.specs.layers.attention import Attention
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear

NAMES = {"linear_qkv": "linear_qkv", "o_proj": "linear_proj", "linear_fc1": "linear_fc1", "down_proj": "linear_fc2"}
"""Megatron-Core's names of modules by ours."""


def usual_modules(model: ModelSpec) -> str:
    """Modules with adapters where nobody names them: all but those of experts; empty where a layer has others."""
    if any(not isinstance(kind.attention, Attention) for kind in model.kinds()):
        return ""
    return "linear_qkv,linear_proj" + ("" if model.is_moe else ",linear_fc1,linear_fc2")


def wholly_trained(job: Job) -> Job:
    """The job with all of its model trained, which options of Megatron-LM can say."""
    return replace(job, model=replace(job.model, tuning=None))


def overrides_of(job: Job) -> dict[str, str]:
    """Overrides that say the adapters; none where all of the model is trained."""
    lora = job.model.lora
    if lora is None:
        return {}
    return {
        "peft.dim": str(lora.rank),
        "peft.alpha": str(2 * lora.rank),
        "peft.dropout": str(lora.dropout),
        "peft.target_modules": f"[{','.join(NAMES[name] for name in _modules(job) if name in NAMES)}]",
    }


def said(texts: Mapping[str, str]) -> dict[str, Any] | None:
    """The field `lora` of a workload that overrides say; None where they say none.

    Args:
        texts: values by key.
    """
    from meshwright.targets.overrides import parsed_word  # searches read no files

    rank = parsed_word(texts.get("peft.dim", ""))
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        return None
    targets = [one.strip(" '\"") for one in texts.get("peft.target_modules", "").strip("[]").split(",") if one.strip()]
    found = {"targets": targets or list(NAMES.values()), "dropout": parsed_word(texts.get("peft.dropout", "0.0"))}
    return {"r": rank, **{name: value for name, value in found.items() if value}}


def untrainable_by_bridge(job: Job) -> Iterator[Problem]:
    """What Megatron-Bridge does not do of the tuning of a plan."""
    tuning = job.model.tuning
    if tuning is None:
        return
    if (lora := tuning.lora) is None:
        why, fix = "which parts are frozen is said in the training script, not in overrides", "use --lora"
        yield Problem(what="plan: parts of the model are frozen", why=why, fix=fix, field="model.tuning")
        return
    without = [name for name in _modules(job) if name not in NAMES]
    usual = "use targets=linear_qkv,linear_proj,linear_fc1,linear_fc2, or some of these"
    experts = "use targets=linear_qkv,linear_proj"
    mixed = job.model.is_moe and any(NAMES.get(name, "").startswith("linear_fc") for name in _modules(job))
    for what, refused, fix in (
        (f"adapters are on {', '.join(without)}", bool(without), usual),
        ("adapters are on products that experts have, too", mixed and not without, experts),
        ("adapters are on some layers", bool(lora.layers), "leave out layers="),
        ("parts are trained beside adapters", bool(lora.train), "leave out train="),
        ("adapters are DoRA", lora.dora, "leave out dora"),
        (f"frozen weights are stored in {lora.base}", lora.base is not None, "leave out base="),
    ):
        if refused:
            yield Problem(what=f"plan: {what}", why="no override of peft says so", fix=fix, field="model.tuning")


def _modules(job: Job) -> list[str]:
    """Our names of the modules with adapters."""
    lora = job.model.lora
    model = wholly_trained(job).model
    found: dict[str, None] = {}
    for kind in model.kinds():
        for op in (op for op in work_of(model, kind, "flash").ops if isinstance(op, Linear)):
            for module in targeted(op, lora.targets if lora is not None else ()):
                part = part_of(op)
                found[f"{part}.{module.names[0]}" if part == "experts" else module.names[0]] = None
    return list(found)
