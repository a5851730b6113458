"""Adapters on models with experts as PEFT makes them of the names that a user gives.

Experts of a layer are parameters of three dimensions in the classes of transformers 5, no modules: names of modules do
not find them, and bitsandbytes, which stores modules in fewer bits, leaves them as they are. For classes whose experts
were modules before, PEFT takes names of the old modules for the new parameters: gate and up together at twice the rank,
and no module of these names beside them. Source: peft/utils/transformers_weight_conversion.py and
peft/tuners/lora/layer.py (`ParamWrapper`) of peft 0.21.2, conversion_mapping.py of transformers 5.23.0 (2026-11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from meshwright.errors import Problem
from meshwright.ops.layers import work_of
from meshwright.ops.modules import Adapted, adapted_modules, part_of, products_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear
from meshwright.specs.tuning import ALL_LINEAR, BITSANDBYTES, Lora
from meshwright.targets import peft_fused

_AS_QWEN = (
    *("afmoe", "beam", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe"),
    *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "hunyuan_moe", "mellum"),
    *("olmoe", "qwen3_moe", "qwen3_next", "solar_open"),
)
_AS_MIXTRAL = ("minimax", "minimax_m2", "mixtral")
CONVERTED = {
    **dict.fromkeys(_AS_QWEN, ("gate_proj", "up_proj", "down_proj")),
    **dict.fromkeys(_AS_MIXTRAL, ("w1", "w3", "w2")),
}
"""What the matrices of an expert were called where PEFT takes these names for the parameters: gate, up, down."""
_PARAMETERS = (
    *("aria", "axk1", "axk2", "bailing_hybrid", "deepseek_v4", "dots3_note", "flint", "gemma4", "glm5_next"),
    *("gpt_oss", "mistral_large4"),
    *("granitemoe", "granitemoe_swa", "granitemoehybrid", "hy_v3", "hy_v4", "jamba", "kimi_k25", "kimi_linear"),
    *("kolibri1", "laguna", "lfm2_moe", "llama4", "longcat_flash", "mimo_v2"),
    *("minimax_m3", "mistral4", "nemotron_h", "phimoe", "qwen2_moe", "qwen3_5_moe", "qwen3_vl_moe", "step3p5"),
)
"""Other classes whose experts are parameters, by the family of the model, or the class that sees."""
_LINEAR_ROUTERS = ("afmoe", "gemma4", "hunyuan_moe", "llama4", "phimoe")
"""Classes whose router is a module that `all-linear` finds."""
_NO_MAMBA_OUT = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Classes of whose `out_proj` PEFT makes an error."""
_GROUPED_OUT = ("deepseek_v4",)
"""Classes whose `o_a_proj` has a matrix of its own for each group of heads, which an adapter of PEFT does not fit."""
_HOLDS_NONE = "longcat_flash"
"""A class whose parameters hold rows of choices that compute nothing, with adapters on these, too."""
_FUSED_SHARED = ("granitemoe", "granitemoehybrid")
"""Classes whose shared MLP has gate and up in one module."""
GATE_UP, DOWN, ROUTER = "experts.gate_up_proj", "experts.down_proj", "router.gate"
_NO_EXPERTS = "-experts.*"
_SHARED = "-mlp.gate_proj", "-mlp.up_proj", "mlp.linear_fc1"
_ADDED = (_NO_EXPERTS, "-gate_proj", "-up_proj", "-down_proj", "router.router", *_SHARED)
"""Targets that say what PEFT finds and leaves out, which nobody gives it."""


def class_of(model: ModelSpec) -> str:
    """The class that PEFT looks up: that of a model that sees, else the family."""
    return model.settings.seen_by or model.family


def are_parameters(model: ModelSpec) -> bool:
    """Whether the experts of a model are parameters of three dimensions; False without experts, or in unknown code."""
    return model.is_moe and class_of(model) in (*CONVERTED, *_PARAMETERS)


def as_made(model: ModelSpec, lora: Lora, *, listed: bool, stores_experts: bool) -> Lora:
    """The adapters that PEFT puts on a model where it is given these names, and what bitsandbytes stores of it.

    Args:
        model: the model of the transformers library.
        lora: the LoRA settings as a user asks for it; what PEFT makes is given back as it is.
        listed: whether the program looks for linear modules itself and gives PEFT their names.
        stores_experts: whether the program stores experts in few bits, too.
    """
    if not model.is_moe:
        whole = replace(lora, skip=tuple(part for part in lora.skip if part != "experts"))
        return peft_fused.with_whole(model, whole)
    made = _made(model, lora, listed=listed)
    return made if stores_experts else keeps_experts(model, made)


def parameters_of(said: object) -> list[str]:
    """Parameters with adapters by their last two names, of a list of `target_parameters`.

    Args:
        said: a list, a name, or nothing.
    """
    named = said if isinstance(said, list) else [said] if said else []
    words = [str(name).removesuffix(".weight").split(".")[-2:] for name in named]
    return [ROUTER if one[-1] == "gate" else ".".join(one) for one in words]


def keeps_experts(model: ModelSpec, lora: Lora) -> Lora:
    """The same adapters, with experts as bitsandbytes leaves them."""
    return replace(lora, skip=(*lora.skip, "experts")) if stays_whole(model, lora) else lora


def stays_whole(model: ModelSpec, lora: Lora) -> bool:
    """Whether bitsandbytes is asked to store experts, which it leaves as they are."""
    return lora.base in BITSANDBYTES and "experts" not in lora.skip and are_parameters(model)


def as_given(model: ModelSpec, lora: Lora) -> Lora:
    """The adapters by the names that PEFT is given for them."""
    old = CONVERTED.get(class_of(model), ())
    if not are_parameters(model):
        return peft_fused.without_whole(model, lora)
    targets = tuple(name for name in lora.targets if name not in _ADDED)
    if not old:
        return replace(lora, targets=targets)
    on, ranks = [*lora.parameters], dict(lora.ranks)
    if ALL_LINEAR in targets:
        on = [name for name in on if name not in (GATE_UP, DOWN, ROUTER)]
    else:
        gate, up, down = old
        for name, names in ((GATE_UP, (gate, up)), (DOWN, (down,)), (ROUTER, ("gate",))):
            if name in on and (name != GATE_UP or ranks.get(name) == 2 * lora.rank):
                on.remove(name)
                targets = (*targets, *names)
    ranks = {name: rank for name, rank in ranks.items() if name != GATE_UP or name in on}
    return replace(lora, targets=targets, parameters=tuple(on), ranks=tuple(ranks.items()))


def _made(model: ModelSpec, lora: Lora, *, listed: bool) -> Lora:
    if not are_parameters(model):
        return lora
    lora = as_given(model, lora)
    every, old = ALL_LINEAR in lora.targets, CONVERTED.get(class_of(model), ())
    router = ("router.router",) if class_of(model) in _LINEAR_ROUTERS else ()
    if every and (not old or (listed and not _has_dense(model))):
        shared = _SHARED if class_of(model) in _FUSED_SHARED else ()
        return replace(lora, targets=(*lora.targets, _NO_EXPERTS, *router, *shared))
    if not old:
        finds = any(part_of(op) == "experts" for op, _ in _adapted(model, replace(lora, parameters=())))
        return replace(lora, targets=(*lora.targets, _NO_EXPERTS)) if finds else lora
    gate, up, down = old
    if every:
        out = tuple(f"-{name}" for name in old) if gate == "gate_proj" else (_NO_EXPERTS,)
        more = () if router or listed else (ROUTER,)
        return _on_parameters(lora, (*lora.targets, *out, *router), (GATE_UP, DOWN, *more))
    asked = {*lora.targets}
    on = [GATE_UP] if {gate, up} <= asked else []
    on += [DOWN] if down in asked else []
    on += [ROUTER] if "gate" in asked else []
    absent = () if gate == "gate_proj" else CONVERTED["qwen3_moe"]
    rest = tuple(name for name in lora.targets if name not in (*old, "gate", *absent))
    halved = len({gate, up} & asked) == 1
    return lora if halved or not (on or rest) else _on_parameters(lora, rest, tuple(on))


def _on_parameters(lora: Lora, targets: tuple[str, ...], parameters: tuple[str, ...]) -> Lora:
    """The same with adapters on parameters, that of gate and up together of twice the rank."""
    ranks = {GATE_UP: 2 * lora.rank} if GATE_UP in parameters else {}
    return replace(
        lora,
        targets=targets,
        parameters=tuple(dict.fromkeys((*lora.parameters, *parameters))),
        ranks=tuple((dict(lora.ranks) | ranks).items()),
    )


def _has_dense(model: ModelSpec) -> bool:
    """Whether a layer of the text has an MLP of modules: a dense one, or shared experts."""
    return any(kind.has("mlp") for kind in model.kinds() if not kind.stream)


def _adapted(model: ModelSpec, lora: Lora) -> Iterator[tuple[Linear, Adapted]]:
    """Products of the text with adapters, and these."""
    whole = replace(model, tuning=None)
    for kind in (kind for kind in whole.kinds() if not kind.stream):
        for op in products_of(work_of(whole, kind, "flash")):
            for one in adapted_modules(op, lora):
                yield op, one


def problems(model: ModelSpec, makes: Callable[[ModelSpec, Lora], Lora]) -> Iterator[Problem]:
    """What PEFT does not do with adapters of a model.

    Args:
        model: the model with adapters.
        makes: the adapters that the program makes where it is asked for some.
    """
    lora = model.lora
    if lora is None:
        return
    if lora.parameters:
        for what, refused, fix in (
            ("adapters on parameters have dropout", lora.dropout > 0, "leave dropout out"),
            ("adapters on parameters are DoRA", lora.dora, "leave dora out"),
        ):
            if refused:
                why = "PEFT adds those on parameters, such as experts, to the whole weight, and stops with these"
                yield Problem(what=f"plan: {what}", why=why, fix=f"{fix}, or name modules of attention", field="tuning")
    mamba = class_of(model) in _NO_MAMBA_OUT
    if mamba and any("out_proj" in one.module.names for _, one in _adapted(model, lora)):
        why = f"PEFT stops at out_proj of {class_of(model)}, whose kernel reads the weight itself"
        fix = "name modules without it: targets=q_proj,k_proj,v_proj,o_proj,in_proj"
        yield Problem(what="plan: adapters are on out_proj", why=why, fix=fix, field="tuning")
    if class_of(model) in _GROUPED_OUT and any("o_a_proj" in one.module.names for _, one in _adapted(model, lora)):
        why = (
            f"o_a_proj of {class_of(model)} multiplies each group of heads by its own matrix, and PEFT's adapter stops"
        )
        fix = "name modules without it: targets=q_a_proj,q_b_proj,kv_proj,o_b_proj"
        yield Problem(what="plan: adapters are on o_a_proj", why=why, fix=fix, field="tuning")
    yield from peft_fused.problems(model)
    if not are_parameters(model):
        return
    made = makes(model, lora)
    if stays_whole(model, lora) and not stays_whole(model, made):
        yield from stored_otherwise(model, lora)
    elif class_of(model) == _HOLDS_NONE and any(part_of(op) == "experts" for op, _ in _adapted(model, lora)):
        why = "its class holds experts that compute nothing, and adapters on them, which are not counted"
        fix = "name modules of attention"
        yield Problem(what="plan: adapters are on experts", why=why, fix=fix, field="tuning")
    elif replace(made, skip=()) != replace(lora, skip=()):
        names = ", ".join((*as_given(model, lora).targets, *as_given(model, lora).parameters))
        why = f"experts of its class are parameters, and of these names it makes others: {_described(made)}"
        fix = "ask with --target, which prices what it makes, or name modules of attention"
        yield Problem(what=f"plan: adapters are on {names}", why=why, fix=fix, field="tuning")
    elif made == lora and len({*CONVERTED.get(class_of(model), ("", ""))[:2]} & {*lora.targets}) == 1:
        why = "gate and up of its experts are one parameter, and PEFT stops where one of them is named"
        yield Problem(what="plan: adapters are on a part of experts", why=why, fix="name both, or none", field="tuning")


def stored_otherwise(model: ModelSpec, lora: Lora) -> Iterator[Problem]:
    """Experts that are planned in few bits, which bitsandbytes does not store so."""
    if stays_whole(model, lora):
        why = "experts of its class are parameters, which bitsandbytes leaves in 16 bits"
        fix = "use --target axolotl (quantize_moe_experts), or skip=experts in --lora"
        yield Problem(what=f"plan: experts are stored in {lora.base}", why=why, fix=fix, field="tuning")


def _described(lora: Lora) -> str:
    """What has adapters, in words."""
    out = "all modules" + (" but those of experts" if _NO_EXPERTS in lora.targets else "")
    named = out if ALL_LINEAR in lora.targets else ", ".join(name for name in lora.targets if name not in _ADDED)
    return named + (f" and the parameters {', '.join(lora.parameters)}" if lora.parameters else "")
