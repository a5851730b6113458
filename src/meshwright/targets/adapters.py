"""Adapters as PEFT has them, for targets whose script trains models of the transformers library.

Names are those of LoraConfig of peft 0.21.2 (2026-11), https://github.com/huggingface/peft, which lies in
`adapter_config.json`, and of BitsAndBytesConfig of transformers 5.23.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.ops.layers import work_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear
from meshwright.specs.tuning import ALL_LINEAR, Lora
from meshwright.targets import seeing
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.key_texts import Keys, json_text, table_of
from meshwright.targets.sayable import Plan

if TYPE_CHECKING:
    from meshwright.ops.modules import Module
    from meshwright.targets.keys import KeyReader

CONFIG = "adapter_config.json"
QUANTIZED = "quantization_config.json"
SCRIPT = "train.py"
ARGUMENTS = "training_args.json"
FILES = (CONFIG, QUANTIZED)
SAVED = {"embedding": "embed_tokens", "head": "lm_head"}
"""Parts trained beside adapters, as `modules_to_save` names them."""
_FOUR_BITS = {
    f"{kind}{suffix}": {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": not suffix}
    for kind in ("nf4", "fp4")
    for suffix in ("", "-single")
}
_STORED: dict[str, Keys] = {**_FOUR_BITS, "int8": {"load_in_8bit": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPeft:
    """How a program has PEFT put adapters on a model."""

    listed: bool = False
    """Whether the program looks for linear modules itself and gives PEFT their names: find_all_linear_modules of
    llamafactory 0.9.5, find_all_linear_names of axolotl 0.19.0 (2026-11)."""
    stores_experts: bool = False
    """Whether it stores experts in few bits, too: `quantize_moe_experts` of axolotl."""

    def __call__(self, model: ModelSpec, lora: Lora) -> Lora:
        """The adapters that it makes of those that a question asks for."""
        from meshwright.targets.peft_experts import as_made  # few questions are of adapters

        return as_made(model, lora, listed=self.listed, stores_experts=self.stores_experts)


BY_PEFT = ByPeft()


def base_as_loaded(plan: Plan) -> str | None:
    """The `base` that says no more than the plan's own format: weights that are loaded in fp32."""
    return "fp32" if plan.precision.activations == "fp32" else None


def untrainable_by_peft(plan: Plan, makes: ByPeft = BY_PEFT) -> Iterator[Problem]:
    """What PEFT does not do of the tuning of a plan.

    Args:
        plan: the plan of any model.
        makes: the adapters that the program makes where it is asked for some.
    """
    lora = plan.model.lora
    yield from frozen_parts(plan)
    if lora is None:
        return
    from meshwright.targets import peft_experts

    yield from peft_experts.problems(plan.model, makes)
    named = peft_experts.as_given(plan.model, lora)
    if lora.base == "fp32":
        if plan.strategy.data.family != "fsdp" and base_as_loaded(plan) is None:
            why = "products under autocast keep a copy of each weight in 16 bits until backward, which is not priced"
            yield Problem(
                what="plan: frozen weights are stored in fp32",
                why=why,
                fix="use fsdp, whose ranks gather them in 16 bits, or leave base out",
                field="tuning",
            )
    elif lora.base is not None and lora.base not in _STORED:
        why, fix = "bitsandbytes stores frozen weights in 4 bits or in int8", "use base=nf4, or base=int8"
        yield Problem(what=f"plan: frozen weights are stored in {lora.base}", why=why, fix=fix, field="tuning")
    if lora.base == "int8" and plan.sharded:
        why, fix = "weights of bitsandbytes in int8 are not sharded over data ranks", "use base=nf4, or z2"
        yield Problem(what="plan: frozen weights in int8 are sharded", why=why, fix=fix, field="tuning")
    for name in (name for name in named.targets if re.search(r"[*.]|^-", name)):
        why, fix = "PEFT selects modules by name", "use names such as q_proj, or all-linear"
        yield Problem(what=f"plan: adapters are on {name}", why=why, fix=fix, field="tuning")
    for name in (name for name in named.targets if name.startswith("linear_")):
        why, fix = "PEFT names modules as the class in the transformers library does", "use names such as q_proj"
        yield Problem(what=f"plan: adapters are on {name}", why=why, fix=fix, field="tuning")
    for part in (part for part in lora.train if part not in SAVED):
        why, fix = "PEFT trains modules by name beside adapters", f"use train={','.join(SAVED)}, or leave it out"
        yield Problem(what=f"plan: {part} is trained beside adapters", why=why, fix=fix, field="tuning")


def frozen_parts(plan: Plan) -> Iterator[Problem]:
    """Parts that are frozen without adapters, which no configuration says."""
    if plan.model.tuning is not None and plan.model.tuning.lora is None and not seeing.freezes_wholes(plan):
        why, fix = "frozen parts are set in the training script, not in a configuration", "use --lora"
        yield Problem(what="plan: parts of the model are frozen", why=why, fix=fix, field="tuning")


def products(plan: Plan) -> Iterator[Linear]:
    """The products of the layers, without adapters; none of a tower, where no adapters stand."""
    whole = replace(plan.model, tuning=None)
    towers = {stream.name for stream in whole.streams if stream.tower or stream.window_of}
    for kind in (kind for kind in whole.kinds() if kind.stream not in towers):
        yield from (op for op in work_of(whole, kind, "flash").ops if isinstance(op, Linear))


def adapted(plan: Plan) -> Iterator[tuple[str, Module]]:
    """The modules with adapters, each with the part of a layer that it is of."""
    from meshwright.ops.modules import part_of, targeted  # few questions are of adapters

    lora = plan.model.lora
    for op in products(plan):
        yield from ((part_of(op), module) for module in targeted(op, lora.targets if lora is not None else ()))


def names_in_class(plan: Plan) -> tuple[str, ...]:
    """Names that products with adapters may have in a model's class; those of experts are no modules there."""
    from meshwright.ops.modules import part_of, targeted

    lora = plan.model.lora
    found: dict[str, None] = {}
    for op in products(plan):
        for module in targeted(op, lora.targets if lora is not None and part_of(op) != "experts" else ()):
            found |= dict.fromkeys(module.names)
    return tuple(found)


def given(plan: Plan) -> Lora:
    """The adapters of a plan by the names that PEFT is given for them."""
    from meshwright.targets.peft_experts import as_given

    assert plan.model.lora is not None
    return as_given(plan.model, plan.model.lora)


def usual_names(plan: Plan) -> tuple[str, ...]:
    """Names of the modules with adapters, one each, with those that stand for adapters on parameters."""
    lora = plan.model.lora
    assert lora is not None
    found = {module.names[0]: None for _, module in adapted(plan)}
    from meshwright.targets.peft_experts import as_given

    return as_given(plan.model, replace(lora, targets=tuple(found))).targets


def named_by(plan: Plan, names: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules with adapters by the names that a framework has for them, and those that it has none for.

    Args:
        plan: the plan with adapters.
        names: the names of the framework, by ours; none stands for products of experts.
    """
    found: dict[str, None] = {}
    without: dict[str, None] = {}
    for part, module in adapted(plan):
        ours = module.names[0]
        if ours in names and part != "experts":
            found[names[ours]] = None
        else:
            without[f"{part}.{ours}" if part == "experts" else ours] = None
    return tuple(found), tuple(without)


def files(plan: Plan) -> tuple[tuple[str, str], ...]:
    """PEFT's file, and how frozen weights are stored; nothing where all of the model is trained."""
    lora = plan.model.lora
    if lora is None:
        return ()
    named = given(plan)
    keys: Keys = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.rank,
        "lora_dropout": lora.dropout,
        "target_modules": ALL_LINEAR if ALL_LINEAR in named.targets else list(named.targets),
        "target_parameters": list(named.parameters) or None,
        "rank_pattern": dict(named.ranks) or None,
        "exclude_modules": seeing.outside_text(plan) or None,
        "use_dora": lora.dora,
        "layers_to_transform": layer_numbers(lora),
        "modules_to_save": [SAVED[part] for part in lora.train] or None,
    }
    made = ((CONFIG, json_text({name: value for name, value in keys.items() if value is not None})),)
    return made if lora.base not in _STORED else (*made, (QUANTIZED, json_text(_STORED[lora.base])))


def read_adapters(texts: Files, reader: KeyReader) -> dict[str, Any]:
    """The field `lora` of a workload, where PEFT's file is among the files of a run.

    Args:
        texts: the texts by name.
        reader: the reader of the run's own configuration, which tells what was read here with its own.
    """
    text = text_beside(texts, CONFIG)
    if text is None:
        return {}
    own = reader.another(table_of(text, "JSON", "adapter's configuration"), (CONFIG, text))
    reader.beside.append(own)
    if own.word("peft_type", "lora") != "lora":
        own.refuse("peft_type", own.get("peft_type"), "adapters of low rank can be planned", "use LORA")
        return {}
    targets = own.get("target_modules") or ["q_proj", "v_proj"]
    layers = own.get("layers_to_transform")
    from meshwright.targets.peft_experts import parameters_of

    own.get("exclude_modules")  # of towers, in which no plan has adapters
    said: dict[str, Any] = {
        "r": own.degree("r", 8),
        "targets": [targets] if isinstance(targets, str) else list(targets),
        "dora": own.switch("use_dora"),
        "dropout": own.get("lora_dropout", 0.0),
        "layers": layer_texts([layers] if isinstance(layers, int) else layers or []),
        "train": own.get("modules_to_save"),
        "parameters": parameters_of(own.get("target_parameters")),
        "rank_pattern": own.get("rank_pattern"),
        "base": _base(texts, reader),
    }
    return {"lora": {name: value for name, value in said.items() if value}}


def _base(texts: Files, reader: KeyReader) -> str | None:
    text = text_beside(texts, QUANTIZED)
    if text is None:
        return "fp32" if _loaded_whole(texts) else None
    keys = table_of(text, "JSON", "configuration of quantization")
    own = reader.another(keys, (QUANTIZED, text))
    reader.beside.append(own)
    if own.switch("load_in_8bit"):
        return "int8"
    kind = own.word("bnb_4bit_quant_type", "fp4") + ("" if own.switch("bnb_4bit_use_double_quant") else "-single")
    return kind if own.switch("load_in_4bit") else None


def _loaded_whole(texts: Files) -> bool:
    """Whether the program loads frozen weights in fp32, and computes in 16 bits beside them."""
    script, arguments = (text_beside(texts, name) or "" for name in (SCRIPT, ARGUMENTS))
    return '"dtype": "float32"' in script and re.search(r'"(bf16|fp16)": true', arguments) is not None


def layer_numbers(lora: Lora) -> list[int] | None:
    """Layers with adapters one by one; None for all."""
    return [one for first, last in lora.layers for one in range(first, last + 1)] or None


def layer_texts(numbers: list[int]) -> list[str]:
    """Layers as the ranges that `--lora` takes."""
    return [f"{first}-{last}" for first, last in _runs(sorted(numbers))]


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of numbers."""
    first = None
    for at, number in enumerate(numbers):
        first = number if first is None else first
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            yield first, number
            first = None
