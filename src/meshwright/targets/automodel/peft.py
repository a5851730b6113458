"""Adapters as Automodel has them: its `peft` table, and `quantization` for how frozen weights are stored.

Its patterns stand for whole paths of modules. Experts of a layer are one module there, `experts`, which names of
products do not match. Source: nemo_automodel/components/_peft/module_matcher.py and lora.py of nemo-automodel 0.7.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.ops.modules import part_of, targeted
from meshwright.specs.tuning import ALL_LINEAR, Lora
from meshwright.targets import adapters, seeing
from meshwright.targets.key_texts import Keys
from meshwright.targets.sayable import Plan

if TYPE_CHECKING:
    from meshwright.targets.keys import KeyReader

_P, _Q = "peft.", "quantization."
CLASS = "nemo_automodel.components._peft.lora.PeftConfig"
_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
"""Products that experts have, too."""
_ABOVE = re.compile(r"|\*|model|(?:(?:\*|model\.layers\.\*)\.)?(?:self_attn|attention|attn|mlp|mixer|feed_forward)")
"""What may stand before a name: any layer, and the part that has the product."""
_ELSEWHERE = re.compile(r"vision|visual|audio|image|multi_modal|projector|embed")
"""Modules outside the text's layers, which have no adapters here."""


def read_peft(reader: KeyReader) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The field `lora` of a workload, None where all of the model is trained; and what was left out."""
    if reader.get("peft") is None:
        return None, ()
    made = reader.get(f"{_P}_target_", CLASS)
    if not str(made).endswith("PeftConfig"):
        reader.refuse(f"{_P}_target_", made, "adapters of PeftConfig are read", f"use {CLASS}")
    targets, head = _targets(reader)
    if reader.switch(f"{_P}moe_rank_scaling") and any(target.startswith("experts.") for target in targets):
        why = "adapters of experts are narrower than the others, and a plan has one rank"
        reader.refuse(f"{_P}moe_rank_scaling", True, why, "use false")
    for name in ("alpha", "dropout_position", "lora_A_init", "use_triton", "use_memory_efficient_lora"):
        reader.get(f"{_P}{name}")
    found = {
        "r": reader.degree(f"{_P}dim", 8),
        "targets": targets,
        "dora": reader.switch(f"{_P}use_dora"),
        "dropout": reader.get(f"{_P}dropout", 0.0),
        "base": _base(reader),
    }
    notes = ("the adapter of lm_head, which its patterns match, is not priced",) if head else ()
    return {name: value for name, value in found.items() if value}, notes


def _base(reader: KeyReader) -> str | None:
    if reader.switch(f"{_Q}load_in_4bit"):
        twice = reader.switch(f"{_Q}bnb_4bit_use_double_quant", default=True)
        return reader.word(f"{_Q}bnb_4bit_quant_type", "nf4") + ("" if twice else "-single")
    if reader.switch(f"{_Q}load_in_8bit"):
        return "int8"
    wide = reader.word("model.torch_dtype").removeprefix("torch.") in ("float32", "fp32")
    narrow = not reader.word("distributed.mp_policy.param_dtype", "bfloat16").endswith("float32")
    return "fp32" if wide and narrow else None


def _listed(reader: KeyReader, name: str) -> list[str]:
    said = reader.get(f"{_P}{name}") or []
    return [said] if isinstance(said, str) else [str(one) for one in said]


def _targets(reader: KeyReader) -> tuple[list[str], bool]:
    """Modules with adapters, and whether the head is among them."""
    named, without = _listed(reader, "target_modules"), _listed(reader, "exclude_modules")
    every = reader.switch(f"{_P}match_all_linear")
    if named and (without or every):
        reader.refuse(f"{_P}target_modules", named, "modules are named, or left out of all", "leave one of them out")
    if not every and not without:
        return _named(reader, named or ["*_proj"])
    # Every product is an nn.Linear but those of experts.
    left = [pattern.rpartition(".")[2].strip("*") for pattern in without if not _ELSEWHERE.search(pattern)]
    routed = any("expert" in name for name in left)
    out = [f"-{name}" for name in left if name and name != "lm_head" and "expert" not in name and name != "router"]
    reader.seen[f"{_P}exclude_modules"] = without or None
    return ["attention.*", *([] if routed else ["mlp.*"]), *out], "lm_head" not in left


def _named(reader: KeyReader, patterns: list[str]) -> tuple[list[str], bool]:
    found: list[str] = []
    head = False
    for pattern in patterns:
        above, _, last = pattern.rpartition(".")
        if last in ("experts", "*experts", "*experts*"):
            found.append("experts.*")
        elif not _ABOVE.fullmatch(above) or not re.fullmatch(r"\*?[A-Za-z0-9_]*|[A-Za-z0-9_]+\*?", last):
            why = "it picks modules by path, which adapters of a plan do not"
            reader.refuse(f"{_P}target_modules", pattern, why, "use '*_proj', or patterns such as '*.q_proj'")
        elif last == "*" and not above.strip("*"):
            found += ["attention.*", "mlp.*", "experts.*"]
            head = True
        elif last.endswith("lm_head"):
            head = True
        elif "*" in last:
            found += [f"attention.{last}", f"mlp.{last}"]
        else:
            found.append(f"mlp.{last}" if last in _EXPERTS else last)
    return list(dict.fromkeys(found)) or ["*_proj"], head


def keys(plan: Plan) -> Keys:
    """The tables of a plan with adapters; nothing where all of the model is trained."""
    lora = plan.model.lora
    if lora is None:
        return {}
    made: Keys = {
        "peft": {
            "_target_": CLASS,
            "target_modules": list(_modules(plan, lora)),
            "dim": lora.rank,
            "alpha": 2 * lora.rank,
            "dropout": lora.dropout,
            **({"use_dora": True} if lora.dora else {}),
        }
    }
    if lora.base in ("nf4", "fp4", "nf4-single", "fp4-single"):
        made["quantization"] = {
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "bfloat16",
            "bnb_4bit_quant_type": lora.base.removesuffix("-single"),
            "bnb_4bit_use_double_quant": not lora.base.endswith("-single"),
        }
    return made


def _modules(plan: Plan, lora: Lora) -> Iterator[str]:
    """Patterns of the modules with adapters, one for all experts."""
    above = f"{seeing.class_of(plan).text}.*" if seeing.sees(plan) else "*"  # names alone would match the tower's, too
    found = {
        f"{above}.experts" if part_of(op) == "experts" else f"{above}.{module.names[0]}": None
        for op in adapters.products(plan)
        for module in targeted(op, lora.targets)
    }
    yield from found


def untrainable(plan: Plan) -> Iterator[Problem]:
    """What Automodel does not do of the tuning of a plan."""
    lora = plan.model.lora
    yield from adapters.frozen_parts(plan)
    if lora is None:
        return
    own = adapters.base_as_loaded(plan)
    for what, refused, fix in (
        ("adapters are on some layers", bool(lora.layers), "leave out layers="),
        ("adapters are on whole weights", bool(lora.parameters), "leave out target_parameters="),
        ("parts are trained beside adapters", bool(lora.train), "leave out train="),
        (f"frozen weights are stored in {lora.base}", lora.base not in (own, None, *_STORED), "use base=nf4, or none"),
        ("adapters of experts are DoRA", lora.dora and _of_experts(plan, lora), "leave out dora"),
        ("only some products of experts have adapters", _of_some(plan, lora), "use all-linear, or name none of them"),
    ):
        if refused:
            yield Problem(what=f"plan: {what}", why="its peft table has no key for this", fix=fix, field="tuning")
    tp = plan.strategy.tp
    if tp > 1 and lora.base in _STORED:
        why = "bitsandbytes packs a matrix into one column of bytes, which tensor ranks cannot cut"
        yield Problem(what=f"plan: tp is {tp} beside weights in {lora.base}", why=why, fix="use tp1", field="tp")
    from meshwright.targets.peft_experts import stored_otherwise  # few questions are of adapters

    yield from stored_otherwise(plan.model, lora)


_STORED = ("nf4", "fp4", "nf4-single", "fp4-single")


def _of_experts(plan: Plan, lora: Lora) -> bool:
    return any(name.endswith(".experts") for name in _modules(plan, lora))


def _of_some(plan: Plan, lora: Lora) -> bool:
    """Whether experts have adapters beside some of their products and not beside others."""
    experts = [op for op in adapters.products(plan) if part_of(op) == "experts"]
    some, every = (
        {(op.name, module.names[0]) for op in experts for module in targeted(op, targets)}
        for targets in (lora.targets, (ALL_LINEAR,))
    )
    return bool(some) and some != every
